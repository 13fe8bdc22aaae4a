"""How a drained run leaves the process, and the signal that asks for it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from lightning.pytorch.utilities.exceptions import SIGTERMException

from durable_core.engine.uncaught import EXIT_DRAINED


class DrainExit(SIGTERMException):
    """SIGTERM was obeyed: everything up to the last step is durable; exit code 75.

    A ``SIGTERMException``, so code written for Lightning's own (and for ``SystemExit``) sees what it expects.
    """

    def __init__(self) -> None:
        super().__init__(EXIT_DRAINED)


class SigtermFlag:
    """Turns SIGTERM into a flag that the next boundary reads.

    Lightning's own handler starts a collective inside the signal handler, where the other ranks do not
    answer: SIGTERM to one rank hangs the group. So ours replaces it while training and puts it back.
    """

    def __init__(self) -> None:
        self.raised = False
        self._previous: Any = None
        self._installed = False

    def install(self) -> None:
        """Only the main thread may set handlers; elsewhere this does nothing."""
        if self._installed or threading.current_thread() is not threading.main_thread():
            return
        self._previous = signal.signal(signal.SIGTERM, self._note)
        self._installed = True

    def restore(self) -> None:
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)
        self._installed = False

    def ignore(self) -> None:
        """For good, the interpreter's end included, where a handler of ours would be gone: a launcher sends
        SIGTERM to the others as soon as one has exited, and the exit code is to be 75."""
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._installed = False

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.raised = True
