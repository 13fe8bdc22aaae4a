"""L3. Saving one checkpoint: the programs of the coordinator and of the other writers.

Each walks its table in ``machine``. Nothing here waits for another process without a deadline, and
no collective is used: writers meet only in the store. The commit record is the commit; whatever
happens before it leaves the previous checkpoint as it was and residue under a prefix of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_core.commit.effects import Program, Reached, Size
from durable_core.commit.fence import token_error
from durable_core.commit.journal import AppendInDoubt, Draft, View, append, replay, settle
from durable_core.commit.machine import COORDINATOR, WRITER, Event, Phase, Walk
from durable_core.commit.objects import poll, put_document
from durable_core.commit.plan import check_receipts, receipt_digests, unite
from durable_core.commit.request import Known, SaveAborted, SaveOutcome, SaveRequest
from durable_core.commit.reuse import Base, Reuse
from durable_core.commit.watch import Watch
from durable_core.commit.writing import Attempt, collect, write_part
from durable_core.errors import (
    CommitAborted,
    CorruptError,
    FencedError,
    LostSlot,
    RecordRefused,
    TierError,
    UsageError,
)
from durable_core.format import ledger as ledgers
from durable_core.format import manifest as manifests
from durable_core.format import receipt as receipts
from durable_core.format.manifest import LedgerRef, Manifest
from durable_core.format.receipt import Receipt
from durable_core.format.record import Kind
from durable_core.types import CheckpointState, CrashPoint, Token

#: Allocations lost to other records before a save is given up.
ALLOCATE_ROUNDS = 16

#: What ends a save and nothing else.
GIVEN_UP = (CommitAborted, CorruptError, TierError, RecordRefused, LostSlot)


# --- the coordinator -------------------------------------------------------------------------


def save_coordinator(view: View, request: SaveRequest) -> Program[SaveOutcome]:
    """Allocate, write, verify, publish, commit.

    Raises ``Fenced``, ``Superseded`` or ``RunEnded`` (stop); ``AppendInDoubt`` when it is unknown
    whether the allocation or the commit arrived (``.view`` settles it before its next record);
    ``SaveAborted`` for everything that leaves the previous checkpoint the newest.
    """
    walk = Walk(COORDINATOR)
    yield Reached(CrashPoint.K0)
    try:
        view, attempt = yield from allocate(view, request)
    except FencedError:
        walk.on(Event.FENCE)
        raise
    except AppendInDoubt:
        raise
    except GIVEN_UP as error:
        walk.on(Event.ABORT)
        raise SaveAborted(f"step {request.step}: {error}", view) from error
    walk.on(Event.ALLOCATE)
    yield Reached(CrashPoint.K1)
    watch = Watch(view, request.token, attempt.info.c, request.given_up)
    try:
        return (yield from _carry_through(walk, attempt, watch))
    except FencedError:
        walk.on(Event.FENCE)
        raise
    except AppendInDoubt:
        walk.on(Event.LOSE_ACK)
        raise
    except GIVEN_UP as error:
        walk.on(Event.ABORT)
        view = yield from _abort(watch.view, attempt, str(error))
        message = f"c{attempt.info.c} at step {request.step}: {error}"
        raise SaveAborted(message, view, attempt.info.c) from error


def _carry_through(walk: Walk, attempt: Attempt, watch: Watch) -> Program[SaveOutcome]:
    """From the allocation to the commit record."""
    request = attempt.request
    own, base = yield from write_part(walk, attempt, watch)
    yield Reached(CrashPoint.K8)
    if len(request.roles) > 1:
        yield Reached(CrashPoint.K20)
    found = yield from collect(attempt, attempt.name.receipt, receipts.decode_receipt, own, watch)
    yield Reached(CrashPoint.K9)
    manifest, bytes_written = yield from _verify(attempt, found, base)
    walk.on(Event.VERIFY)
    yield Reached(CrashPoint.K10)
    data = _encoded(manifest)
    yield from put_document(attempt.name.manifest, data)
    walk.on(Event.PUBLISH)
    yield Reached(CrashPoint.K12)
    digest = manifests.manifest_digest(data)
    outcome = SaveOutcome(
        c=attempt.info.c,
        step=request.step,
        generation=attempt.info.generation,
        manifest_key=attempt.name.manifest,
        manifest_digest=digest,
        bytes=manifest.logical_bytes,
        bytes_written=bytes_written,
        view=watch.view,
        known=Known(digest, manifest),
    )
    return (yield from _commit(walk, manifest, outcome, request))


def allocate(view: View, request: SaveRequest) -> Program[tuple[View, Attempt]]:
    """The next number for this step, continuing the head. Any doubt is settled before it is chosen."""
    view = yield from settle(view)
    view = yield from replay(view)
    for _ in range(ALLOCATE_ROUNDS):
        state = view.state
        error = token_error(state, request.token)
        if error is not None:
            raise error
        if state.head_step is not None and request.step <= state.head_step:
            raise CommitAborted(f"the head, c{state.head}, is at step {state.head_step} already")
        payload: dict[str, Any] = {"c": state.next_c, "step": request.step, "parent": state.head}
        if request.adopted is not None:
            payload["adopted"] = {"generation": request.adopted, "step": request.step}
        draft = Draft.by(request.token, Kind.CHECKPOINT_ALLOCATED, payload)
        try:
            view = yield from append(view, draft, exact=True)
        except LostSlot:
            view = yield from replay(view)
            continue
        parent = None if state.head is None else state.checkpoints[state.head]
        return view, Attempt(request, view.state.checkpoints[state.next_c], parent)
    raise LostSlot(f"lost {ALLOCATE_ROUNDS} races for a number")


def _verify(
    attempt: Attempt, found: Mapping[str, Receipt], base: Base | None
) -> Program[tuple[Manifest, int]]:
    """The manifest that the receipts and what they keep of ``base`` amount to, and the bytes newly written.

    Receipts are checked by identity, against each other's offers, for coverage, and against the sizes
    of the objects that are really there. Nothing of older checkpoints is referred to but what the parent
    refers to: that is why none of it can be collected meanwhile (``rules.reuses_the_parents``).
    """
    request, name = attempt.request, attempt.name
    planned = check_receipts(found, request.roles, name, request.step, base)
    whole = unite(found, request.roles, planned.kept, () if base is None else base.manifest.objects)
    for info in whole.objects:
        nbytes = yield Size(info.key)
        if nbytes != info.nbytes:
            raise CommitAborted(f"{info.key} has {nbytes} bytes instead of {info.nbytes}")
    ledger = yield from _put_ledger_index(attempt, found)
    manifest = Manifest(
        run_id=request.run_id,
        generation=name.generation,
        c=name.c,
        step=request.step,
        parent=attempt.info.parent,
        spec_digest=request.spec_digest,
        promise=request.promise,
        cursor=request.cursor,
        roles=request.roles,
        objects=whole.objects,
        tensors=whole.tensors,
        documents=whole.documents,
        receipts=receipt_digests(found, request.roles),
        counters=request.counters,
        topology={**request.topology, **_groups(attempt, planned.reuse, base)},
        fingerprint=request.fingerprint,
        dataset=request.dataset,
        metrics=request.metrics,
        ledger=ledger,
        consistent=request.consistent and not planned.reuse.held,
    )
    return manifest, whole.bytes_written


def _groups(attempt: Attempt, found: Reuse, base: Base | None) -> dict[str, Any]:
    """The step that each group which is not due is of, from the parent's own account of it."""
    if not found.held or base is None:
        return {}
    before = base.manifest.topology.get("groups", {})
    steps = {group: before.get(group, base.manifest.step) for group in set(found.held.values())}
    return {"groups": dict(sorted(steps.items()))}


