"""What waits for storage: a commit that was asked for, and the end of a run. Trouble with it is told as a
warning, for a model that was trained is not to be lost over it."""

from __future__ import annotations

import warnings

from durable_core.errors import CommitAborted, TierError
from durable_core.session.plain import DurableSession


def durable(session: DurableSession, *, staged: bool) -> None:
    """Wait until the step just done is durable. ``staged``: its state is under way already."""
    try:
        if not (staged and session.flush() and session.status().newest_step == session.steps):
            session.save(wait=True)
    except (TierError, CommitAborted) as error:
        warnings.warn(f"durable: step {session.steps} could not be made durable: {error}", stacklevel=2)


def finished(session: DurableSession) -> bool:
    """The run has succeeded; False: it could not be recorded."""
    try:
        session.finish()
    except (TierError, CommitAborted) as error:
        warnings.warn(
            "durable: the end of the run could not be recorded; started again it goes on from step "
            f"{session.status().newest_step}: {error}",
            stacklevel=2,
        )
        return False
    return True
