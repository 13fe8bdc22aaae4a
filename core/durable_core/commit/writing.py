"""L3. One writer's part of a checkpoint: its offer, its shard, its ledger segment, its receipt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from durable_core.commit.effects import Confirm, Describe, Get, Program, WriteShard, WrittenShard
from durable_core.commit.machine import Event, Walk
from durable_core.commit.objects import poll, put_document
from durable_core.commit.plan import assign
from durable_core.commit.request import SaveRequest
from durable_core.commit.state import CheckpointInfo
from durable_core.commit.watch import Watch
from durable_core.errors import CommitAborted
from durable_core.format import digests
from durable_core.format import receipt as receipts
from durable_core.format.layout import CheckpointName
from durable_core.format.receipt import LedgerSegment, Offer, Receipt
from durable_core.types import PlacedSlice, SliceInfo, SliceKey

D = TypeVar("D")


@dataclass(frozen=True)
class Attempt:
    """One allocated checkpoint on its way; ``after`` is the parent's step."""

    request: SaveRequest
    info: CheckpointInfo
    after: int | None

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.info.generation, self.info.c, self.info.nonce)


def write_part(walk: Walk, attempt: Attempt, watch: Watch) -> Program[Receipt]:
    """Offer, shard, ledger segment, receipt: all durable when this returns."""
    request, name = attempt.request, attempt.name
    offered: tuple[SliceInfo, ...] = ()
    if len(request.roles) == 1 and request.slices is not None:
        wanted = _without_reused(request, request.slices)
    elif len(request.roles) == 1:
        offered = yield from _describe(request)
        wanted = tuple(info.slice for info in offered)
    else:
        offered = yield from _describe(request)
        wanted = yield from _agree(attempt, offered, watch)
        walk.on(Event.OFFER)
    written: WrittenShard | None = None
    if wanted:
        written = yield WriteShard(name.shard(request.role), wanted)
    offered = offered or (yield from _describe(request))  # hashed while it was being written
    yield Confirm()  # the receipt is what says that these bytes are the state at this step
    walk.on(Event.WRITE)
    segment = yield from _put_segment(attempt)
    receipt = Receipt(
        role=request.role,
        generation=name.generation,
        c=name.c,
        step=request.step,
        offered=offered,
        placed=_placed(wanted, offered, written, request.role),
        objects=() if written is None else (written.object,),
        documents=request.documents,
        ledger=segment,
    )
    yield from put_document(name.receipt(request.role), receipts.encode_receipt(receipt))
    walk.on(Event.RECEIPT)
    return receipt


def _describe(request: SaveRequest) -> Program[tuple[SliceInfo, ...]]:
    infos: tuple[SliceInfo, ...] = yield Describe()
    keep = set(_without_reused(request, tuple(info.slice for info in infos)))
    return tuple(info for info in infos if info.slice in keep)


def _without_reused(request: SaveRequest, slices: tuple[SliceKey, ...]) -> tuple[SliceKey, ...]:
    reused = {piece.info.slice for piece, _ in request.reuses}
    return tuple(piece for piece in slices if piece not in reused)


def _agree(
    attempt: Attempt, offered: tuple[SliceInfo, ...], watch: Watch
) -> Program[tuple[SliceKey, ...]]:
    """Put this writer's offer, read everyone's, and take from them what is this writer's to write."""
    request, name = attempt.request, attempt.name
    own = Offer(
        role=request.role,
        generation=name.generation,
        c=name.c,
        step=request.step,
        slices=offered,
        documents={doc: receipts.document_digest(value) for doc, value in request.documents.items()},
    )
    yield from put_document(name.offer(request.role), receipts.encode_offer(own))
    found = yield from collect(attempt, name.offer, receipts.decode_offer, own, watch)
    for role, offer in found.items():
        if (offer.role, offer.step) != (role, request.step):
            raise CommitAborted(f"{role} offers step {offer.step} as {offer.role}, not {request.step}")
    return assign({role: found[role].slices for role in request.roles})[request.role]


def _put_segment(attempt: Attempt) -> Program[LedgerSegment | None]:
    request = attempt.request
    if request.ledger is None:
        return None
    rows = request.ledger(attempt.after)
    key = attempt.name.ledger(request.role)
    yield from put_document(key, rows.data)
    return LedgerSegment(key, digests.sha256(rows.data), rows.samples)


def _placed(
    wanted: tuple[SliceKey, ...], offered: tuple[SliceInfo, ...], written: WrittenShard | None, role: str
) -> tuple[PlacedSlice, ...]:
    """Where each slice written lies. A key of this role alone is offered under its shared name."""
    if written is None:
        return ()
    infos = {info.slice: info for info in offered}
    placed = []
    for piece, begin in zip(wanted, written.begins, strict=True):
        info = infos.get(piece)
        if info is None:
            local = SliceKey(piece.key.removeprefix(f"roles/{role}/"), piece.offsets, piece.shape)
            held = infos[local]
            info = SliceInfo(piece, held.dtype, held.global_shape, held.nbytes, held.xxh3, held.crc32c)
        placed.append(PlacedSlice(info, written.object.key, begin))
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