def _put_ledger_index(attempt: Attempt, found: Mapping[str, Receipt]) -> Program[LedgerRef | None]:
    segments = {role: receipt.ledger for role, receipt in found.items() if receipt.ledger is not None}
    if not segments:
        return None
    if len(segments) != len(found):
        raise CommitAborted(f"no ledger of {', '.join(sorted(found.keys() - segments.keys()))}")
    info, name = attempt.info, attempt.name
    cursor = attempt.request.cursor
    plain = None if cursor is None else {name: v for name, v in cursor.items() if _is_plain(v)}
    data = ledgers.encode_index(
        ledgers.LedgerIndex(info.generation, info.c, info.step, info.parent, segments, plain)
    )
    yield from put_document(name.ledger_index, data)
    return LedgerRef(name.ledger_index, ledgers.index_digest(data))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _commit(
    walk: Walk, manifest: Manifest, outcome: SaveOutcome, request: SaveRequest
) -> Program[SaveOutcome]:
    """Append the record that is the commit."""
    ledger = manifest.ledger
    payload = {
        "c": outcome.c,
        "step": outcome.step,
        "parent": manifest.parent,
        "manifest": outcome.manifest_key,
        "manifest_digest": outcome.manifest_digest,
        "bytes": outcome.bytes,
        "bytes_written": outcome.bytes_written,
        "tiers": list(request.tiers),
        "cursor_digest": manifest.cursor_digest,
        "reuses": list(manifest.reuses),
        "ledger": None if ledger is None else {"key": ledger.key, "digest": ledger.digest},
    }
    view = yield from append(outcome.view, Draft.by(request.token, Kind.CHECKPOINT_COMMITTED, payload))
    yield Reached(CrashPoint.K13)
    walk.on(Event.COMMIT)
    yield Reached(CrashPoint.K15)
    return SaveOutcome(**{**outcome.__dict__, "view": view})


