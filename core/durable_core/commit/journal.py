"""L3. Reading and extending the journal: the only place where anything becomes true.

Two primitives suffice: create-if-absent of the next slot, and get. No listing, no clock, no
check-then-act. A record that *is* created in slot n was judged against exactly the n records before
it, because it could only be created while the slot was empty, and the slots before it are full.

A record sent without an answer leaves its slot *in doubt*. Doubt ends only when the slot is
occupied, by that same record or by another; reading the slot empty proves nothing, for the request
may still be on its way. Until then the writer appends nothing further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from durable_core.commit.effects import Get, ListKeys, NewId, Program, PutIfAbsent, SyncTail, Wait, WallTime
from durable_core.commit.fence import refusal_error
from durable_core.commit.fold import AUTHORITY, Table, Verdict, apply, judge
from durable_core.commit.state import RunState
from durable_core.errors import InDoubt, JournalBrokenError, LostSlot, TierError, TierUnavailable
from durable_core.format import layout
from durable_core.format.record import Kind, Record, decode, encode, record_digest
from durable_core.types import Token

#: Seconds before the second attempt at a slot; doubled for each one after it.
RETRY_SECONDS = 0.05

#: Slots that one append may lose to others before it gives up; each loss is someone else's progress.
MAX_LOST = 64

#: Kinds that rest on a choice: losing the slot means choosing again, not sending the same again.
CLAIMS = frozenset({Kind.RUN_CREATED, Kind.GENERATION_STARTED, Kind.CONTROLLER_CLAIMED, Kind.RUN_FORKED})


@dataclass(frozen=True)
class Void:
    """A record without authority: kept in the journal, reported, without effect."""

    seq: int
    kind: Kind
    generation: int
    launch_id: str
    reason: str


@dataclass(frozen=True)
class View:
    """The journal as one process knows it: slots ``0 .. next_seq - 1`` folded.

    ``tail``: digest of the last record (``""`` when there is none). ``doubt``: a record this process
    sent to slot ``next_seq`` without learning whether it arrived. ``replaced``: the run as the record that
    started the current generation found it, with the generation that it replaced.
    """

    state: RunState = field(default_factory=RunState)
    next_seq: int = 0
    tail: str = ""
    voids: tuple[Void, ...] = ()
    doubt: Record | None = None
    table: Table = field(default_factory=lambda: AUTHORITY, repr=False, compare=False)
    replaced: RunState = field(default_factory=RunState, repr=False, compare=False)


EMPTY = View()


class AppendInDoubt(InDoubt):
    """The slot could not be settled. ``view.doubt`` is the record; the next append settles it first."""

    def __init__(self, message: str, view: View) -> None:
        super().__init__(message, hint="training goes on; the doubt is settled before the next record")
        self.view = view


@dataclass(frozen=True)
class Draft:
    """A record before it has a place. ``op_id`` empty: a fresh one, kept over all retries."""

    kind: Kind
    payload: Mapping[str, Any]
    generation: int
    launch_id: str
    epoch: int = 0
    op_id: str = ""

    @staticmethod
    def by(token: Token, kind: Kind, payload: Mapping[str, Any]) -> Draft:
        """A worker's record."""
        return Draft(kind, payload, token.generation, token.launch_id)


def absorb(view: View, data: bytes) -> tuple[View, Record, Verdict]:
    """Fold the bytes found in slot ``view.next_seq``.

    Raises ``JournalBrokenError`` when they do not continue the hash chain, ``FormatError`` and
    ``UnknownVersionError`` as ``record.decode``.
    """
    key = layout.journal_key(view.next_seq)
    record = decode(data, key=key)
    if record.prev != view.tail:
        raise JournalBrokenError(
            key,
            f"continues {record.prev or 'nothing'}, not the record before it ({view.tail or 'none'})",
            hint="the journal was edited or mixed with another run's; restore it from a copy",
        )
    state, verdict = apply(view.state, record, view.table)
    voids = view.voids
    if not verdict.effective:
        lack = Void(record.seq, record.kind, record.generation, record.launch_id, verdict.reason)
        voids = (*voids, lack)
    started = record.kind is Kind.GENERATION_STARTED and verdict.effective
    replaced = view.state if started else view.replaced
    fresh = View(state, view.next_seq + 1, record_digest(data), voids, None, view.table, replaced)
    return fresh, record, verdict


def replay(view: View = EMPTY) -> Program[View]:
    """Probe forward from ``view`` to the tail, and make what was found durable before returning.

    A doubt ends here when its slot turns out to be occupied; an empty slot leaves it open.
    """
    start = view.next_seq
    while True:
        data = yield Get(layout.journal_key(view.next_seq))
        if data is None:
            break
        view, _, _ = absorb(view, data)
    if view.next_seq > start:
        yield SyncTail()
    return view


