"""L3. What a lack of authority means to the process that lacks it."""

from __future__ import annotations

from durable_core.commit.rules import Cause, Refusal
from durable_core.commit.state import RunState
from durable_core.errors import DurableError, Fenced, LostSlot, RecordRefused, RunEnded, Superseded
from durable_core.format.record import Record
from durable_core.types import Token


def refusal_error(state: RunState, record: Record, refusal: Refusal, *, moved: bool) -> DurableError:
    """The error for ``record`` being refused in ``state``; ``moved``: since it was decided on, other
    records have come.

    ``Fenced``, ``Superseded`` and ``RunEnded`` mean: stop, and never come back with a newer token
    (FENCE-11). ``LostSlot``: a claim has to choose again. ``RecordRefused``: give this record up.
    """
    what = f"{record.kind.value} of generation {record.generation}"
    if refusal.cause is Cause.RACED and moved:
        return LostSlot(f"{what}: {refusal.reason}")
    if refusal.cause is Cause.ENDED:
        return RunEnded(f"{what}: {refusal.reason}", hint="a larger target extends a run that succeeded")
    if refusal.cause in (Cause.UNFIT, Cause.RACED):
        return RecordRefused(f"{what}: {refusal.reason}")
    return _stale(state, record.launch_id, f"{what}: {refusal.reason}")


def token_error(state: RunState, token: Token) -> DurableError | None:
    """Why ``token`` no longer allows writing in ``state``; ``None`` while it does."""
    if token.generation != state.generation or token.launch_id != state.launch_id:
        reason = f"token {token.generation} is stale: the run is at generation {state.generation}"
        return _stale(state, token.launch_id, reason)
    if state.terminal is not None:
        return RunEnded(f"the run has {state.terminal.outcome}")
    if not state.active:
        return Fenced(f"generation {token.generation} ended with the run it belonged to")
    return None


def _stale(state: RunState, launch_id: str, reason: str) -> DurableError:
    if launch_id in state.superseded:
        return Superseded(
            reason,
            hint=f"launch {state.launch_id} took the run over; to take it back, ask for a takeover",
        )
    return Fenced(reason, hint="another process continues this run; this one must stop")
