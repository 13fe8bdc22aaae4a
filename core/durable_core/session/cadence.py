"""L5. When to save. Pure decisions; the coordinator decides and announces the next save step.

``auto`` uses Young's first-order optimum ``T = sqrt(2 C M)`` (J. W. Young, CACM 17(9), 1974): ``C``
seconds of exposed cost per save, ``M`` seconds between interruptions of the job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from durable_core.errors import UsageError


@dataclass(frozen=True)
class Cadence:
    """``every_n_steps``: optimizer steps, or ``"auto"``; ``every_seconds`` bounds the time between
    two saves as well. ``mtbf_seconds`` is the prior for M, ``max_seconds`` the longest interval that
    ``auto`` chooses."""

    every_n_steps: int | str = "auto"
    every_seconds: float | None = None
    mtbf_seconds: float = 4 * 3600.0
    max_seconds: float = 300.0

    def __post_init__(self) -> None:
        n = self.every_n_steps
        if n != "auto" and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise UsageError(
                f"every_n_train_steps={n!r}", hint='a positive number of optimizer steps, or "auto"'
            )
        if self.every_seconds is not None and not self.every_seconds > 0:
            raise UsageError(f"train_time_interval={self.every_seconds!r}", hint="a positive time, or None")
        if not self.mtbf_seconds > 0 or not self.max_seconds > 0:
            raise UsageError("mtbf_seconds and max_seconds must be positive")


@dataclass(frozen=True)
class Decision:
    next_step: int
    reason: str


def young_interval(cost_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of useful compute between two saves: ``sqrt(2 C M)``."""
    return math.sqrt(2.0 * cost_seconds * mtbf_seconds)


def next_save(
    cadence: Cadence,
    step: int,
    *,
    step_seconds: float | None,
    cost_seconds: float | None,
    persist_seconds: float | None,
) -> Decision:
    """The step of the next save after ``step``. Figures not measured yet are ``None``."""
    n = cadence.every_n_steps
    limit = None if cadence.every_seconds is None else _steps(cadence.every_seconds, step_seconds)
    if isinstance(n, int):
        fixed = (step // n + 1) * n
        if limit is not None and step + limit < fixed:
            return Decision(step + limit, "time interval reached before every_n_steps")
        return Decision(fixed, f"every {n} steps")
    if limit is not None:
        return Decision(step + limit, "time interval")
    if step_seconds is None or cost_seconds is None:
        return Decision(step + 2, "auto: still measuring")
    seconds = min(young_interval(cost_seconds, cadence.mtbf_seconds), cadence.max_seconds)
    seconds = max(seconds, persist_seconds or 0.0)
    return Decision(step + _steps(seconds, step_seconds), f"auto: every {seconds:.1f} s")


def _steps(seconds: float, step_seconds: float | None) -> int:
    return 1 if not step_seconds else max(1, round(seconds / step_seconds))


@dataclass
class Meter:
    """Running medians of the last 20 values of what the cadence needs, in seconds."""

    step: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    persist: list[float] = field(default_factory=list)

    def note(self, series: list[float], value: float) -> None:
        series.append(max(0.0, value))
        del series[:-20]

    @staticmethod
    def median(series: list[float]) -> float | None:
        return sorted(series)[len(series) // 2] if series else None
