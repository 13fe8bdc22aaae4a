"""L3. What of the parent checkpoint need not be written again, and what is written all the same. Pure.

A slice that equals the parent's is *kept*: the new manifest refers to where it lies. Three things make a
slice written although nothing changed, so that reuse stays bounded and no single copy is all there is:

* its object was marked damaged: every writer has the right bytes, and writes them anew;
* of its object less than half is still in use (``LIVE_SHARE``), or too many checkpoints are referred to
  (``MAX_OWNERS``). Half an object must have been replaced before its rest is moved, so over time no more
  is moved than was changed, and what is stored is less than twice what is in use;
* it has been kept for ``TWIN_AGE`` checkpoints: all retained ones will rest on that one copy. It gets a
  *twin*, a second copy with the same digest, a fair share of the state (``TWIN_SHARE``) at each save. One
  that has patches is written whole instead, and gets its twin later.

A changed slice may be written as a *patch* on what the parent has, until its patches are too many or too
large (``MAX_PATCHES``, ``PATCHED_SHARE``).

What is written although it has not changed will not change soon either. It goes into an object of its own
(``lasting``): beside what the next save replaces it would lie in an object that is dead but for it, to be
given up and written once more. Everything is decided from the parent's manifest, the offers and the
allocation, which all writers share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from durable_core.format import layout
from durable_core.format.manifest import Manifest
from durable_core.types import PlacedSlice, SliceInfo, SliceKey

#: An object with less of it in use is given up, its living slices are written anew.
LIVE_SHARE = 0.5
#: Checkpoints in whose directories a manifest may refer to objects, itself not counted: those of all second
#: copies (``TWIN_SHARE`` may be used by half), of the patches of a slice, and some more.
MAX_OWNERS = 192
#: Checkpoints after which a kept slice gets a second copy.
TWIN_AGE = 4
#: Of the state's bytes, what second copies may take at each save; a larger slice takes its turn alone.
#: (As tensors are cut, ``state.slices``, that is a 32nd of the state or 2 MiB at most.)
TWIN_SHARE = 1 / 64
#: Patches of one slice, and the bytes of all of them in relation to the slice, before it is written whole.
MAX_PATCHES = 48
PATCHED_SHARE = 0.9
#: From half of that on a slice may be written whole before it must, so that not all must at once; of the
#: state's bytes, what that may take at each save.
WHOLE_SHARE = 1 / 20


@dataclass(frozen=True)
class Base:
    """What a save is planned on: the parent's ``manifest``, the ``digest`` the journal has of it, and what
    was known when ``c`` was allocated.

    ``distrusted``: keys of objects marked damaged, and prefixes (ending with ``/``) of checkpoints marked as
    a whole. ``twins``: whether lonely slices get a second copy. ``held``: tensors that stay as the parent has
    them although they changed, with the group that is not due (``groups``).
    """

    manifest: Manifest
    digest: str
    c: int
    distrusted: frozenset[str] = frozenset()
    twins: bool = True
    held: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reuse:
    """``kept``: slices referred to where they lie. ``twins``: those of them that get a second copy.
    ``patchable``: changed slices, with the parent's, that may be written as a patch. ``moved``: unchanged
    slices that are written all the same, with the reason. ``held``: those kept that have changed, with their
    group."""

    kept: Mapping[SliceKey, PlacedSlice]
    twins: frozenset[SliceKey]
    patchable: Mapping[SliceKey, PlacedSlice]
    moved: Mapping[SliceKey, str]
    held: Mapping[SliceKey, str] = field(default_factory=dict)

    def lasting(self, key: SliceKey) -> bool:
        """Whether what is written of it has not changed."""
        return key in self.twins or key in self.moved


def reuse(stored: Iterable[SliceInfo], base: Base | None) -> Reuse:
    """Decide for slices by the keys they are stored under."""
    if base is None:
        return Reuse({}, frozenset(), {}, {})
    infos = tuple(stored)
    pieces = {piece.info.slice: piece for entry in base.manifest.tensors.values() for piece in entry.slices}
    held = _held(infos, pieces, base)
    kept: dict[SliceKey, PlacedSlice] = {}
    patchable: dict[SliceKey, PlacedSlice] = {}
    moved: dict[SliceKey, str] = {}
    for info in infos:
        piece = pieces.get(info.slice)
        if piece is None or info.slice in held:
            continue
        damaged = _damaged(piece, base)
        if damaged is None and piece.info == info:
            kept[info.slice] = piece
        elif damaged is None and _alike(info, piece) and patch_room(piece) > 0:
            patchable[info.slice] = piece
        elif damaged is not None and piece.info == info:
            moved[info.slice] = f"{damaged} is marked damaged"
    stay = {key: pieces[key] for key in held}
    given_up = _given_up((*kept.values(), *patchable.values(), *stay.values()), base.manifest)
    for key, piece in list(kept.items()):
        why = next((given_up[e.object] for e in piece.extents if e.object in given_up), None)
        if why is None:
            continue
        copies = [e for e in piece.extents if e.object not in given_up]
        if copies and not piece.patches:
            kept[key] = PlacedSlice(piece.info, copies[0].object, copies[0].begin)
        else:
            moved[key] = why
            del kept[key]
    for key, piece in list(patchable.items()):
        if any(extent.object in given_up for extent in piece.extents):
            del patchable[key]
    total = sum(info.nbytes for info in infos)
    for key in _due_for_writing(patchable.values(), base, total):
        del patchable[key]
    lonely = _due_for_a_twin(kept.values(), base, total) if base.twins else frozenset()
    twins = frozenset(key for key in lonely if not kept[key].patches)
    for key in lonely - twins:
        moved[key] = f"it is {len(kept[key].patches)} patches, of which no second copy is made"
        del kept[key]
    return Reuse({**kept, **stay}, twins, patchable, moved, held)


def _held(
    infos: tuple[SliceInfo, ...], pieces: Mapping[SliceKey, PlacedSlice], base: Base
) -> dict[SliceKey, str]:
    """Changed slices of the groups that are not due. A group of which the parent does not have everything
    whole is saved after all: its tensors are of one step, always."""
    changed: dict[SliceKey, str] = {}
    broken = set()
    for info in infos if base.held else ():
        group, piece = _group(info.slice.key, base.held), pieces.get(info.slice)
        if group is None or (piece is not None and piece.info == info):
            continue
        changed[info.slice] = group
        if piece is None or not _alike(info, piece) or _damaged(piece, base) is not None:
            broken.add(group)
    return {key: group for key, group in changed.items() if group not in broken}


def _damaged(piece: PlacedSlice, base: Base) -> str | None:
    """An object marked damaged in which something of the slice lies."""
    return next((e.object for e in piece.extents if is_distrusted(e.object, base.distrusted)), None)


def is_distrusted(key: str, distrusted: frozenset[str]) -> bool:
    return bool(distrusted) and (key in distrusted or f"{key.rpartition('/')[0]}/" in distrusted)


def owner(key: str) -> int:
    """The checkpoint an object was written for; -1 for an object of no checkpoint."""
    parsed = layout.parse_checkpoint_key(key)
    return -1 if parsed is None else parsed.name.c


def patch_room(piece: PlacedSlice) -> int:
    """Bytes that one more patch of ``piece`` may take; 0 when it is to be written whole."""
    if piece.twin is not None or len(piece.patches) >= MAX_PATCHES:
        return 0
    taken = sum(patch.nbytes for patch in piece.patches)
    return max(0, min(int(piece.info.nbytes * PATCHED_SHARE) - taken, piece.info.nbytes // 2))


def _alike(info: SliceInfo, piece: PlacedSlice) -> bool:
    """The same place of the same tensor, whatever the bytes."""
    old = piece.info
    return (info.dtype, info.global_shape, info.nbytes) == (old.dtype, old.global_shape, old.nbytes)


def _group(key: str, held: Mapping[str, str]) -> str | None:
    """``held`` has the names a role knows its tensors by; stored ones may be under ``roles/<role>/``."""
    own = key.split("/", 2)[-1] if key.startswith("roles/") else key
    return held.get(key) or held.get(own)


def _given_up(pieces: Iterable[PlacedSlice], manifest: Manifest) -> dict[str, str]:
    """Objects not worth keeping, with the reason.

    What may be patched counts as in use. Whether it is patched only its writer knows; if it was written whole
    after all, the next save sees that its old bytes are dead.
    """
    live: Counter[str] = Counter()
    for piece in pieces:
        for extent in piece.extents:
            live[extent.object] += extent.nbytes
    sizes = {info.key: info.nbytes - info.header_bytes for info in manifest.objects}
    gone = {
        key: f"{live[key]} of {size} bytes of {key} are in use"
        for key, size in sizes.items()
        if live[key] < LIVE_SHARE * size
    }
    by_owner: Counter[int] = Counter()
    for key, nbytes in live.items():
        if key not in gone:
            by_owner[owner(key)] += nbytes
    least = sorted(by_owner, key=lambda c: (by_owner[c], c))[: max(0, len(by_owner) - MAX_OWNERS)]
    why = f"more than {MAX_OWNERS} checkpoints are referred to"
    return gone | {key: why for key in live if owner(key) in least}


def _due_for_a_twin(kept: Iterable[PlacedSlice], base: Base, total: int) -> frozenset[SliceKey]:
    """The oldest kept slices without one, as many as a fair share of the state allows."""
    lonely = [
        piece
        for piece in kept
        if piece.twin is None and piece.info.nbytes and base.c - _newest(piece) >= TWIN_AGE
    ]
    lonely.sort(key=lambda p: (_newest(p), p.info.slice.key, p.info.slice.offsets))
    return _fair_share(lonely, base.c, int(total * TWIN_SHARE))


def _newest(piece: PlacedSlice) -> int:
    """The checkpoint in which it was last written, if only in part."""
    return max(owner(extent.object) for extent in piece.extents)


def _due_for_writing(patchable: Iterable[PlacedSlice], base: Base, total: int) -> frozenset[SliceKey]:
    """Slices whose patches have become many or large, the worst first, as many as is fair."""
    worn = [(wear, piece) for piece in patchable if (wear := _wear(piece)) > 0.5]
    worn.sort(key=lambda pair: (-pair[0], pair[1].info.slice.key, pair[1].info.slice.offsets))
    return _fair_share([piece for _, piece in worn], base.c, int(total * WHOLE_SHARE))


def _wear(piece: PlacedSlice) -> float:
    """How near a slice is to having to be written whole: 0 to 1."""
    taken = sum(patch.nbytes for patch in piece.patches)
    return max(len(piece.patches) / MAX_PATCHES, taken / max(1.0, piece.info.nbytes * PATCHED_SHARE))


def _fair_share(pieces: Iterable[PlacedSlice], c: int, share: int) -> frozenset[SliceKey]:
    """The first of ``pieces``, of ``share`` bytes together. One that is larger than that has its turn in as
    many saves as it takes to earn it."""
    due: set[SliceKey] = set()
    left = max(1, share)
    for piece in pieces:
        nbytes = piece.info.nbytes
        turn = not due and c * max(1, share) // nbytes > (c - 1) * max(1, share) // nbytes
        if nbytes > left and not turn:
            break
        due.add(piece.info.slice)
        left -= nbytes
    return frozenset(due)
