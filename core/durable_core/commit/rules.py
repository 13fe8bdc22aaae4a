"""L3. Who may write what: the conditions that stand in the authority table of ``fold``.

A rule is a pure function ``(state, record) -> Refusal | None`` over the state *before* the record.
Each says one thing and knows nothing of the others, so that the model check can take any single one
away and show what breaks without it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from durable_core.commit.state import CheckpointInfo, RunState
from durable_core.format.record import Record
from durable_core.types import CheckpointState, Promise


class Cause(str, enum.Enum):
    """Why a record is void, by what its writer has to do about it."""

    STALE = "stale"  # another generation or controller owns the run: stop
    SUPERSEDED = "superseded"  # another launch took the run over: stop
    ENDED = "ended"  # the run is terminal: stop
    RACED = "raced"  # a claim came too late: choose again
    UNFIT = "unfit"  # the state is not as the record needs it: give this one up


@dataclass(frozen=True)
class Refusal:
    cause: Cause
    reason: str


Rule = Callable[[RunState, Record], "Refusal | None"]

_COMMITTED = (CheckpointState.COMMITTED, CheckpointState.CORRUPT)


def _unfit(reason: str) -> Refusal:
    return Refusal(Cause.UNFIT, reason)


# --- the run ---------------------------------------------------------------------------------


def run_is_new(state: RunState, record: Record) -> Refusal | None:
    """No run yet. (Not "slot 0": a doubtful creation may have been settled by a noop there.)"""
    return Refusal(Cause.RACED, f"run {state.run_id} exists already") if state.exists else None


def run_exists(state: RunState, record: Record) -> Refusal | None:
    return None if state.exists else _unfit("no run has been created in this journal")


def not_terminal(state: RunState, record: Record) -> Refusal | None:
    if state.terminal is None:
        return None
    return Refusal(Cause.ENDED, f"the run has {state.terminal.outcome}")


def run_succeeded(state: RunState, record: Record) -> Refusal | None:
    if state.terminal is not None and state.terminal.outcome == "succeeded":
        return None
    return _unfit("only a run that has succeeded can be extended")


def principal_allowed(state: RunState, record: Record) -> Refusal | None:
    """FENCE-09. A spec that names nobody lets nobody but ``operator`` cancel."""
    allowed = state.spec.get("cancel_authority", ("operator",))
    principal = record.payload["principal"]
    return None if principal in allowed else _unfit(f"{principal!r} may not cancel; the spec names {allowed}")


def promise_falls(state: RunState, record: Record) -> Refusal | None:
    known = {promise.value: promise for promise in Promise}
    before, after = known.get(record.payload["from"]), known.get(record.payload["to"])
    if before is state.promise and after is not None and after.strength < before.strength:
        return None
    return _unfit(f"{record.payload['from']} to {record.payload['to']} does not lower {state.promise.value}")


# --- generations -----------------------------------------------------------------------------


def next_generation(state: RunState, record: Record) -> Refusal | None:
    if record.generation == state.generation + 1:
        return None
    return Refusal(Cause.RACED, f"claims generation {record.generation} after {state.generation}")


def launch_not_superseded(state: RunState, record: Record) -> Refusal | None:
    """A process that was fenced and is restarted unaware must not fence the healthy one in turn."""
    if record.launch_id not in state.superseded or record.payload.get("takeover", False):
        return None
    return Refusal(Cause.SUPERSEDED, f"launch {record.launch_id} was superseded by {state.launch_id}")


def restore_point_usable(state: RunState, record: Record) -> Refusal | None:
    c = record.payload["restore_point"]
    if c is None:
        return None
    info = state.checkpoints.get(c)
    if info is None or not info.usable:
        return Refusal(Cause.RACED, f"restore point c{c} is {_status(info)}")
    if record.payload["manifest_digest"] != info.manifest_digest:
        return _unfit(f"names another manifest than c{c} was committed with")
    return None


def cold_start_allowed(state: RunState, record: Record) -> Refusal | None:
    """Without a restore point only while nothing is committed: a damaged run never starts over.

    ``head`` is ``None`` until the first commit, and again from the start of a fork from an external
    checkpoint to its first commit; a process that dies in between must be able to start again.
    """
    if record.payload["restore_point"] is not None or state.head is None:
        return None
    fork = state.pending_fork
    if fork is not None and fork.launch_id == record.launch_id and fork.external is not None:
        return None
    return Refusal(Cause.RACED, "checkpoints are committed, so one must be named as the restore point")


def follows_fork(state: RunState, record: Record) -> Refusal | None:
    """The launch that forked starts from where it said it forks."""
    fork = state.pending_fork
    if fork is None or fork.launch_id != record.launch_id or fork.origin == record.payload["restore_point"]:
        return None
    return _unfit(f"the fork starts from {_name(fork.origin)}")


def fork_origin_usable(state: RunState, record: Record) -> Refusal | None:
    c, external = record.payload["from"], record.payload["external"]
    if c is not None and external is not None:
        return _unfit("a fork names either a checkpoint of this run or an external one")
    if c is None and external is None and state.head is not None:
        return _unfit("a fork names what it starts from, once something is committed")
    info = None if c is None else state.checkpoints.get(c)
    if c is not None and (info is None or not info.usable):
        return _unfit(f"c{c} cannot be forked from: {_status(info)}")
    return None


def same_generation(state: RunState, record: Record) -> Refusal | None:
    if record.generation != state.generation:
        return Refusal(
            Cause.STALE, f"generation {record.generation} is not the current one, {state.generation}"
        )
    return None


def same_launch(state: RunState, record: Record) -> Refusal | None:
    if record.launch_id != state.launch_id:
        return Refusal(Cause.STALE, f"generation {state.generation} belongs to launch {state.launch_id}")
    return None


def generation_active(state: RunState, record: Record) -> Refusal | None:
    """The end of the run revokes the generation; extending the run does not give it back."""
    if state.active:
        return None
    return Refusal(Cause.STALE, f"generation {state.generation} is not active; a new one must be started")


# --- checkpoints -----------------------------------------------------------------------------


def number_is_next(state: RunState, record: Record) -> Refusal | None:
    if record.payload["c"] == state.next_c:
        return None
    return _unfit(f"c{record.payload['c']} is not the next number, {state.next_c}")


def adopts_the_replaced(state: RunState, record: Record) -> Refusal | None:
    """Snapshots are adopted of the generation directly before, at the step they were sealed at."""
    adopted = record.payload.get("adopted")
    if adopted in (None, {"generation": record.generation - 1, "step": record.payload["step"]}):
        return None
    return _unfit(f"adopts {adopted!r}; only generation {record.generation - 1} has been replaced")


def no_adoption_in_fork(state: RunState, record: Record) -> Refusal | None:
    if record.payload.get("adopted") is None:
        return None
    if state.forks and state.forks[-1].generation == state.generation:
        return _unfit("a fork starts from the checkpoint it names, and adopts nothing")
    return None


def adoption_is_first(state: RunState, record: Record) -> Refusal | None:
    """A generation that may have trained already has a history of its own and must not take another."""
    if record.payload.get("adopted") is None:
        return None
    if state.head != state.restore_point:
        return _unfit(f"generation {state.generation} has committed {_name(state.head)} already")
    for info in state.checkpoints.newest_first():
        if info.generation != state.generation:
            break
        if info.adopted is None:
            return _unfit(f"generation {state.generation} has saved a step of its own already (c{info.c})")
    return None


def allocated_here(state: RunState, record: Record) -> Refusal | None:
    """Allocated by this generation for this step and parent, and neither committed nor aborted since.

    The parent counts because the samples a checkpoint accounts for are those since its parent.
    """
    info = state.checkpoints.get(record.payload["c"])
    if info is None or info.state is not CheckpointState.ALLOCATED:
        return _unfit(f"c{record.payload['c']} is {_status(info)}")
    claimed = (record.generation, record.payload["step"], record.payload["parent"])
    if claimed != (info.generation, info.step, info.parent):
        return _unfit(
            f"c{info.c} was allocated by generation {info.generation} for step {info.step} "
            f"after {_name(info.parent)}"
        )
    return None


def still_allocated(state: RunState, record: Record) -> Refusal | None:
    info = state.checkpoints.get(record.payload["c"])
    if info is not None and info.state is CheckpointState.ALLOCATED:
        return None
    return _unfit(f"c{record.payload['c']} is {_status(info)}")


def parent_is_head(state: RunState, record: Record) -> Refusal | None:
    """A late asynchronous commit, or one of another history, must not become the head."""
    if record.payload["parent"] == state.head:
        return None
    return _unfit(f"parent {_name(record.payload['parent'])} is not the head, {_name(state.head)}")


def step_exceeds_head(state: RunState, record: Record) -> Refusal | None:
    step, head = record.payload["step"], state.head_step
    return None if head is None or step > head else _unfit(f"step {step} does not exceed the head's, {head}")


def reuses_the_parents(state: RunState, record: Record) -> Refusal | None:
    """Older content is reused only through the parent: its own objects, and those it reuses itself.

    That is what makes reuse safe against collection. A sweep spares what a checkpoint still held refers to.
    Say it deletes an object when nothing held refers to it, and a later commit does. Take the first such
    commit: its parent refers to the object too. The parent was not committed later (the commit is
    the first), so the sweep saw it retired; but what is retired is never the head again, hence no parent.
    So a checkpoint may be retired while objects of it are in use.
    """
    parent = state.checkpoints.get(record.payload["parent"])
    for c in record.payload["reuses"]:
        if parent is None or (c != parent.c and c not in parent.reuses):
            return _unfit(f"reuses objects of c{c}, which its parent, {record.payload['parent']}, does not")
    return None


def no_damage_since(state: RunState, record: Record) -> Refusal | None:
    """What is reused was chosen by what was known to be damaged at the allocation."""
    info = state.checkpoints.get(record.payload["c"])
    if not record.payload["reuses"] or info is None or info.distrusted == state.distrusted:
        return None
    return _unfit("damage was found after it was planned what to reuse")


def final_is_head(state: RunState, record: Record) -> Refusal | None:
    """Success needs its final commit durable first."""
    if record.payload["c"] == state.head:
        return None
    return _unfit(f"{_name(record.payload['c'])} is not the head, {_name(state.head)}")


# --- maintenance -----------------------------------------------------------------------------


def next_epoch(state: RunState, record: Record) -> Refusal | None:
    if record.epoch == state.epoch + 1:
        return None
    return Refusal(Cause.RACED, f"claims controller epoch {record.epoch} after {state.epoch}")


def same_epoch(state: RunState, record: Record) -> Refusal | None:
    if record.epoch == state.epoch and record.launch_id == state.controller:
        return None
    return Refusal(Cause.STALE, f"controller epoch {record.epoch} is not the current one, {state.epoch}")


def keeps_the_state(state: RunState, record: Record) -> Refusal | None:
    """Of several controllers the newest says where the run stands."""
    if record.epoch == state.reconciler:
        return None
    return Refusal(Cause.STALE, f"controller epoch {record.epoch} was replaced by {state.reconciler}")


def of_the_end(state: RunState, record: Record) -> Refusal | None:
    """What was summed up is the end that the run has now: it may have been extended, and ended again."""
    if state.terminal is not None and state.terminal.seq == record.payload["end"]:
        return None
    return _unfit(f"the run has not ended with record {record.payload['end']}")


def first_summary(state: RunState, record: Record) -> Refusal | None:
    return None if state.summary is None else _unfit(f"{state.summary.key} sums it up already")


def is_committed(state: RunState, record: Record) -> Refusal | None:
    """Committed, perhaps corrupt; not retired."""
    return _in_state(state, record, _COMMITTED)


def is_sound(state: RunState, record: Record) -> Refusal | None:
    return _in_state(state, record, (CheckpointState.COMMITTED,))


def not_head(state: RunState, record: Record) -> Refusal | None:
    return _unfit(f"c{state.head} is the head") if record.payload["c"] == state.head else None


def not_live_restore_point(state: RunState, record: Record) -> Refusal | None:
    """Workers of the live generation may still be reading it, or have to again."""
    if state.active and record.payload["c"] == state.restore_point:
        return _unfit(f"generation {state.generation} restores from c{state.restore_point}")
    return None


def not_fork_origin(state: RunState, record: Record) -> Refusal | None:
    fork = state.pending_fork
    if fork is not None and fork.origin is not None and record.payload["c"] == fork.origin:
        return _unfit(f"a fork is about to start from c{fork.origin}")
    return None


def not_pinned(state: RunState, record: Record) -> Refusal | None:
    info = state.checkpoints.get(record.payload["c"])
    return _unfit(f"c{info.c} is pinned") if info is not None and info.pinned else None


def _in_state(state: RunState, record: Record, wanted: tuple[CheckpointState, ...]) -> Refusal | None:
    info: CheckpointInfo | None = state.checkpoints.get(record.payload["c"])
    if info is not None and info.state in wanted:
        return None
    return _unfit(f"c{record.payload['c']} is {_status(info)}")


def _name(c: int | None) -> str:
    return "nothing" if c is None else f"c{c}"


def _status(info: CheckpointInfo | None) -> str:
    return "unknown" if info is None else info.state.value
