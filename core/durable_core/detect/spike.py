"""L3. Losses and gradient norms far above what they were."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
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
        if len(self._sorted) < self._settings.warm_up or not self._exceeds(value, self._settings.limit):
            self._high.clear()
            self._told = self._told and self._exceeds(value, self._settings.calm)
            self._admit(value)
            return None
        if self._told:  # it is the level now: what is told once is let in, so that the alarm can end
            self._admit(value)
            return None
        self._high.append((sample.step, value))
        return self._alarm(sample.step) if len(self._high) == self._settings.patience else None

    def _alarm(self, step: int) -> Finding:
        first, high = self._high[0][0], [value for _, value in self._high]
        centre = self._median()
        spread = sorted(abs(x - centre) for x in self._sorted)[len(self._sorted) // 2]
        above = (min(high) - centre) / max(NORMAL * spread, _floor(centre))
        self._told = True
        for value in high:
            self._admit(value)
        self._high.clear()
        low, middle = shown(self._shown(min(high))), shown(self._shown(centre))
        reason = (
            f"steps {first} to {step}: {self._metric} is at least {low}, {above:.1f} robust deviations above "
            f"its median, {middle}"
        )
        return Finding(
            self.about.name, self.about.version, "F12", self.about.name, step, before(first), reason,
            evidence={"deviations": f"{above:.2f}", "median": middle},
        )  # fmt: skip

    def _exceeds(self, value: float, factor: float) -> bool:
        """Whether ``value`` is more than ``factor`` robust deviations above the median.

        It is when the (upper) median of the distances from the median is less than a certain reach, hence
        when more than half of the values are nearer than that: two searches, and no sorting.
        """
        centre = self._median()
        excess = value - centre
        if excess <= factor * _floor(centre):
            return False
        reach = excess / (factor * NORMAL)
        near = bisect_left(self._sorted, centre + reach) - bisect_right(self._sorted, centre - reach)
        return near > len(self._sorted) // 2

    def _median(self) -> float:
        count = len(self._sorted)
        return (self._sorted[(count - 1) // 2] + self._sorted[count // 2]) / 2

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

    def _admit(self, value: float) -> None:
        self._recent.append(value)
        insort(self._sorted, value)
        if len(self._recent) > self._settings.window:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]


def _floor(centre: float) -> float:
    """The least spread that is believed."""
    return max(LEAST_SPREAD * abs(centre), math.ulp(1.0))
