"""L3. Which writer writes what, and whether what they wrote is one whole checkpoint. Pure.

Every writer offers all it holds. What is equal on every replica is written once, shared out by size;
a ``state/`` tensor that differs between replicas is kept for each as ``roles/<role>/state/<path>``.
What is as it was in the parent is not written at all (``reuse``). All writers compute the same plan from
the same offers and the same parent, so none has to be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from durable_core.commit.reuse import Base, Reuse, patch_room, reuse
from durable_core.errors import CommitAborted, CoverageError
from durable_core.format import digests
from durable_core.format.coverage import cover
from durable_core.format.layout import CheckpointName
from durable_core.format.manifest import SHARED, TensorEntry
from durable_core.format.receipt import Offer, Receipt, encode_receipt
from durable_core.types import Extent, ObjectInfo, PlacedSlice, SliceInfo, SliceKey

#: The document that is each role's own even when all are equal.
OWN_DOCUMENT = "role"

Offers = Mapping[str, Sequence[SliceInfo]]


@dataclass(frozen=True)
class Whole:
    """What the receipts of all writers amount to."""

    objects: tuple[ObjectInfo, ...]
    tensors: dict[str, TensorEntry]
    documents: dict[tuple[str, str], Any]
    bytes_written: int


@dataclass(frozen=True)
class Plan:
    """``write``: role -> the slices of which it writes something, by the keys they are stored under, sorted,
    with what they must hash to. ``reuse``: what the parent has of them."""

    write: Mapping[str, tuple[SliceInfo, ...]]
    reuse: Reuse

    @property
    def kept(self) -> tuple[PlacedSlice, ...]:
        """What is referred to where it lies and not written again."""
        return tuple(piece for key, piece in self.reuse.kept.items() if key not in self.reuse.twins)


def plan(offers: Offers, base: Base | None = None) -> Plan:
    """Greedy, largest first, to the holder with the least so far: no writer exceeds the mean by more
    than the size of one slice. Deterministic in the offers and the base."""
    differing = divergent_keys(offers)
    holders: dict[SliceKey, list[str]] = {}
    infos: dict[SliceKey, SliceInfo] = {}
    for role, offered in offers.items():
        for info in offered:
            stored = _renamed(info, role) if info.slice.key in differing else info
            holders.setdefault(stored.slice, []).append(role)
            infos[stored.slice] = stored
    found = reuse([infos[piece] for piece in sorted(infos)], base)
    given: dict[str, list[SliceInfo]] = {role: [] for role in offers}
    load = dict.fromkeys(offers, 0)
    wanted = [piece for piece in infos if piece not in found.kept or piece in found.twins]
    # What only one can write comes first, so that the rest evens it out.
    wanted.sort(key=lambda piece: (len(holders[piece]) > 1, -infos[piece].nbytes, piece))
    for piece in wanted:
        role = min(holders[piece], key=lambda role: (load[role], role))
        given[role].append(infos[piece])
        load[role] += infos[piece].nbytes
    for held in given.values():
        held.sort()
    return Plan({role: tuple(held) for role, held in given.items()}, found)


def agreed(documents: Mapping[str, Offer] | Mapping[str, Receipt], base: Base | None) -> Base | None:
    """``base`` when every writer's offer (or receipt) names it. A writer that could not read the parent's
    manifest plans without; then all do."""
    named = {document.base for document in documents.values()}
    return base if base is not None and named == {base.digest} else None


def divergent_keys(offers: Offers) -> frozenset[str]:
    """Keys of tensors of which some slice is not equal wherever it is held."""
    seen: dict[SliceKey, SliceInfo] = {}
    differing = set()
    for held in offers.values():
        for info in held:
            if seen.setdefault(info.slice, info) != info:
                differing.add(info.slice.key)
    return frozenset(differing)


def check_receipts(
    receipts: Mapping[str, Receipt],
    roles: Sequence[str],
    name: CheckpointName,
    step: int,
    base: Base | None = None,
) -> Plan:
    """The receipts are those of ``roles``, by identity, for this checkpoint and step, and each writer
    wrote what all the offers together, and ``base``, assign to it. ``CommitAborted`` says what is wrong."""
    if missing := sorted(set(roles) - receipts.keys()):
        raise CommitAborted(f"c{name.c}: no receipt of {', '.join(missing)}")
    for role in roles:
        receipt = receipts[role]
        if receipt.role != role:
            raise CommitAborted(f"c{name.c}: the receipt of {role} is signed by {receipt.role}")
        said, meant = (receipt.generation, receipt.c, receipt.step), (name.generation, name.c, step)
        if said != meant:
            raise CommitAborted(f"c{name.c}: {role} speaks of (generation, c, step) {said}, not {meant}")
        for info in receipt.objects:
            if info.key not in (name.shard(role), name.lasting(role)):
                raise CommitAborted(f"c{name.c}: {role} claims to have written {info.key}")
    wanted = plan({role: receipts[role].offered for role in roles}, agreed(receipts, base))
    for role in roles:
        placed = {piece.info.slice: piece.info for piece in receipts[role].placed}
        if placed != {info.slice: info for info in wanted.write[role]}:
            raise CommitAborted(f"c{name.c}: {role} did not write the slices assigned to it")
        for piece in receipts[role].placed:
            if not _is_placed(piece, wanted.reuse, object_of(piece.info.slice, wanted.reuse, name, role)):
                raise CommitAborted(f"c{name.c}: {role} did not place {piece.info.slice.key} as planned")
    return wanted


def object_of(piece: SliceKey, found: Reuse, name: CheckpointName, role: str) -> str:
    """The key of the object that what ``role`` writes of a slice goes into."""
    return name.lasting(role) if found.lasting(piece) else name.shard(role)


def _is_placed(piece: PlacedSlice, found: Reuse, target: str) -> bool:
    """Written whole, or as one patch more on what the parent has, or as the second copy of that."""
    key, last = piece.info.slice, piece.extents[-1]
    if last.object != target:
        return False
    if key in found.twins:
        return piece == found.kept[key]._replace(twin=last)
    before = found.patchable.get(key)
    if before is None or piece.object == target:
        return piece == PlacedSlice(piece.info, target, piece.begin)
    return last.nbytes <= patch_room(before) and piece == patched(piece.info, before, last)


def patched(info: SliceInfo, before: PlacedSlice, patch: Extent) -> PlacedSlice:
    """``before``, made ``info`` by one more patch."""
    return PlacedSlice(
        info, before.object, before.begin, (*before.patches, patch), before.base_xxh3 or before.info.xxh3
    )


def check_coverage(placed: Iterable[PlacedSlice]) -> dict[str, TensorEntry]:
    """Tensor by tensor, each element exactly once, with one dtype and one shape; sorted by key.

    Raises ``CoverageError`` naming the tensor.
    """
    found: dict[str, list[PlacedSlice]] = {}
    for piece in placed:
        found.setdefault(piece.info.slice.key, []).append(piece)
    tensors = {}
    for key in sorted(found):
        pieces = sorted(found[key], key=attrgetter("info.slice"))
        kinds = {(piece.info.dtype, piece.info.global_shape) for piece in pieces}
        if len(kinds) != 1:
            raise CoverageError(key, f"slices of different tensors: {sorted(map(str, kinds))}")
        dtype, global_shape = kinds.pop()
        cover(global_shape, (piece.info.slice for piece in pieces), key=key)
        tensors[key] = TensorEntry(dtype, global_shape, tuple(pieces))
    return tensors


def unite(
    receipts: Mapping[str, Receipt],
    roles: Sequence[str],
    kept: Iterable[PlacedSlice] = (),
    old: Iterable[ObjectInfo] = (),
) -> Whole:
    """The whole that checked receipts make, with the slices kept and what of the ``old`` objects is used.

    Raises ``CoverageError`` when it is not whole.
    """
    written = tuple(info for role in roles for info in receipts[role].objects)
    placed = [piece for role in roles for piece in receipts[role].placed] + list(kept)
    used = {extent.object for piece in placed for extent in piece.extents}
    return Whole(
        objects=(*written, *(info for info in old if info.key in used)),
        tensors=check_coverage(placed),
        documents=_documents({role: receipts[role] for role in roles}),
        bytes_written=sum(info.nbytes for info in written),
    )


def receipt_digests(receipts: Mapping[str, Receipt], roles: Sequence[str]) -> dict[str, str]:
    """Role -> sha256 of its receipt's bytes, as the manifest records it."""
    return {role: digests.sha256(encode_receipt(receipts[role])) for role in roles}


def _documents(receipts: Mapping[str, Receipt]) -> dict[tuple[str, str], Any]:
    """Once where every role has the same document, else for each role; ``role`` always for each."""
    united: dict[tuple[str, str], Any] = {}
    for name in sorted({name for receipt in receipts.values() for name in receipt.documents}):
        holders = {role: receipt for role, receipt in receipts.items() if name in receipt.documents}
        digests = {receipt.document_digests[name] for receipt in holders.values()}
        if name != OWN_DOCUMENT and len(digests) == 1 and len(holders) == len(receipts):
            united[name, SHARED] = next(iter(holders.values())).documents[name]
        else:
            united.update({(name, role): receipt.documents[name] for role, receipt in holders.items()})
    return united


def _renamed(info: SliceInfo, role: str) -> SliceInfo:
    own = f"roles/{role}/"
    if info.slice.key.startswith(own):
        return info
    return info._replace(slice=info.slice._replace(key=own + info.slice.key))