def _abort(view: View, attempt: Attempt, reason: str) -> Program[View]:
    """Tell the journal, if it can be told; an allocation without an end is harmless residue."""
    payload = {"c": attempt.info.c, "reason": reason}
    try:
        return (yield from append(view, Draft.by(attempt.request.token, Kind.CHECKPOINT_ABORTED, payload)))
    except AppendInDoubt as doubt:
        return doubt.view
    except GIVEN_UP:
        return view


def _encoded(manifest: Manifest) -> bytes:
    try:
        return manifests.encode(manifest)
    except UsageError as error:
        raise CommitAborted(f"the manifest would not be readable: {error}") from error


# --- the other writers -----------------------------------------------------------------------


def save_writer(view: View, request: SaveRequest) -> Program[SaveOutcome]:
    """Wait for the allocation of this step, write this role's part, wait for the commit.

    A failure of this writer's own is told to the others by ``checkpoint.aborted``. Raises ``Fenced``,
    ``Superseded`` or ``RunEnded`` (stop), or ``SaveAborted``, also when the commit has not been seen
    by the deadline: whether it came later, the journal says.
    """
    walk = Walk(WRITER)
    try:
        view, attempt = yield from _await_allocation(view, request)
    except FencedError:
        walk.on(Event.FENCE)
        raise
    except GIVEN_UP as error:
        walk.on(Event.ABORT)
        raise SaveAborted(f"step {request.step} of {request.role}: {error}", view) from error
    walk.on(Event.ALLOCATE)
    watch = Watch(view, request.token, attempt.info.c, request.given_up)
    try:
        yield from write_part(walk, attempt, watch)
        yield Reached(CrashPoint.K8)
        yield from _see_commit(watch, request.deadlines.commit_seconds)
    except FencedError:
        walk.on(Event.FENCE)
        raise
    except GIVEN_UP as error:
        view = watch.view
        if walk.phase is not Phase.RECEIPTED and request.role in view.state.members:
            view = yield from _abort(view, attempt, f"{request.role}: {error}")
        walk.on(Event.ABORT)
        message = f"c{watch.c} at step {request.step}, {request.role}: {error}"
        raise SaveAborted(message, view, watch.c) from error
    walk.on(Event.COMMIT)
    return SaveOutcome.of(watch.view.state.checkpoints[watch.c], watch.view)


def _await_allocation(view: View, request: SaveRequest) -> Program[tuple[View, Attempt]]:
    """Probe the journal until this generation has an open allocation for this step.

    One for a later step means that the coordinator has gone on: this step will not be saved.
    """
    seen = view

    def look() -> Program[Attempt | None]:
        nonlocal seen
        seen = yield from replay(seen)
        error = token_error(seen.state, request.token)
        if error is not None:
            raise error
        for info in seen.state.checkpoints.newest_first():
            if info.generation != request.token.generation:
                break
            if info.adopted != request.adopted:
                continue  # an adoption that was given up: training began before it, and may be behind it
            if info.step < request.step:
                break
            if info.step > request.step:
                raise CommitAborted(f"the coordinator has gone on to step {info.step}")
            if info.step == request.step and info.state is CheckpointState.ALLOCATED:
                parent = None if info.parent is None else seen.state.checkpoints[info.parent]
                return Attempt(request, info, parent)
        if why := request.given_up():
            raise CommitAborted(why)
        return None

    attempt = yield from poll(look, seconds=request.deadlines.allocation_seconds)
    if attempt is None:
        raise CommitAborted(f"the coordinator has not allocated step {request.step} by the deadline")
    return seen, attempt


def wait_commit(view: View, token: Token, c: int, *, seconds: float) -> Program[View]:
    """The view in which ``c`` is committed.

    Raises ``CommitAborted`` when it was aborted or is still open after ``seconds``, or the reason why
    ``token`` may not write any more.
    """
    watch = Watch(view, token, c)
    yield from _see_commit(watch, seconds)
    return watch.view


def _see_commit(watch: Watch, seconds: float) -> Program[None]:
    if not (yield from poll(watch.look, seconds=seconds)):
        raise CommitAborted(f"c{watch.c} has not been committed by the deadline")