def replay_whole(view: View = EMPTY) -> Program[View]:
    """``replay``, for whoever is about to build on the tail: an empty slot with records beyond it is a
    record that was lost, not the tail. ``JournalBrokenError`` names it.

    The listing is a belt: one that lags shows fewer records, and then this is ``replay``.
    """
    listed = yield ListKeys(layout.JOURNAL)
    view = yield from replay(view)
    beyond = [
        seq for key in listed if (seq := layout.parse_journal_key(key)) is not None and seq >= view.next_seq
    ]
    if beyond:
        raise JournalBrokenError(
            layout.journal_key(view.next_seq),
            f"is missing, and {len(beyond)} later records are there, up to {max(beyond)}",
            hint="put the file back from a copy; nothing can be added to a journal with a hole",
        )
    return view


def settle(view: View, *, attempts: int = 5, abandon: bool = False) -> Program[View]:
    """End a doubt by occupying its slot: with the same record, or (``abandon``) with a noop.

    Returns the view after the slot, whoever holds it now; whether the doubted record counted, the
    state says. ``AppendInDoubt`` when the slot could not be settled in ``attempts``.
    """
    if view.doubt is None:
        return view
    record = view.doubt
    if abandon:
        op_id = yield NewId()
        record = replace(record, op_id=op_id, kind=Kind.NOOP, payload={"reason": "abandons a doubt"})
    fresh, _ = yield from _occupy(view, record, attempts)
    return fresh


def append(view: View, draft: Draft, *, attempts: int = 5, exact: bool = False) -> Program[View]:
    """Append one record at the tail; returns the view that ends with it, effective.

    Authority is judged at the tail before anything is sent, and again whenever another record took
    the slot. Raises ``Fenced``, ``Superseded`` or ``RunEnded`` (stop), ``RecordRefused`` (the record
    would be void), ``LostSlot`` for claims and with ``exact`` (the caller must decide again),
    ``AppendInDoubt``, or the ``TierError`` of a slot that could not be written and is not in doubt.
    """
    decided_at = view.next_seq
    view = yield from settle(view, attempts=attempts)
    op_id = draft.op_id or (yield NewId())
    for _ in range(MAX_LOST):
        now = yield WallTime()
        record = Record(
            seq=view.next_seq,
            generation=draft.generation,
            epoch=draft.epoch,
            launch_id=draft.launch_id,
            op_id=op_id,
            kind=draft.kind,
            payload=draft.payload,
            prev=view.tail,
            time=now,
        )
        refusal = judge(view.state, record, view.table)
        if refusal is not None:
            raise refusal_error(view.state, record, refusal, moved=view.next_seq > decided_at)
        view, ours = yield from _occupy(view, record, attempts)
        if ours:
            return view
        view = yield from replay(view)
        if exact or draft.kind in CLAIMS:
            # authority first: a superseded launch must hear that, not "try again"
            refusal = judge(view.state, record, view.table)
            if refusal is not None:
                raise refusal_error(view.state, record, refusal, moved=True)
            raise LostSlot(f"{draft.kind.value}: slot {record.seq} went to another record")
    raise LostSlot(f"{draft.kind.value}: lost {MAX_LOST} slots in a row")


def _occupy(view: View, record: Record, attempts: int) -> Program[tuple[View, bool]]:
    """Get slot ``view.next_seq`` occupied; ``True`` when it holds ``record`` (or the doubt) of ours.

    Every attempt sends the same bytes to the same slot, so an earlier attempt that arrives late is
    the same record. Once one attempt is in doubt, no later failure clears it, however clean.
    """
    data = encode(record)
    mine = {record.op_id} | ({view.doubt.op_id} if view.doubt is not None else set())
    doubt, failure = view.doubt, TierUnavailable(f"slot {record.seq} cannot be read back")
    for attempt in range(attempts):
        if attempt:
            yield Wait(RETRY_SECONDS * 2 ** (attempt - 1))
        try:
            found = yield from _put_or_read(layout.journal_key(record.seq), data)
        except InDoubt:
            doubt = doubt or record
            found = yield from _peek(layout.journal_key(record.seq))
        except TierUnavailable as error:
            failure = error
            continue
        except TierError:
            if doubt is None:
                raise
            break  # full or denied: trying again will not help, and the doubt remains
        if found is not None:
            fresh, holder, _ = absorb(view, found)
            return fresh, holder.op_id in mine
    if doubt is None:
        raise failure
    raise AppendInDoubt(
        f"slot {record.seq}: it is unknown whether {record.kind.value} arrived", replace(view, doubt=doubt)
    )


def _put_or_read(key: str, data: bytes) -> Program[bytes | None]:
    """The bytes that now stand in the slot, durably; ``None`` when the store shows nothing yet."""
    if (yield PutIfAbsent(key, data)):
        return data
    found: bytes | None = yield Get(key)
    if found is not None:
        yield SyncTail()
    return found


def _peek(key: str) -> Program[bytes | None]:
    """As ``_put_or_read`` after a lost acknowledgement, without sending; ``None`` if that fails too."""
    try:
        found: bytes | None = yield Get(key)
        if found is not None:
            yield SyncTail()
    except TierError:
        return None
    return found
