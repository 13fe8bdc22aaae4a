"""L5. SIGTERM as a wish of one process: heard now, honoured by all at a boundary."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from types import FrameType
from typing import Any


class Termination:
    """``asked``: whether it has come. Does nothing before ``listen``, nor outside the main thread, where
    Python takes no handlers."""

    def __init__(self) -> None:
        self._heard = threading.Event()
        self._process = os.getpid()
        self._previous: Any = None

    @property
    def asked(self) -> bool:
        return self._heard.is_set()

    def listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._on_term)

    def restore(self) -> None:
        """As it was before. Harmless when repeated."""
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def stay_deaf(self) -> None:
        """To the end of this process, in place of ``restore``: launchers signal all again once one has ended,
        and a signal now would change an exit status that says that nothing is lost."""
        if self._previous is not None:
            self._previous = None  # our handler stays; the interpreter takes it off before it ends
            atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child has no boundary: it ends, as it would without us
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._heard.set()
