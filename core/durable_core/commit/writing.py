"""L3. One writer's part of a checkpoint: its offer, its shard, its ledger segment, its receipt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from durable_core.commit.effects import (
    Confirm,
    Describe,
    Estimate,
    Get,
    Program,
    WriteShard,
    WrittenShard,
)
from durable_core.commit.machine import Event, Walk
from durable_core.commit.objects import poll, put_document
from durable_core.commit.plan import Plan, agreed, object_of, patched, plan
from durable_core.commit.request import SaveRequest
from durable_core.commit.reuse import Base, Reuse, is_distrusted, patch_room
from durable_core.commit.state import CheckpointInfo
from durable_core.commit.watch import Watch
from durable_core.errors import CommitAborted, CorruptError
from durable_core.format import digests
from durable_core.format import manifest as manifests
from durable_core.format import receipt as receipts
from durable_core.format.layout import CheckpointName
from durable_core.format.receipt import LedgerSegment, Offer, Receipt
from durable_core.types import Extent, PlacedSlice, SliceInfo, SliceKey

D = TypeVar("D")
#: Each object written, with the slices of which something is in it, in the order asked for.
Written = tuple[tuple[WrittenShard, tuple[SliceKey, ...]], ...]

#: Share of the bytes that must seem not to need writing before hashing goes ahead of writing.
WORTH_PLANNING = 1 / 16


@dataclass(frozen=True)
class Attempt:
    """One allocated checkpoint on its way; ``parent`` is the one it continues."""

    request: SaveRequest
    info: CheckpointInfo
    parent: CheckpointInfo | None

    @property
    def after(self) -> int | None:
        """The parent's step."""
        return None if self.parent is None else self.parent.step

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.info.generation, self.info.c, self.info.nonce)


def write_part(walk: Walk, attempt: Attempt, watch: Watch) -> Program[tuple[Receipt, Base | None]]:
    """Offer, shard, ledger segment, receipt: all durable when this returns. With the base, if any."""
    request, name = attempt.request, attempt.name
    base = yield from read_base(attempt)
    if not request.held:
        base = yield from _worthwhile(base)
    alone = len(request.roles) == 1
    if alone and base is None and request.slices is not None:
        written = yield from _write(attempt, request.slices, plan({}).reuse)
        offered: tuple[SliceInfo, ...] = yield Describe()  # hashed while it was being written
        planned = plan({request.role: offered})
    else:
        offered = yield Describe()
        if alone:
            planned = plan({request.role: offered}, base)
        else:
            planned = yield from _agree(attempt, offered, base, watch)
            walk.on(Event.OFFER)
        wanted = tuple(info.slice for info in planned.write[request.role])
        written = yield from _write(attempt, wanted, planned.reuse)
    yield Confirm()  # the receipt is what says that these bytes are the state at this step
    walk.on(Event.WRITE)
    segment = yield from _put_segment(attempt)
    receipt = Receipt(
        role=request.role,
        generation=name.generation,
        c=name.c,
        step=request.step,
        offered=offered,
        placed=_placed(planned.write[request.role], written, planned.reuse),
        objects=tuple(each.object for each, _ in written),
        documents=request.documents,
        ledger=segment,
        base=None if base is None else base.digest,
    )
    yield from put_document(name.receipt(request.role), receipts.encode_receipt(receipt))
    walk.on(Event.RECEIPT)
    return receipt, base


def read_base(attempt: Attempt) -> Program[Base | None]:
    """The parent's manifest and what the allocation says of damage; ``None`` when there is no parent, or
    when its manifest is damaged (then everything is written)."""
    parent, info, known = attempt.parent, attempt.info, attempt.request.known
    if parent is None or is_distrusted(parent.manifest, info.distrusted):
        return None
    if known is not None and known.digest == parent.manifest_digest:
        manifest = known.manifest
    else:
        data = yield Get(parent.manifest)
        if data is None:
            return None
        try:
            manifests.check_digest(data, parent.manifest_digest, key=parent.manifest)
            manifest = manifests.decode(data, key=parent.manifest)
        except CorruptError:
            return None  # restore and scrub tell of it; the next manifest does not depend on it
    request = attempt.request
    return Base(
        manifest, parent.manifest_digest, info.c, info.distrusted, twins=request.twins, held=request.held
    )


