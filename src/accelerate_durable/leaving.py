"""How a process leaves its run, and what is said about it."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from types import TracebackType

from durable_core.engine.uncaught import FencedExit
from durable_core.errors import FencedError
from durable_core.session import notices
from durable_core.session.plain import PEERS_S, DurableSession

#: Seconds that closing may take where nothing has gone wrong.
LONG_S = 600.0


class How(enum.Enum):
    """Why a session was closed while the process goes on."""

    FINISHED = "the training is over"
    CUT_SHORT = "something has gone wrong, or the script leaves in the middle of a pass"
    FREED = "what is prepared from now on is another training"
    TAKEN = "another accelerator of this process has the run"


class Told:
    """Around what a session does: ``Fenced`` leaves the process with its exit code, and whatever ends it here
    is noted, so that nobody is told twice."""

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._failed()
        if isinstance(error, FencedError):
            raise FencedExit from error


def by_an_exception() -> bool:
    """Whether that is what ends this process. (Only of the main thread, and not of ``SystemExit``.)"""
    return getattr(sys, "last_value", None) is not None


def patience(session: DurableSession, *, failed: bool) -> float:
    """Seconds for a save under way: in a group the others may be dead, and it waits for them."""
    return PEERS_S if failed and len(session.run.world.roles) > 1 else LONG_S


def cut_short(error: BaseException | None, *, within: bool) -> str:
    """Why a script that ends its training is not done with it; empty: it is. ``error`` is under way there, as
    in a ``finally``; ``within``: a pass that trains was left before its end."""
    if error is None or isinstance(error, StopIteration):
        return ""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return "the script leaves by sys.exit() in the middle of a pass" if within else ""
    return f"the training was ended while {type(error).__name__} was under way"


def say_unfinished(session: DurableSession, why: str = "the script has ended") -> None:
    notices.say(
        f"{why}, and run {session.run.run_id} is not marked as finished: a restart goes on from its last "
        "checkpoint. Call accelerator.end_training() where the training is over"
    )
