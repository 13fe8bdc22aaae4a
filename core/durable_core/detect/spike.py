"""L3. Losses and gradient norms far above what they were."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from durable_core.detect.base import About, Finding, Step, before, shown
from durable_core.errors import UsageError

#: MAD of a normal distribution times this is its standard deviation: 1 / (Phi^-1(3/4)).
NORMAL = 1.4826
#: Of the median: a spread smaller than this is taken for this, or a loss that stands still would alarm at
#: rounding.
LEAST_SPREAD = 1e-3


@dataclass(frozen=True)
class Spikes:
    """An alarm begins when ``patience`` steps in a row lie more than ``limit`` robust standard deviations
    above the median of the last ``window`` steps, and ends with one less than ``calm`` above it. The first
    ``warm_up`` steps of a run are not judged.

    Three at six deviations: by chance less than once in 10 million steps for Student's t with 3 degrees of
    freedom (0.0033 for one, if they are independent), and hardly ever for lighter tails.
    Raises ``UsageError`` for what makes no sense.
    """

    limit: float = 6.0
    calm: float = 3.0
    patience: int = 3
    window: int = 64
    warm_up: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.calm <= self.limit < math.inf:
            raise UsageError(f"calm={self.calm}, limit={self.limit}", hint="0 < calm <= limit")
        if self.patience < 1:
            raise UsageError(f"patience={self.patience}", hint="at least one step")
        if not 4 <= self.warm_up <= self.window:
            raise UsageError(f"warm_up={self.warm_up}, window={self.window}", hint="4 <= warm_up <= window")


class Spike:
    """One metric. The gradient norm is judged by its logarithm: its tail is heavy, and its scale is free."""

    def __init__(self, metric: Literal["loss", "grad_norm"], settings: Spikes) -> None:
        self._metric, self._settings = metric, settings
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._high: list[tuple[int, float]] = []  # steps above the limit, not yet an alarm
        self._told = False
        self.about = About(
            name=f"spike:{metric}", version=1, period=1, window=settings.patience,
            covers=f"a {metric} more than {settings.limit:g} robust deviations above its median of "
            f"{settings.window} steps, for {settings.patience} steps in a row",
            misses="slow drift, drops, shorter spikes, wrong values that do not show in it; hard data is not "
            f"told from a fault; the first {settings.warm_up} steps",
        )  # fmt: skip

    @property
    def standing(self) -> bool:
        return self._told or bool(self._high)

    def warm(self, rows: Iterable[Step]) -> None:
        """Steps before a restore, by which to judge those after it."""
        for row in rows:
            value = self._value(row)
            if value is not None:
                self._admit(value)

    def judge(self, sample: Step) -> Finding | None:
        value = self._value(sample) if sample.updated else None
        if value is None:
            return None
        centre, spread = self._scale(value)
        if len(self._recent) < self._settings.warm_up or value <= centre + self._settings.limit * spread:
            self._high.clear()
            if value <= centre + self._settings.calm * spread:
                self._told = False
            self._admit(value)
            return None
        if self._told:  # it is the level now: what is told once is let in, so that the alarm can end
            self._admit(value)
            return None
        self._high.append((sample.step, value))
        if len(self._high) < self._settings.patience:
            return None
        return self._alarm(sample.step, centre, spread)

    def _alarm(self, step: int, centre: float, spread: float) -> Finding:
        self._told = True
        first, high = self._high[0][0], [value for _, value in self._high]
        for value in high:
            self._admit(value)
        self._high.clear()
        above = (min(high) - centre) / spread
        low, middle = shown(self._shown(min(high))), shown(self._shown(centre))
        reason = (
            f"steps {first} to {step}: {self._metric} is at least {low}, {above:.1f} robust deviations above "
            f"its median, {middle}"
        )
        evidence = {"deviations": f"{above:.2f}", "median": shown(self._shown(centre))}
        return Finding(
            self.about.name, self.about.version, "F12", self.about.name, step, before(first), reason,
            evidence=evidence,
        )  # fmt: skip

    def _value(self, row: Step) -> float | None:
        """``None`` for what is absent or not finite, which is another detector's."""
        value = row.loss if self._metric == "loss" else row.grad_norm
        if value is None or not math.isfinite(value):
            return None
        if self._metric == "loss":
            return value
        return math.log(value) if value > 0 else None

    def _shown(self, value: float) -> float:
        return value if self._metric == "loss" else math.exp(value)

    def _scale(self, value: float) -> tuple[float, float]:
        """Median and robust deviation; the deviation only for a value above the median, as no other is
        judged."""
        count = len(self._sorted)
        if count < self._settings.warm_up:
            return math.inf, 0.0
        centre = (self._sorted[(count - 1) // 2] + self._sorted[count // 2]) / 2
        if value <= centre:
            return centre, 0.0
        spread = NORMAL * median([abs(x - centre) for x in self._sorted])
        return centre, max(spread, LEAST_SPREAD * abs(centre), math.ulp(1.0))

    def _admit(self, value: float) -> None:
        self._recent.append(value)
        insort(self._sorted, value)
        if len(self._recent) > self._settings.window:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