def _worthwhile(base: Base | None) -> Program[Base | None]:
    """``base``, unless nearly everything has changed: then nothing of it is referred to, so that old objects
    are not held for a few bytes, and a single writer can write at once and hash meanwhile."""
    if base is None:
        return None
    pieces = tuple(piece for entry in base.manifest.tensors.values() for piece in entry.slices)
    unchanged: float = yield Estimate(pieces)
    return base if unchanged >= WORTH_PLANNING else None


def _write(attempt: Attempt, wanted: tuple[SliceKey, ...], found: Reuse) -> Program[Written]:
    """What changed, then what did not, each as one object if there is any."""
    objects: dict[str, list[SliceKey]] = {}
    for piece in sorted(wanted, key=found.lasting):  # what may be patched comes first, with the parent's slot
        key = object_of(piece, found, attempt.name, attempt.request.role)
        objects.setdefault(key, []).append(piece)
    written = []
    for key, pieces in objects.items():
        before = {piece: found.patchable[piece] for piece in pieces if piece in found.patchable}
        room = {piece: (placed, patch_room(placed)) for piece, placed in before.items()}
        shard: WrittenShard = yield WriteShard(key, tuple(pieces), room)
        written.append((shard, tuple(pieces)))
    return tuple(written)


def _agree(
    attempt: Attempt, offered: tuple[SliceInfo, ...], base: Base | None, watch: Watch
) -> Program[Plan]:
    """Put this writer's offer, read everyone's, and plan on them."""
    request, name = attempt.request, attempt.name
    own = Offer(
        role=request.role,
        generation=name.generation,
        c=name.c,
        step=request.step,
        slices=offered,
        documents={doc: receipts.document_digest(value) for doc, value in request.documents.items()},
        base=None if base is None else base.digest,
    )
    yield from put_document(name.offer(request.role), receipts.encode_offer(own))
    found = yield from collect(attempt, name.offer, receipts.decode_offer, own, watch)
    for role, offer in found.items():
        if (offer.role, offer.step) != (role, request.step):
            raise CommitAborted(f"{role} offers step {offer.step} as {offer.role}, not {request.step}")
    return plan({role: found[role].slices for role in request.roles}, agreed(found, base))


def _put_segment(attempt: Attempt) -> Program[LedgerSegment | None]:
    request = attempt.request
    if request.ledger is None:
        return None
    rows = request.ledger(attempt.after)
    key = attempt.name.ledger(request.role)
    yield from put_document(key, rows.data)
    return LedgerSegment(key, digests.sha256(rows.data), rows.samples)


def _placed(wanted: Sequence[SliceInfo], written: Written, found: Reuse) -> tuple[PlacedSlice, ...]:
    """Where each slice lies of which something was written."""
    at = {
        piece: (shard.object.key, begin, patch)
        for shard, pieces in written
        for piece, begin, patch in zip(pieces, shard.begins, shard.patches, strict=True)
    }
    placed = []
    for info in wanted:
        key, begin, patch = at[info.slice]
        if info.slice in found.twins:
            placed.append(found.kept[info.slice]._replace(twin=Extent(key, begin, info.nbytes, info.xxh3)))
        elif patch is not None:
            placed.append(patched(info, found.patchable[info.slice], patch))
        else:
            placed.append(PlacedSlice(info, key, begin))
    return tuple(placed)


def collect(
    attempt: Attempt, key_of: Callable[[str], str], decode: Callable[..., D], own: D, watch: Watch
) -> Program[dict[str, D]]:
    """Every role's document of one kind, by identity; this role's own is in hand.

    ``CommitAborted`` names those missing at the deadline, or the writer's failure that ended the save.
    """
    request = attempt.request
    offers = isinstance(own, Offer)
    deadlines = request.deadlines
    found: dict[str, D] = {request.role: own}

    def look() -> Program[bool | None]:
        for role in request.roles:
            if role not in found:
                data = yield Get(key_of(role))
                if data is not None:
                    found[role] = decode(data, key=key_of(role))
        if len(found) == len(request.roles):
            return True
        yield from watch.look()
        return None

    seconds = deadlines.offers_seconds if offers else deadlines.receipts_seconds
    if not (yield from poll(look, seconds=seconds)):
        missing = ", ".join(role for role in request.roles if role not in found)
        raise CommitAborted(f"no {'offer' if offers else 'receipt'} of {missing} by the deadline")
    return found
