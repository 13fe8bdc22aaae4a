"""L5. Scheduled chaos: at least one fault in every period, at an instant that nobody knows beforehand but
that can be replayed (LIFE-10, LIFE-12). The schedule is pure: time and the identity of the run are arguments.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from durable_core.clock import Clock
from durable_core.errors import UsageError


@dataclass(frozen=True)
class Chaos:
    """One worker is killed in every period of ``every_s`` seconds of wall time. Periods are counted from the
    epoch, so a restarted launcher knows which one it is in; ``seed`` and ``run_id`` say when in it, and
    whom."""

    every_s: float
    run_id: str
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.every_s > 0:
            raise UsageError(f"chaos every {self.every_s} s", hint="a positive time, as 604800 for a week")

    def instant(self, period: int) -> float:
        """Seconds since the epoch at which the fault of that period happens: uniform over it."""
        return (period + self._drawn(period, "when")) * self.every_s

    def victim(self, period: int, workers: int) -> int:
        """Which of ``workers`` local workers it hits."""
        return int(self._drawn(period, "whom") * workers)

    def due(self, last: float, now: float) -> int | None:
        """The period whose fault falls into ``(last, now]``; the newest one when several do, for one that
        was missed while nothing ran is not made up for. ``None``: none does."""
        newest = int(now // self.every_s)
        for period in (newest, newest - 1):
            if last < self.instant(period) <= now:
                return period
        return None

    def _drawn(self, period: int, what: str) -> float:
        """In [0, 1): the same for the same run, seed and period, on every machine."""
        text = f"{self.run_id} {self.seed} {period} {what}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / 2**56


class Scheduled:
    """The schedule, kept by whoever looks often. ``say``: one line for the operator."""

    def __init__(
        self, chaos: Chaos, clock: Clock, say: Callable[[str], None],
        kill: Callable[[int, int], None] = os.kill,
    ) -> None:  # fmt: skip
        self._chaos, self._clock, self._say, self._kill = chaos, clock, say, kill
        self._last = clock.now()

    def tend(self, workers: Mapping[int, int]) -> str:
        """Kill one of ``workers`` (rank -> pid) if that is due; what was done, ``""``: nothing. A fault
        that finds nobody is not made up for."""
        last, self._last = self._last, self._clock.now()
        period = self._chaos.due(last, self._last)
        if period is None or not workers:
            return ""
        rank = sorted(workers)[self._chaos.victim(period, len(workers))]
        done = f"scheduled chaos kills rank {rank}, process {workers[rank]}, in period {period}"
        self._say(done)
        with suppress(ProcessLookupError):
            self._kill(workers[rank], signal.SIGKILL)
        return done
