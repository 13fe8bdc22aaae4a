"""L3. What of the parent checkpoint need not be written again, and what is written all the same. Pure.

A slice that equals the parent's is *kept*: the new manifest refers to where it lies. Three things make a
slice written although nothing changed, so that reuse stays bounded and no single copy is all there is:

* its object was marked damaged: every writer has the right bytes, and writes them anew;
* of its object less than half is still in use (``LIVE_SHARE``), or too many checkpoints are referred to
  (``MAX_OWNERS``). Half an object must have been replaced before its rest is moved, so over time no more
  is moved than was changed, and what is stored is less than twice what is in use;
* it has been kept for ``TWIN_AGE`` checkpoints: all retained ones will rest on that one copy. It gets a
  *twin*, a second copy with the same digest, a fair share of the state (``TWIN_SHARE``) at each save.

A changed slice may be written as a *patch* on what the parent has, until its patches are too many or too
large (``MAX_PATCHES``, ``PATCHED_SHARE``). Everything is decided from the parent's manifest, the offers and
the allocation, which all writers share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from durable_core.format import layout
from durable_core.format.manifest import Manifest
from durable_core.types import PlacedSlice, SliceInfo, SliceKey

#: An object with less of it in use is given up, its living slices are written anew.
LIVE_SHARE = 0.5
#: Checkpoints in whose directories a manifest may refer to objects, itself not counted.
MAX_OWNERS = 64
#: Checkpoints after which a kept slice gets a second copy.
TWIN_AGE = 4
#: Of the state's bytes, what second copies may take at each save.
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
    was known when ``c`` was allocated. ``distrusted``: keys of objects marked damaged, and prefixes (ending
    with ``/``) of checkpoints marked as a whole. ``twins``: whether lonely slices get a second copy."""

    manifest: Manifest
    digest: str
    c: int
    distrusted: frozenset[str] = frozenset()
    twins: bool = True


@dataclass(frozen=True)
class Reuse:
    """``kept``: slices referred to where they lie. ``twins``: those of them that get a second copy.
    ``patchable``: changed slices, with the parent's, that may be written as a patch. ``moved``: unchanged
    slices that are written all the same, with the reason."""

    kept: Mapping[SliceKey, PlacedSlice]
    twins: frozenset[SliceKey]
    patchable: Mapping[SliceKey, PlacedSlice]
    moved: Mapping[SliceKey, str]


def reuse(stored: Iterable[SliceInfo], base: Base | None) -> Reuse:
    """Decide for slices by the keys they are stored under."""
    if base is None:
        return Reuse({}, frozenset(), {}, {})
    pieces = {piece.info.slice: piece for entry in base.manifest.tensors.values() for piece in entry.slices}
    kept: dict[SliceKey, PlacedSlice] = {}
    patchable: dict[SliceKey, PlacedSlice] = {}
    moved: dict[SliceKey, str] = {}
    total = 0
    for info in stored:
        total += info.nbytes
        piece = pieces.get(info.slice)
        if piece is None:
            continue
        damaged = next((e.object for e in piece.extents if is_distrusted(e.object, base.distrusted)), None)
        if damaged is None and piece.info == info:
            kept[info.slice] = piece
        elif damaged is None:
            if _may_be_patched(info, piece):
                patchable[info.slice] = piece
        elif piece.info == info:
            moved[info.slice] = f"{damaged} is marked damaged"
    given_up = _given_up(kept.values(), patchable.values(), base.manifest)
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
    patchable = {
        key: piece
        for key, piece in patchable.items()
        if not any(extent.object in given_up for extent in piece.extents)
    }
    for key in _due_for_writing(patchable.values(), base, total):
        del patchable[key]
    twins = _due_for_a_twin(kept.values(), base, total) if base.twins else frozenset()
    return Reuse(kept, twins, patchable, moved)


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


def _may_be_patched(info: SliceInfo, piece: PlacedSlice) -> bool:
    same = (info.dtype, info.global_shape, info.nbytes) == (
        piece.info.dtype, piece.info.global_shape, piece.info.nbytes,
    )  # fmt: skip
    return same and patch_room(piece) > 0


def _given_up(
    kept: Iterable[PlacedSlice], patchable: Iterable[PlacedSlice], manifest: Manifest
) -> dict[str, str]:
    """Objects not worth keeping, with the reason.

    What may be patched counts as in use. Whether it is patched only its writer knows; if it was written whole
    after all, the next save sees that its old bytes are dead.
    """
    live: Counter[str] = Counter()
    for piece in (*kept, *patchable):
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
        if piece.twin is None and not piece.patches and piece.info.nbytes
        and base.c - owner(piece.object) >= TWIN_AGE
    ]  # fmt: skip
    lonely.sort(key=lambda p: (owner(p.object), p.info.slice.key, p.info.slice.offsets))
    return _fair_share(lonely, base.c, int(total * TWIN_SHARE))


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
