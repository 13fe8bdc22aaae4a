"""L5. What a save costs, measured while training. Told durations in seconds; reads no clock.

C is the *exposed* cost: the stall, and how much the steps are slowed while a write is in flight. The time
the write takes in the background is not in it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

#: Saves, and steps for the median, that the figures rest on.
WINDOW = 20
#: Steps with, and without, a write in flight that the interference rests on.
STEPS = 200
#: Fraction left out at either end before a mean: a validation between two steps is no step.
TRIM = 0.1


@dataclass(frozen=True)
class Figures:
    """What is known of saving; ``None``: not measured yet. Seconds.

    ``step``: median without stalls. ``stall``: median, with the wait for other writers. ``interference``:
    per save. ``persist``: p95 from staged to committed. ``lag_p50``/``lag_p99``: from the boundary to the
    commit. ``completed``: the fraction of the saves that were committed. ``uptime``: trained in this session.
    """

    step: float | None = None
    stall: float | None = None
    interference: float = 0.0
    persist: float | None = None
    lag_p50: float | None = None
    lag_p99: float | None = None
    completed: float = 1.0
    uptime: float = 0.0

    @property
    def cost(self) -> float | None:
        """C: the exposed cost of one save."""
        return None if self.stall is None else self.stall + self.interference


class Meter:
    """``staged``, ``waited`` and ``stepped`` come from the training thread, the rest from the writer's.

    A step between two boundaries holds the stall of a save made after the first one: that much is taken off,
    so that a stall is not counted as interference as well.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step: deque[float] = deque(maxlen=WINDOW)
        self._stall: deque[float] = deque(maxlen=WINDOW)
        self._persist: deque[float] = deque(maxlen=WINDOW)
        self._lag: deque[float] = deque(maxlen=WINDOW)
        self._completed: deque[bool] = deque(maxlen=WINDOW)
        self._disturbed: deque[float] = deque(maxlen=STEPS)
        self._calm: deque[float] = deque(maxlen=STEPS)
        self._disturbed_steps: deque[int] = deque(maxlen=WINDOW)
        self._in_flight = 0
        self._writing = False  # at some time since the last boundary
        self._held = 0.0
        self._count = 0
        self._uptime = 0.0

    def stepped(self, seconds: float, steps: int = 1) -> None:
        """``seconds`` passed between two boundaries that are ``steps`` apart."""
        with self._lock:
            self._uptime += max(0.0, seconds)
            each = max(0.0, seconds - self._held) / max(1, steps)
            self._step.append(each)
            (self._disturbed if self._writing else self._calm).append(each)
            self._count += steps if self._writing else 0
            self._held, self._writing = 0.0, self._in_flight > 0

    def staged(self, stall: float, barrier: float = 0.0) -> None:
        """The loop was held up for ``stall`` and waited ``barrier`` for the others; a write begins."""
        with self._lock:
            held = max(0.0, stall) + max(0.0, barrier)
            if self._stall:  # the steps disturbed since the save before are that save's
                self._disturbed_steps.append(self._count)
            self._stall.append(held)
            self._held += held
            self._count, self._in_flight, self._writing = 0, self._in_flight + 1, True

    def waited(self, seconds: float) -> None:
        """The save staged last held the loop up for so much more, at its guard."""
        with self._lock:
            if self._stall:
                self._stall[-1] += max(0.0, seconds)
            self._held += max(0.0, seconds)

    def persisted(self, seconds: float, lag: float | None = None) -> None:
        """A write was committed ``seconds`` after staging, ``lag`` (default: as many) after its boundary."""
        with self._lock:
            self._persist.append(max(0.0, seconds))
            self._lag.append(max(0.0, seconds if lag is None else lag))
            self._end(True)

    def failed(self) -> None:
        """A write was given up."""
        with self._lock:
            self._end(False)

    def _end(self, completed: bool) -> None:
        self._completed.append(completed)
        self._in_flight = max(0, self._in_flight - 1)

    def figures(self) -> Figures:
        with self._lock:
            return Figures(
                step=quantile(self._step, 0.5),
                stall=quantile(self._stall, 0.5),
                interference=self._interference(),
                persist=quantile(self._persist, 0.95),
                lag_p50=quantile(self._lag, 0.5),
                lag_p99=quantile(self._lag, 0.99),
                completed=sum(self._completed) / len(self._completed) if self._completed else 1.0,
                uptime=self._uptime,
            )

    def _interference(self) -> float:
        """(mean step time with a write in flight - without) x steps in flight per save; never negative.

        Without a calm step to compare with it is not known, and taken as none.
        """
        counts = self._disturbed_steps or ([self._count] if self._count else [])
        if not self._disturbed or not self._calm or not counts:
            return 0.0
        slower = trimmed_mean(self._disturbed) - trimmed_mean(self._calm)
        return max(0.0, slower) * sum(counts) / len(counts)


def quantile(values: Iterable[float], q: float) -> float | None:
    """The smallest value that at least the fraction ``q`` does not exceed; ``None`` of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else None


def trimmed_mean(values: Iterable[float]) -> float:
    """The mean without the ``TRIM`` smallest and largest of at least one value."""
    ordered = sorted(values)
    cut = int(len(ordered) * TRIM)
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)
