"""L5. The run as a state machine, in one table: ``(state, event) -> Move``.

Two kinds of events. What is *recorded* the journal has decided already, by the order of its records: it is
legal wherever the run has not ended, for nobody can refuse a fact. What is *observed* is legal only where a
row says so. Nothing leads out of an end.

The fence is the claim of the next generation. It comes when the old group is stopped or out of reach, and not
before the stop (``core/design/0008-launcher.md`` says why): FENCING ends the group, CLAIMED begins the next.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from durable_core.commit.state import RunState
from durable_core.errors import IllegalMove


class State(str, enum.Enum):
    PENDING = "pending"
    PREFLIGHT = "preflight"
    QUEUED = "queued"  # waits for its machines
    STARTING = "starting"  # rendezvous, workers coming up
    RESTORING = "restoring"
    PROBATION = "probation"  # restored, not proven yet
    RUNNING = "running"
    SUSPECT = "suspect"  # an invariant is violated, or unknown
    DRAINING = "draining"  # a planned stop, at the next boundary
    FENCING = "fencing"  # the group is being ended
    DIAGNOSING = "diagnosing"
    BACKOFF = "backoff"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
#: A group is at work, or coming up.
ACTIVE = frozenset(
    {State.STARTING, State.RESTORING, State.PROBATION, State.RUNNING, State.SUSPECT, State.DRAINING}
)


class GroupPhase(str, enum.Enum):
    """What an agent is doing with its group: ``Facts.phase``."""

    PREFLIGHT = "preflight"
    QUEUED = "queued"  # waits for machines to be admitted to
    RENDEZVOUS = "rendezvous"  # waits for the other agents
    STARTING = "starting"  # workers are being started
    UP = "up"  # all of its workers are started
    DRAINING = "draining"  # asked to stop at a boundary
    STOPPING = "stopping"
    STOPPED = "stopped"  # none is left; what ended them is being found out
    BACKOFF = "backoff"
    ENDED = "ended"  # no group will follow


class Event(str, enum.Enum):
    # recorded
    CLAIMED = "claimed"  # a generation was started
    COMPLETED = "completed"
    GAVE_UP = "gave up"
    CANCELLED = "cancelled"
    # observed
    START_REQUESTED = "start requested"
    CHECKS_PASSED = "checks passed"
    CHECK_FAILED = "check failed"
    CHECK_UNCERTAIN = "check failed, perhaps for now"
    NOT_ADMITTED = "not admitted"
    ADMISSION_EXHAUSTED = "admission exhausted"
    JOINED = "joined"
    JOIN_TIMED_OUT = "join timed out"
    RESTORED = "restored"
    CANDIDATE_REFUSED = "candidate refused"
    CANDIDATES_EXHAUSTED = "candidates exhausted"
    PROVEN = "proven"
    DISPROVEN = "disproven"
    DOUBTED = "doubted"
    CLEARED = "cleared"
    CONFIRMED = "confirmed"
    STOP_PLANNED = "stop planned"
    SEALED = "sealed"
    DRAIN_TIMED_OUT = "drain timed out"
    MEMBER_FAILED = "member failed"
    HANG_CONFIRMED = "hang confirmed"
    NUMERICS_INVALID = "numerics invalid"
    STOPPED = "stopped"
    RETRY_ALLOWED = "retry allowed"
    RETRY_REFUSED = "retry refused"
    REPLACING = "replacing"


RECORDED = frozenset({Event.CLAIMED, Event.COMPLETED, Event.GAVE_UP, Event.CANCELLED})


class Effect(str, enum.Enum):
    """What goes with a move. The controller's are idempotent, or under the op_id of the move's record."""

    STORE_EVIDENCE = "store evidence"
    CLAIM = "claim the next generation"
    STORE_MEMBERSHIP = "store membership"
    MAP_ROLES = "map roles to ranks"
    MARK_CORRUPT = "mark the checkpoint corrupt"
    AUDIT_REPLAY = "audit the replay"
    DEMOTE = "demote the restore point, if the evidence is against it"
    DIAGNOSE = "ask every rank for its stacks"
    SNAPSHOT = "snapshot at the next boundary"
    ASK_DRAIN = "ask for the drain"
    ASK_RESTART = "ask for the restart"
    STOP = "stop, and kill after the grace"
    FLUSH = "flush sealed snapshots"
    QUARANTINE = "quarantine"
    BUNDLE = "write the incident bundle"
    END_FAILED = "record the failure of the run"
    REVOKE = "revoke the generation"
    MANIFEST = "post-run manifest"
    SIGNAL = "signal the workers"


#: Who brings an effect about. ``journal``: the record that is the event does.
OWNERS: Mapping[Effect, str] = MappingProxyType(
    {
        Effect.STORE_EVIDENCE: "controller", Effect.DEMOTE: "controller", Effect.DIAGNOSE: "controller",
        Effect.ASK_DRAIN: "controller", Effect.ASK_RESTART: "controller", Effect.QUARANTINE: "controller",
        Effect.BUNDLE: "controller",
        Effect.CLAIM: "agent", Effect.STORE_MEMBERSHIP: "agent", Effect.STOP: "agent", Effect.FLUSH: "agent",
        Effect.END_FAILED: "agent", Effect.MANIFEST: "agent", Effect.SIGNAL: "agent",
        Effect.MAP_ROLES: "worker", Effect.MARK_CORRUPT: "worker", Effect.SNAPSHOT: "worker",
        Effect.AUDIT_REPLAY: "worker",
        Effect.REVOKE: "journal",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Move:
    """``guard``: what must hold for the event, in words; whoever reports the event has looked."""

    target: State
    effects: tuple[Effect, ...] = ()
    guard: str = ""


def _row(target: State, *effects: Effect, guard: str = "") -> Move:
    return Move(target, effects, guard)


_S, _E, _F = State, Event, Effect

_STARTING = {
    (_S.PENDING, _E.START_REQUESTED): _row(_S.PREFLIGHT),
    (_S.PREFLIGHT, _E.CHECKS_PASSED): _row(_S.QUEUED, _F.STORE_EVIDENCE, guard="every check passed"),
    (_S.PREFLIGHT, _E.CHECK_FAILED): _row(
        _S.FAILED, _F.STORE_EVIDENCE, _F.END_FAILED, guard="of a cause that does not pass by itself"
    ),
    (_S.PREFLIGHT, _E.CHECK_UNCERTAIN): _row(_S.BACKOFF, _F.STORE_EVIDENCE, guard="of a cause that may pass"),
    (_S.QUEUED, _E.NOT_ADMITTED): _row(_S.BACKOFF, guard="not within its time"),
    (_S.QUEUED, _E.ADMISSION_EXHAUSTED): _row(_S.FAILED, _F.END_FAILED, guard="not within its budget"),
    (_S.STARTING, _E.JOINED): _row(_S.RESTORING, _F.MAP_ROLES, guard="all members of g before the deadline"),
    (_S.STARTING, _E.JOIN_TIMED_OUT): _row(
        _S.FENCING, _F.DIAGNOSE, _F.BUNDLE, _F.ASK_RESTART, guard="the deadline has passed"
    ),
    (_S.RESTORING, _E.RESTORED): _row(
        _S.PROBATION, guard="the same checkpoint and digest verified on all ranks, or a cold start"
    ),
    (_S.RESTORING, _E.CANDIDATE_REFUSED): _row(_S.RESTORING, _F.MARK_CORRUPT, guard="an older one is left"),
    (_S.RESTORING, _E.CANDIDATES_EXHAUSTED): _row(_S.FAILED, _F.END_FAILED, guard="none is left"),
    (_S.PROBATION, _E.PROVEN): _row(_S.RUNNING, _F.AUDIT_REPLAY, guard="k verified steps"),
    (_S.PROBATION, _E.DISPROVEN): _row(
        _S.FENCING, _F.DEMOTE, _F.BUNDLE, _F.ASK_RESTART, guard="the replay differs from the log"
    ),
}

_WATCHING = {
    (_S.RUNNING, _E.DOUBTED): _row(_S.SUSPECT, _F.DIAGNOSE, guard="beyond the soft limit; nothing is ended"),
    (_S.SUSPECT, _E.CLEARED): _row(_S.RUNNING, guard="every invariant holds"),
    (_S.SUSPECT, _E.CONFIRMED): _row(
        _S.FENCING, _F.BUNDLE, _F.ASK_RESTART, guard="beyond the hard limit, or confirmed"
    ),
    # The requirement has it from RUNNING and SUSPECT; but a notice does not wait for a restore to be proven.
    **{
        (state, _E.STOP_PLANNED): _row(_S.DRAINING, _F.ASK_DRAIN, _F.SNAPSHOT, guard="notice, or eviction")
        for state in ACTIVE - {State.DRAINING}
    },
    (_S.DRAINING, _E.SEALED): _row(_S.FENCING, _F.STOP, guard="planned: no budget is charged"),
    (_S.DRAINING, _E.DRAIN_TIMED_OUT): _row(
        _S.FENCING, _F.BUNDLE, _F.ASK_RESTART, guard="planned: no budget is charged"
    ),
}


def _failing() -> Iterator[tuple[tuple[State, Event], Move]]:
    """From wherever a group is at work."""
    for state in ACTIVE:
        demoted = (_F.DEMOTE,) if state is _S.PROBATION else ()
        yield (state, _E.MEMBER_FAILED), _row(_S.FENCING, *demoted, _F.STOP, _F.BUNDLE)
        yield (
            (state, _E.HANG_CONFIRMED),
            _row(_S.FENCING, *demoted, _F.DIAGNOSE, _F.BUNDLE, _F.ASK_RESTART, guard="beyond the hard limit"),
        )
        yield (state, _E.NUMERICS_INVALID), _row(_S.FENCING, *demoted, _F.BUNDLE, _F.ASK_RESTART)


_RECOVERING = {
    (_S.FENCING, _E.STOPPED): _row(
        _S.DIAGNOSING, _F.FLUSH, guard="every member is gone, or out of reach and fenced"
    ),
    (_S.DIAGNOSING, _E.RETRY_ALLOWED): _row(
        _S.BACKOFF, _F.QUARANTINE, _F.BUNDLE, guard="the class allows it and budget is left"
    ),
    (_S.DIAGNOSING, _E.RETRY_REFUSED): _row(
        _S.FAILED, _F.QUARANTINE, _F.BUNDLE, _F.END_FAILED,
        guard="it repeats, the budget is spent, or the class allows none",
    ),
    (_S.BACKOFF, _E.REPLACING): _row(_S.QUEUED, guard="the time is over and a member is to be replaced"),
}  # fmt: skip


def _recorded() -> Iterator[tuple[tuple[State, Event], Move]]:
    for state in State:
        if state in TERMINAL:
            continue
        yield (
            (state, _E.CLAIMED),
            _row(_S.STARTING, _F.CLAIM, _F.STORE_MEMBERSHIP, guard="the whole gang, validly placed"),
        )
        yield (
            (state, _E.COMPLETED),
            _row(_S.SUCCEEDED, _F.REVOKE, _F.MANIFEST, guard="the final commit is durable"),
        )
        yield (state, _E.GAVE_UP), _row(_S.FAILED, _F.REVOKE, _F.BUNDLE)
        yield (
            (state, _E.CANCELLED),
            _row(_S.CANCELLED, _F.REVOKE, _F.SIGNAL, guard="by a principal that the spec names"),
        )


TABLE: Mapping[tuple[State, Event], Move] = MappingProxyType(
    {**_STARTING, **_WATCHING, **dict(_failing()), **_RECOVERING, **dict(_recorded())}
)


def move(state: State, event: Event) -> Move:
    """The move that ``event`` makes in ``state``; ``IllegalMove`` when no row allows it."""
    found = TABLE.get((state, event))
    if found is None:
        end = " has ended and" if state in TERMINAL else ""
        raise IllegalMove(
            f"a run that is {state.value}{end} knows no '{event.value}'",
            hint="look again: what was seen is not of this state",
        )
    return found


def current(run: RunState) -> State:
    """Where the run stands by its journal alone: its end, the newest ``run.state`` of the live generation, or
    that a generation was started and no more is known of it. What is observed leads on from there."""
    if run.terminal is not None:
        return State(run.terminal.outcome)
    if run.phase is not None and run.phase.payload["state"] in State.__members__.values():
        return State(run.phase.payload["state"])
    return State.STARTING if run.active else State.PENDING
