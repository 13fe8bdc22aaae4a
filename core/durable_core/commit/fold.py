"""L3. The run's state is a pure fold over its journal, and this is the fold.

``AUTHORITY`` is the one table of who may write what: for each record kind, the rules that must all
hold in the state before it, and its effect. A record without authority is *void*: kept in the
journal, reported, without effect. So check and publish are one act: whatever a writer believed when
it sent a record, only the record's place in the journal decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from durable_core.commit import rules as r
from durable_core.commit.rules import Cause, Refusal, Rule
from durable_core.commit.state import CheckpointInfo, Failure, Fork, Life, Phase, RunState, Summary, Terminal
from durable_core.commit.vector import Vector
from durable_core.format.layout import CheckpointName
from durable_core.format.record import Kind, Record
from durable_core.types import CheckpointState, Promise

__all__ = ["AUTHORITY", "Cause", "CheckpointInfo", "Refusal", "Row", "RunState", "Table", "Verdict", "apply"]

Effect = Callable[[RunState, Record], RunState]


@dataclass(frozen=True)
class Verdict:
    """``reason`` is empty for an effective record; ``cause`` says what its writer has to do."""

    effective: bool
    reason: str = ""
    cause: Cause | None = None


@dataclass(frozen=True)
class Row:
    rules: tuple[Rule, ...]
    effect: Effect


Table = Mapping[Kind, Row]

_EFFECTIVE = Verdict(True)


# --- effects ---------------------------------------------------------------------------------


def _create(state: RunState, record: Record) -> RunState:
    p = record.payload
    spec = p["spec"]
    return replace(
        state,
        run_id=p["run_id"],
        spec=spec,
        spec_digest=p["spec_digest"],
        seed=p["seed"],
        promise=_promise(p["promise"], Promise.DISTRIBUTION),
        target=spec.get("target"),
    )


def _start(state: RunState, record: Record) -> RunState:
    p = record.payload
    members = tuple(p["members"])
    superseded = state.superseded - {record.launch_id}
    if state.launch_id and state.launch_id != record.launch_id:
        superseded |= {state.launch_id}
    started = replace(
        state,
        generation=record.generation,
        launch_id=record.launch_id,
        active=True,
        superseded=superseded,
        members=members,
        topology=p.get("topology"),
        restore_point=p["restore_point"],
        head=p["restore_point"],
        draining=None,
        pending_fork=None,
        phase=None,
        lives=state.lives.append(
            Life(
                record.generation,
                record.time,
                members=members,
                restore_point=p["restore_point"],
                asked=bool(p.get("asked")),
            )
        ),
    )
    fork = state.pending_fork
    if fork is None or fork.launch_id != record.launch_id:
        return started
    return replace(
        started,
        spec=fork.spec,
        spec_digest=fork.spec_digest,
        promise=_promise(fork.spec.get("promise"), state.promise),
        target=fork.spec.get("target"),
        forks=(*state.forks, fork),
    )


def _fork(state: RunState, record: Record) -> RunState:
    p = record.payload
    fork = Fork(
        seq=record.seq,
        generation=record.generation,
        launch_id=record.launch_id,
        parent_spec=p["parent_spec"],
        spec=p["spec"],
        spec_digest=p["spec_digest"],
        diff=p["diff"],
        origin=p["from"],
        external=p["external"],
    )
    return replace(state, pending_fork=fork)


def _claim_controller(state: RunState, record: Record) -> RunState:
    reconciler = record.epoch if record.payload.get("reconciles", False) else state.reconciler
    return replace(state, epoch=record.epoch, controller=record.launch_id, reconciler=reconciler)


def _enter(state: RunState, record: Record) -> RunState:
    phase = Phase(record.seq, record.generation, record.op_id, record.payload, record.time)
    return replace(state, phase=phase)


def _allocate(state: RunState, record: Record) -> RunState:
    p = record.payload
    info = CheckpointInfo(
        c=state.next_c,
        step=p["step"],
        generation=record.generation,
        parent=p["parent"],
        nonce=record.op_id[:8],
        time=record.time,
        adopted=(p.get("adopted") or {}).get("generation"),
        distrusted=state.distrusted,
    )
    return replace(state, checkpoints=state.checkpoints.added(info))


def _commit(state: RunState, record: Record) -> RunState:
    p = record.payload
    ledger = p["ledger"]
    info = replace(
        state.checkpoints[p["c"]],
        state=CheckpointState.COMMITTED,
        parent=p["parent"],
        manifest=p["manifest"],
        manifest_digest=p["manifest_digest"],
        tiers=tuple(p["tiers"]),
        cursor_digest=p["cursor_digest"],
        bytes=p["bytes"],
        bytes_written=p["bytes_written"],
        reuses=tuple(p["reuses"]),
        ledger=None if ledger is None else (ledger["key"], ledger["digest"]),
        seq=record.seq,
        time=record.time,
    )
    return replace(state, checkpoints=state.checkpoints.updated(info), head=info.c, commits=state.commits + 1)


def _change(run: RunState, record: Record, /, **changes: Any) -> RunState:
    """Change the row of the checkpoint that the record names."""
    info = replace(run.checkpoints[record.payload["c"]], **changes)
    return replace(run, checkpoints=run.checkpoints.updated(info))


def _abort(state: RunState, record: Record) -> RunState:
    return _change(state, record, state=CheckpointState.ABORTED, note=record.payload["reason"])


def _corrupt(state: RunState, record: Record) -> RunState:
    p = record.payload
    info = state.checkpoints[p["c"]]
    whole = CheckpointName(info.generation, info.c, info.nonce).prefix
    distrusted = frozenset(p.get("objects", ())) or {whole}
    return _change(
        replace(state, distrusted=state.distrusted | distrusted),
        record,
        state=CheckpointState.CORRUPT,
        note=p.get("reason", ""),
        corrupt_objects=tuple(dict.fromkeys((*info.corrupt_objects, *p.get("objects", ())))),
        known_good=False,
    )


def _retire(state: RunState, record: Record) -> RunState:
    return _change(state, record, state=CheckpointState.RETIRED, note=record.payload.get("reason", ""))


def _tier_added(state: RunState, record: Record) -> RunState:
    tiers = state.checkpoints[record.payload["c"]].tiers
    tier = record.payload.get("tier", "")
    return state if tier in tiers else _change(state, record, tiers=(*tiers, tier))


def _known_good(state: RunState, record: Record) -> RunState:
    return _change(state, record, known_good=True, evidence=record.payload.get("evidence"))


def _failure(state: RunState, record: Record) -> RunState:
    line = Failure(record.seq, record.generation, record.op_id, record.payload, record.time)
    return replace(state, failures=state.failures.append(line))


def _lower_promise(state: RunState, record: Record) -> RunState:
    return replace(state, promise=_promise(record.payload["to"], state.promise))


def _end(outcome: str) -> Effect:
    """Every end revokes the generation with the same record (FENCE-06)."""

    def effect(state: RunState, record: Record) -> RunState:
        terminal = Terminal(outcome, record.seq, record.payload.get("c"), record.payload)
        lives = _living(state, ended=True)
        return replace(state, terminal=terminal, active=False, draining=None, phase=None, lives=lives)

    return effect


def _extend(state: RunState, record: Record) -> RunState:
    return replace(state, terminal=None, summary=None, target=record.payload["target"])


def _summarize(state: RunState, record: Record) -> RunState:
    return replace(state, summary=Summary(record.seq, record.payload["key"], record.payload["digest"]))


def _draining(state: RunState, record: Record) -> RunState:
    lives = _living(state, drain_step=record.payload["step"])
    return replace(state, draining=record.payload, lives=lives)


def _living(state: RunState, **changes: Any) -> Vector[Life]:
    """The lives with the newest one changed; a run may end before its first generation."""
    last = len(state.lives) - 1
    return state.lives.replace(last, replace(state.lives[last], **changes)) if state.lives else state.lives


def _quarantine(state: RunState, record: Record) -> RunState:
    return replace(state, quarantines=(*state.quarantines, record.payload))


def _promise(value: object, otherwise: Promise) -> Promise:
    return next((promise for promise in Promise if promise.value == value), otherwise)


# --- the table -------------------------------------------------------------------------------

_WORKER = (r.run_exists, r.same_generation, r.not_terminal, r.same_launch, r.generation_active)
_CONTROLLER = (r.run_exists, r.launch_not_superseded, r.same_epoch)
_CLAIM = (r.run_exists, r.next_generation, r.launch_not_superseded, r.not_terminal)

AUTHORITY: Table = {
    Kind.RUN_CREATED: Row((r.run_is_new,), _create),
    Kind.GENERATION_STARTED: Row(
        (*_CLAIM, r.restore_point_usable, r.cold_start_allowed, r.follows_fork), _start
    ),
    Kind.RUN_FORKED: Row((*_CLAIM, r.fork_origin_usable), _fork),
    Kind.CONTROLLER_CLAIMED: Row((r.run_exists, r.launch_not_superseded, r.next_epoch), _claim_controller),
    Kind.RUN_STATE: Row((r.run_exists, r.keeps_the_state, r.not_terminal, r.same_generation), _enter),
    Kind.CHECKPOINT_ALLOCATED: Row(
        (
            *_WORKER,
            r.number_is_next,
            r.adopts_the_replaced,
            r.adoption_is_first,
            r.no_adoption_in_fork,
        ),
        _allocate,
    ),
    Kind.CHECKPOINT_COMMITTED: Row(
        (
            *_WORKER,
            r.allocated_here,
            r.parent_is_head,
            r.step_exceeds_head,
            r.reuses_the_parents,
            r.no_damage_since,
        ),
        _commit,
    ),
    Kind.CHECKPOINT_ABORTED: Row((*_WORKER, r.still_allocated), _abort),
    Kind.FAILURE: Row(_WORKER, _failure),
    Kind.PROMISE_LOWERED: Row((*_WORKER, r.promise_falls), _lower_promise),
    Kind.RUN_DRAINING: Row(_WORKER, _draining),
    Kind.RUN_SUCCEEDED: Row((*_WORKER, r.final_is_head), _end("succeeded")),
    Kind.RUN_FAILED: Row(_WORKER, _end("failed")),
    Kind.RUN_EXTENDED: Row((r.run_exists, r.run_succeeded), _extend),
    Kind.RUN_CANCELLED: Row((r.run_exists, r.not_terminal, r.principal_allowed), _end("cancelled")),
    Kind.RUN_SUMMARIZED: Row((*_CONTROLLER, r.of_the_end, r.first_summary), _summarize),
    Kind.TIER_ADDED: Row((*_CONTROLLER, r.is_committed), _tier_added),
    Kind.CHECKPOINT_CORRUPT: Row((*_CONTROLLER, r.is_committed), _corrupt),
    Kind.CHECKPOINT_KNOWN_GOOD: Row((*_CONTROLLER, r.is_sound), _known_good),
    Kind.CHECKPOINT_KNOWN_GOOD_REVOKED: Row(
        (*_CONTROLLER, r.is_committed), lambda state, record: _change(state, record, known_good=False)
    ),
    Kind.CHECKPOINT_PINNED: Row(
        (*_CONTROLLER, r.is_committed), lambda state, record: _change(state, record, pinned=True)
    ),
    Kind.CHECKPOINT_UNPINNED: Row(
        (*_CONTROLLER, r.is_committed), lambda state, record: _change(state, record, pinned=False)
    ),
    Kind.CHECKPOINT_RETIRED: Row(
        (
            *_CONTROLLER,
            r.is_committed,
            r.not_head,
            r.not_live_restore_point,
            r.not_fork_origin,
            r.not_pinned,
        ),
        _retire,
    ),
    Kind.QUARANTINE: Row(_CONTROLLER, _quarantine),
    Kind.SCRUBBED: Row(
        (*_CONTROLLER, r.is_committed), lambda state, record: replace(state, scrubs=state.scrubs + 1)
    ),
    Kind.NOOP: Row((), lambda state, record: state),
}


def judge(state: RunState, record: Record, table: Table = AUTHORITY) -> Refusal | None:
    """The first rule that ``record`` breaks in ``state``; ``None`` when it has its authority."""
    for rule in table[record.kind].rules:
        refusal = rule(state, record)
        if refusal is not None:
            return refusal
    return None


def apply(state: RunState, record: Record, table: Table = AUTHORITY) -> tuple[RunState, Verdict]:
    """The state after ``record``, and whether it counted. A void record leaves the state as it was.

    The payload has been checked against ``format.record.PAYLOADS`` when it was decoded.
    """
    refusal = judge(state, record, table)
    if refusal is not None:
        return state, Verdict(False, refusal.reason, refusal.cause)
    return table[record.kind].effect(state, record), _EFFECTIVE
