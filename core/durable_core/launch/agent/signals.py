"""L5. What the operator, a scheduler or a terminal tells the agent: a planned stop.

A signal is counted and wakes whoever waits; only within ``raising`` (a rendezvous, which is torch's and
cannot be woken) it is raised.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException


class Signals:
    """Main thread only. ``count``: how many have come; the second says that there is no time."""

    def __init__(self) -> None:
        self.count = 0
        self.first: signal.Signals | None = None
        self._raising = False
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)

    @property
    def told(self) -> str:
        """The name of the first one; ``""``: none has come."""
        return "" if self.first is None else self.first.name

    def install(self, names: Sequence[str]) -> None:
        """``ValueError`` for a name that is no signal."""
        for name in names:
            signal.signal(signal.Signals[name], self._receive)

    def wait(self, seconds: float, living: Collection[int] = ()) -> bool:
        """Whether a signal has come since the last wait; returns at once then, and when one of the children
        ``living``, none of which has been waited for, has ended."""
        with ExitStack() as opened:
            watched = select.poll()
            watched.register(self._reading, select.POLLIN)
            for pid in living:
                with suppress(OSError):  # an old kernel, or no descriptor left: seen when the time is up
                    end = os.pidfd_open(pid)
                    opened.callback(os.close, end)
                    watched.register(end, select.POLLIN)
            watched.poll(seconds * 1000)
        try:
            return bool(os.read(self._reading, 4096))
        except BlockingIOError:
            return False

    @contextmanager
    def raising(self) -> Iterator[None]:
        """``SignalException`` from here once a signal has come, or comes."""
        if self.first is not None:
            raise SignalException(f"stopped by {self.first.name}", self.first)
        self._raising = True
        try:
            yield
        finally:
            self._raising = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or signal.Signals(number)
        with suppress(BlockingIOError):  # full: whoever waits is awake already
            os.write(self._writing, b"!")
        if self._raising:
            self._raising = False
            raise SignalException(f"stopped by {self.first.name}", self.first)
