"""L1. The only importer of time, random and uuid: time and chance arrive as arguments."""

from __future__ import annotations

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Time in seconds and fresh identities; tests and the simulator pass their own."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch. For people; never for correctness."""

    def monotonic(self) -> float:
        """Monotonic seconds; for deadlines."""

    def sleep(self, seconds: float) -> None:
        """Wait between two polls."""

    def new_id(self) -> str:
        """A fresh identity: 32 hex digits."""


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def new_id(self) -> str:
        return uuid.uuid4().hex


def computed(*, process: bool = False) -> float:
    """CPU seconds used so far by this thread, or by all threads of the process; for differences only."""
    return time.process_time() if process else time.thread_time()
