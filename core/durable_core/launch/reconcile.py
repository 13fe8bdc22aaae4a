"""L5. From what is seen now to the event that is due: pure, and level-triggered.

Nothing here remembers. Where the run stands is in its journal (``machine.current``), the rest is looked at
anew every time; so an observation that was lost, repeated or came late changes nothing in the end, and a
second controller that knows nothing but the journal goes on where the first one was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from durable_core.commit.state import RunState
from durable_core.engine.beats import Phase
from durable_core.engine.uncaught import EXIT_NUMERIC
from durable_core.engine.words import Facts
from durable_core.launch.classes import DRAINED, IN_FLIGHT, F
from durable_core.launch.invariants import (
    NUMERIC,
    Invariant,
    Observation,
    Terms,
    Violation,
    class_of,
    failures,
    violations,
    wrong_numbers,
)
from durable_core.launch.machine import Event, GroupPhase, State, current


@dataclass(frozen=True)
class Due:
    """An event that is due, and why. ``failure``: the class of what is asked of the agent, if anything is."""

    event: Event
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    failure: F | None = None


def due(seen: Observation, terms: Terms) -> Due | None:
    """The event that moves the run on from where its journal has it; ``None``: it is where it should be."""
    state = current(seen.run)
    for look in _LOOKS[state]:
        found = look(seen, terms)
        if found is not None:
            return found
    return None


def operation(run: RunState, event: Event) -> str:
    """The op_id of the move: whoever comes to the same event from the same record makes the same one."""
    anchor = "" if run.phase is None else run.phase.op_id
    parts = (run.run_id, str(run.generation), anchor, event.value)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


# --- what is due -----------------------------------------------------------------------------

_GONE = frozenset(
    {
        GroupPhase.STOPPED, GroupPhase.BACKOFF, GroupPhase.RENDEZVOUS, GroupPhase.QUEUED,
        GroupPhase.PREFLIGHT, GroupPhase.ENDED,
    }
)  # fmt: skip
_AGAIN = _GONE - {GroupPhase.STOPPED, GroupPhase.ENDED}
_ENDING = _GONE | {GroupPhase.STOPPING}


def _all_in(seen: Observation, phases: frozenset[GroupPhase]) -> bool:
    return bool(seen.groups) and all(group.phase in phases for group in seen.groups)


def _any_in(seen: Observation, phases: frozenset[GroupPhase]) -> Facts | None:
    return next((group for group in seen.groups if group.phase in phases), None)


def _started(seen: Observation, terms: Terms) -> Due | None:
    return Due(Event.START_REQUESTED, "an agent is there") if seen.facts else None


def _checked(seen: Observation, terms: Terms) -> Due | None:
    found = any(facts.phase != GroupPhase.PREFLIGHT for facts in seen.facts.values())
    return Due(Event.CHECKS_PASSED, "the agent has gone on") if found else None


def _failed(seen: Observation, terms: Terms) -> Due | None:
    """A member ended by itself, or the agent has recorded why it ends the group."""
    for member in seen.members:
        if member.exit not in (None, 0, DRAINED):
            ended = f"rank {member.rank} ended with {member.exit}"
            evidence = {"rank": member.rank, "host": member.host, "exit": member.exit}
            wrong = member.exit == EXIT_NUMERIC
            return Due(Event.NUMERICS_INVALID if wrong else Event.MEMBER_FAILED, ended, evidence)
    ending = _any_in(seen, _ENDING)
    if ending is None:
        return None
    for failure in failures(seen.run):
        kind = class_of(failure)
        if kind in IN_FLIGHT or kind is F.F4:
            continue
        event = Event.NUMERICS_INVALID if kind in NUMERIC else Event.MEMBER_FAILED
        if kind is F.F13 and current(seen.run) is State.PROBATION:
            event = Event.DISPROVEN
        evidence = {"failure": failure.op_id, "class": kind.value, "step": failure.payload.get("step")}
        return Due(event, f"{kind.value} ({kind.title}): {ending.reason or ending.phase}", evidence)
    return None


def _hung(seen: Observation, terms: Terms) -> Due | None:
    for one in violations(seen, terms):
        if one.confirmed and one.invariant is Invariant.PROGRESS:
            return Due(Event.HANG_CONFIRMED, one.reason, _told(one), one.failure or F.F5)
    return None


def _joined(seen: Observation, terms: Terms) -> Due | None:
    if _at_least(seen, frozenset(Phase) - {Phase.INIT}):
        return Due(Event.JOINED, f"all {seen.expected} members are there")
    if seen.in_state_s > terms.join_s:
        there = len([beat for beat in seen.live_beats.values() if beat.phase is not Phase.INIT])
        reason = f"{there} of {seen.expected} members joined within {terms.join_s:g} s"
        return Due(Event.JOIN_TIMED_OUT, reason, {"limit_s": terms.join_s}, F.F18)
    return None


def _restored(seen: Observation, terms: Terms) -> Due | None:
    if not _at_least(seen, frozenset(Phase) - {Phase.INIT, Phase.RESTORE}):
        return None
    c = seen.run.restore_point
    return Due(Event.RESTORED, "a cold start" if c is None else f"every member has restored c{c}")


def _at_least(seen: Observation, phases: frozenset[Phase]) -> bool:
    beats = seen.live_beats
    heard = set(range(seen.expected)) - seen.mute
    return seen.expected > 0 and all(rank in beats and beats[rank].phase in phases for rank in heard)


def restored_step(run: RunState) -> int:
    """The step that the live generation goes on from: its restore point's, or that of what it adopted."""
    steps = [0 if run.restore_point is None else run.checkpoints[run.restore_point].step]
    for info in run.checkpoints.newest_first():
        if info.generation != run.generation:
            break
        if info.adopted is not None:
            steps.append(info.step)
    return max(steps)


