"""L5. How long to wait between two saves. Pure: figures in, an interval and its reason out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from durable_core.errors import UsageError
from durable_core.session.cadence.history import Rate
from durable_core.session.cadence.meter import Figures
from durable_core.session.cadence.model import METHODS, Method, nested
from durable_core.spec.goals import Goal

#: Steps between saves until a step, and for ``auto`` C, has been measured.
MEASURING_STEPS = 2
#: The model wants C << T << M; beyond this ratio it is reported that they are not.
ASSUMED_RATIO = 0.1
#: Failures per second of a tier that nothing is recovered from: once in 30 million years.
SELDOM = 1e-15


@dataclass(frozen=True)
class Cadence:
    """When to save. The fields after ``every_seconds`` concern ``auto``.

    ``every_n_steps``: optimizer steps, or ``"auto"``. ``every_seconds``: a save at least that often as well,
    or with ``auto`` instead. ``mtbf_seconds``: the M expected, worth one observed interruption.
    ``max_seconds`` and ``min_seconds``: the longest and shortest interval chosen. ``method``: how the optimum
    is found. ``overhead_budget``: the largest part of the time that saving may cost. ``hysteresis``: an
    interval stays until the better one differs by more than this part.
    """

    every_n_steps: int | str = "auto"
    every_seconds: float | None = None
    mtbf_seconds: float = 4 * 3600.0
    max_seconds: float = 300.0
    min_seconds: float = 0.0
    method: Method = "exact"
    overhead_budget: float | None = None
    hysteresis: float = 0.2

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
        if not 0.0 <= self.min_seconds <= self.max_seconds:
            raise UsageError(
                f"min_seconds={self.min_seconds!r}", hint=f"between 0 and max_seconds={self.max_seconds}"
            )
        if self.method not in METHODS:
            raise UsageError(f"method={self.method!r}", hint="one of " + ", ".join(map(repr, METHODS)))
        if self.overhead_budget is not None and not 0.0 < self.overhead_budget < 1.0:
            raise UsageError(f"overhead_budget={self.overhead_budget!r}", hint="a part of 1, or None")
        if not 0.0 <= self.hysteresis < 1.0:
            raise UsageError(f"hysteresis={self.hysteresis!r}", hint="0 or more, below 1")

    @property
    def measures(self) -> bool:
        """Whether anything measured decides; otherwise every member knows all saves without asking."""
        return self.every_n_steps == "auto" or self.every_seconds is not None


@dataclass(frozen=True)
class Limits:
    """What bounds the interval from outside.

    ``slots``: staging buffers. ``rpo_seconds`` and ``rpo_steps``: the goal of each failure domain that this
    tier has to meet.
    """

    slots: int = 2
    rpo_seconds: Mapping[str, float] = field(default_factory=dict)
    rpo_steps: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, goals: Iterable[Goal], *, slots: int = 2) -> Limits:
        """The recovery points of the ``goals`` that this tier meets; the tightest of a domain."""
        seconds: dict[str, float] = {}
        steps: dict[str, int] = {}
        for goal in goals:
            if goal.rpo_seconds is not None:
                seconds[goal.domain] = min(goal.rpo_seconds, seconds.get(goal.domain, math.inf))
            if goal.rpo_steps is not None:
                steps[goal.domain] = min(goal.rpo_steps, steps.get(goal.domain, goal.rpo_steps))
        return cls(slots, seconds, steps)


UNBOUNDED = Limits()


@dataclass(frozen=True)
class Interval:
    """``steps`` between two saves and why. ``optima``: what each method would choose, in seconds, before any
    bound. ``warnings``: assumptions of the model that do not hold, and bounds that cannot be kept.
    ``provisional``: chosen before there was anything to choose by."""

    steps: int
    reason: str
    optima: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    provisional: bool = False


@dataclass(frozen=True)
class _Bound:
    why: str
    least: int = 1
    most: float = math.inf


def decide(
    cadence: Cadence, figures: Figures, *, rate: Rate | None = None, limits: Limits = UNBOUNDED,
    in_force: int | None = None,
) -> Interval:  # fmt: skip
    """The interval from here on. ``in_force``: the one chosen before, kept if it is nearly as good.

    The bounds are applied in this order, so that a later one prevails: one step; the drain of the staging
    buffers; the overhead budget; the recovery points; the user's own. Raises nothing: what cannot be met is
    among the warnings.
    """
    n = cadence.every_n_steps
    if cadence.measures and not figures.step:
        steps = min(n, MEASURING_STEPS) if isinstance(n, int) else MEASURING_STEPS
        return Interval(steps, "still measuring", provisional=True)
    timed = None if cadence.every_seconds is None else _rounded(cadence.every_seconds, figures.step)
    if isinstance(n, int):
        if timed is not None and timed < n:
            return Interval(timed, f"every {cadence.every_seconds:g} s, which comes before {n} steps")
        return Interval(n, f"every {n} steps")
    if timed is not None:
        return Interval(timed, f"every {cadence.every_seconds:g} s")
    if not figures.step or figures.cost is None:
        return Interval(MEASURING_STEPS, "still measuring", provisional=True)
    return _automatic(cadence, figures, figures.step, figures.cost, rate, limits, in_force)


def _automatic(
    cadence: Cadence, figures: Figures, step: float, cost: float, rate: Rate | None, limits: Limits,
    in_force: int | None,
) -> Interval:  # fmt: skip
    mtbf = cadence.mtbf_seconds if rate is None else rate.mtbf
    # Of the saves a part fails. A completed one then costs C/part, and takes 1/part attempts.
    part = max(figures.completed, 0.05)
    optima: dict[str, float] = {name: method(cost / part, mtbf) * part for name, method in METHODS.items()}
    wanted = optima[cadence.method]
    bounds = tuple(_bounds(cadence, figures, step, cost, limits))
    steps, why = _rounded(wanted, step), f"{cadence.method} optimum for C={cost:.3g} s, M={mtbf:.4g} s"
    for bound in bounds:
        if steps < bound.least:
            steps, why = bound.least, bound.why
        if steps > bound.most:
            steps, why = max(1, int(bound.most)), bound.why
    # What a bound forbids is left at once, however near.
    allowed = in_force is not None and all(bound.least <= in_force <= bound.most for bound in bounds)
    if in_force is not None and allowed and 0 < abs(steps - in_force) <= cadence.hysteresis * in_force:
        why = f"kept, for {steps} steps ({why}) are within {cadence.hysteresis:.0%} of it"
        steps = in_force
    broken = tuple(
        f"cannot keep the bound: {bound.why}" for bound in bounds if not bound.least <= steps <= bound.most
    )
    reason = f"auto: every {steps} steps of {step:.3g} s: {why}"
    return Interval(steps, reason, optima, (*_assumptions(cost, steps * step, mtbf, rate, part), *broken))


def _bounds(cadence: Cadence, figures: Figures, step: float, cost: float, limits: Limits) -> Iterator[_Bound]:
    if figures.persist:
        drain = figures.persist / limits.slots
        yield _Bound(f"a write takes {figures.persist:.3g} s and there are {limits.slots} buffers",
                     least=_up(drain, step))  # fmt: skip
    if cadence.overhead_budget is not None:
        budget = cadence.overhead_budget
        yield _Bound(
            f"saving may cost {budget:.3g} of the time", least=_up(cost * (1 - budget) / budget, step)
        )
    lag = figures.lag_p99 or 0.0
    for domain, seconds in limits.rpo_seconds.items():
        yield _Bound(f"RPO of {domain}: T + lag {lag:.3g} s + one step <= {seconds:g} s",
                     most=math.floor((seconds - lag) / step) - 1)  # fmt: skip
    for domain, count in limits.rpo_steps.items():
        yield _Bound(f"RPO of {domain}: T + lag {lag:.3g} s <= {count} steps",
                     most=count - math.floor(lag / step))  # fmt: skip
    yield _Bound(f"min_seconds={cadence.min_seconds:g}", least=_up(cadence.min_seconds, step))
    yield _Bound(f"max_seconds={cadence.max_seconds:g}", most=max(1, math.floor(cadence.max_seconds / step)))


def _assumptions(cost: float, interval: float, mtbf: float, rate: Rate | None, part: float) -> Iterator[str]:
    """CAD-02: what the model takes for granted, and does not hold here."""
    if cost >= mtbf / 2:
        yield f"model invalid: C={cost:.3g} s is at least M/2={mtbf / 2:.3g} s; reduce C"
    elif cost > ASSUMED_RATIO * interval:
        yield f"C << T does not hold: C/T = {cost / interval:.2g}"
    if interval > ASSUMED_RATIO * mtbf:
        yield f"T << M does not hold: T/M = {interval / mtbf:.2g}"
    if rate is not None and rate.exponential is False:
        yield f"the gaps between {rate.failures} interruptions are not exponential: M is a rough guide"
    if part < 1.0:
        yield f"only {part:.0%} of the last saves were committed: attempts are that much closer"


def _rounded(seconds: float, step: float | None) -> int:
    return 1 if not step else max(1, round(seconds / step))


def _up(seconds: float, step: float) -> int:
    return max(1, math.ceil(seconds / step))


# --- several tiers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class TierNeed:
    """One tier's side: its ``figures`` (``cost``: what putting a copy there exposes), ``failure_rate``: per
    second, of those recovered from it (Lambda_i); its limits."""

    figures: Figures
    failure_rate: float
    limits: Limits = field(default_factory=Limits)


def decide_tiers(
    cadence: Cadence, tiers: Mapping[str, TierNeed], *, in_force: Mapping[str, int] | None = None
) -> dict[str, Interval]:
    """An interval for each tier, fastest first, each an integer multiple of the one before it.

    Tier i is treated as alone with ``M_i = 1/Lambda_i``. Rounding to a multiple never lengthens it beyond
    its recovery point.
    """
    alone: dict[str, Interval] = {}
    most: list[float] = []
    for name, need in tiers.items():
        rate = Rate(1.0 / max(need.failure_rate, SELDOM), 0, 0.0, {})
        held = (in_force or {}).get(name)
        alone[name] = decide(cadence, need.figures, rate=rate, limits=need.limits, in_force=held)
        step = need.figures.step
        bounds = _bounds(cadence, need.figures, step, need.figures.cost or 0.0, need.limits) if step else ()
        most.append(min((bound.most for bound in bounds), default=math.inf))
    together = nested([interval.steps for interval in alone.values()], most)
    return {
        name: interval if steps == interval.steps else _nested(interval, steps)
        for (name, interval), steps in zip(alone.items(), together, strict=True)
    }


def _nested(interval: Interval, steps: int) -> Interval:
    reason = f"{interval.reason}; {steps} steps, to be a multiple of the faster tier's"
    return Interval(steps, reason, interval.optima, interval.warnings)