def _proven(seen: Observation, terms: Terms) -> Due | None:
    """Steps that every member has done since, with nothing found against them."""
    beats = seen.live_beats
    base, k = restored_step(seen.run), terms.probation_steps
    if not beats or len(beats) < seen.expected - len(seen.mute) or any(wrong_numbers(seen)):
        return None
    steps = min(beat.step for beat in beats.values()) - base
    if steps < k:
        return None
    return Due(Event.PROVEN, f"{steps} verified steps after step {base}", {"base": base, "steps": steps})


def _planned(seen: Observation, terms: Terms) -> Due | None:
    if any(member.exit == DRAINED for member in seen.members):
        return Due(Event.STOP_PLANNED, "a worker has drained")
    if seen.run.draining is not None:
        return Due(Event.STOP_PLANNED, str(seen.run.draining["reason"]))
    draining = _any_in(seen, frozenset({GroupPhase.DRAINING}))
    if draining is not None:
        return Due(Event.STOP_PLANNED, draining.reason or "the agent drains")
    if seen.evict is None:
        return None
    return Due(Event.STOP_PLANNED, seen.evict.reason, {"unfit": asdict(seen.evict)}, F.F6)


def _drained(seen: Observation, terms: Terms) -> Due | None:
    if _any_in(seen, _ENDING) or any(member.exit == DRAINED for member in seen.members):
        return Due(Event.SEALED, "the group has stopped at a boundary")
    if seen.in_state_s > terms.drain_s:
        return Due(Event.DRAIN_TIMED_OUT, f"no boundary within {terms.drain_s:g} s", failure=F.F4)
    return None


def _doubted(seen: Observation, terms: Terms) -> Due | None:
    for one in violations(seen, terms):
        return Due(Event.DOUBTED, one.reason, _told(one))
    return None


def _cleared(seen: Observation, terms: Terms) -> Due | None:
    """Not at once either: what comes and goes would fill the journal."""
    if seen.in_state_s < terms.diagnosis_s or violations(seen, terms):
        return None
    return Due(Event.CLEARED, "every invariant holds")


def _confirmed(seen: Observation, terms: Terms) -> Due | None:
    """Not before the stacks, which were asked for at the suspicion, can be there."""
    if seen.in_state_s < terms.diagnosis_s:
        return None
    hung = _hung(seen, terms)
    return None if hung is None else Due(Event.CONFIRMED, hung.reason, hung.evidence, hung.failure)


def _stopped(seen: Observation, terms: Terms) -> Due | None:
    exited = bool(seen.members) and all(member.exit is not None for member in seen.members)
    if _all_in(seen, _GONE) or exited:
        return Due(Event.STOPPED, "no member is left")
    return None


def _again(seen: Observation, terms: Terms) -> Due | None:
    group = _any_in(seen, _AGAIN)
    return None if group is None else Due(Event.RETRY_ALLOWED, group.reason or "the agent goes on")


def _replacing(seen: Observation, terms: Terms) -> Due | None:
    group = _any_in(seen, frozenset({GroupPhase.QUEUED}))
    return None if group is None else Due(Event.REPLACING, group.reason or "it waits for machines")


def _told(one: Violation) -> dict[str, Any]:
    return {
        "invariant": one.invariant.value, "rank": one.rank, "for_s": round(one.for_s, 3), **one.evidence
    }  # fmt: skip


_Look = Callable[[Observation, Terms], "Due | None"]

#: By state, what is looked for, in this order.
_LOOKS: Mapping[State, tuple[_Look, ...]] = MappingProxyType(
    {
        State.PENDING: (_started,),
        State.PREFLIGHT: (_checked,),
        State.QUEUED: (),  # the claim leads on, and that is a record
        State.STARTING: (_failed, _planned, _hung, _joined),
        State.RESTORING: (_failed, _planned, _hung, _restored),
        State.PROBATION: (_failed, _planned, _hung, _proven),
        State.RUNNING: (_failed, _planned, _doubted),
        State.SUSPECT: (_failed, _planned, _confirmed, _cleared),
        State.DRAINING: (_failed, _hung, _drained),
        State.FENCING: (_stopped,),
        State.DIAGNOSING: (_again,),
        State.BACKOFF: (_replacing,),
        State.SUCCEEDED: (),
        State.FAILED: (),
        State.CANCELLED: (),
    }
)
