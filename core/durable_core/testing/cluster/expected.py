"""L6. What waste to expect of a run of a given length, and how far one run may be from it.

``W`` of one tier that is written synchronously is known in closed form (``renewal``); of any other job it
is taken from simulated runs (``simulated``), which agree with the closed form where there is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from durable_core.errors import UsageError
from durable_core.testing.cluster.model import Job, Machine, Tier
from durable_core.testing.cluster.simulate import run

#: Runs that a simulated expectation is made of.
SEEDS = 400


@dataclass(frozen=True)
class Expectation:
    """``waste``: the mean of ``1 - useful / wall`` over runs of that length; ``sigma``: its standard
    deviation from one run to the next. ``error``: of ``waste`` itself, when it was simulated."""

    waste: float
    sigma: float
    error: float = 0.0

    def z(self, measured: float) -> float:
        """How many standard deviations one measured run is away."""
        spread = math.hypot(self.sigma, self.error)
        return 0.0 if measured == self.waste else (measured - self.waste) / spread if spread else math.inf


def expectation(
    useful: float, *, interval: float, cost: float, mtbf: float, restart: float, restart_sigma: float = 0.0,
    lag: float = 0.0, seeds: int = SEEDS,
) -> Expectation:  # fmt: skip
    """Of a run that does ``useful`` seconds of work, stands still for ``cost`` to save after every
    ``interval`` of them, and is interrupted every ``mtbf`` of wall time on average, recoveries included.

    A recovery takes ``restart`` (D + R), with a standard deviation of ``restart_sigma``. A save can be
    restored ``lag`` later. Without lag by renewal theory, with it by as many simulated runs as ``seeds``.
    """
    if not lag:
        found = renewal(useful, interval=interval, cost=cost, mtbf=mtbf, restart=restart)
    else:
        machine = Machine(mtbf, {"process": 1.0}, restart, 0.0, 0.0, 0.0)
        tier = Tier("only", frozenset({"process"}), interval, cost, lag)
        found = simulated(Job(machine, (tier,)), useful, seeds)
    wall = useful / (1.0 - found.waste)
    scatter = restart_sigma * math.sqrt(wall / mtbf) * useful / wall**2
    return replace(found, sigma=math.hypot(found.sigma, scatter))


def simulated(job: Job, useful: float, seeds: int = SEEDS) -> Expectation:
    """Of ``job``, from as many runs; ``UsageError`` for fewer than two."""
    if seeds < 2:
        raise UsageError(f"{seeds} runs", hint="at least two")
    wastes = [run(job, useful, seed).waste for seed in range(seeds)]
    sigma = stdev(wastes)
    return Expectation(fmean(wastes), sigma, sigma / math.sqrt(seeds))


def renewal(useful: float, *, interval: float, cost: float, mtbf: float, restart: float) -> Expectation:
    """One interval and its save are a renewal: so ``n = useful / interval`` of them take ``n E[X]``, with
    variance ``n Var[X]``. ``1 - useful / wall`` is convex in the wall time: its mean is lower than that of
    the mean wall time, to second order by ``Var/E^2`` of it.

    An interval ``A = T + C`` that is interrupted at ``f < A`` is followed by ``Y``: the time until ``R +
    A`` have passed uninterrupted, whose transform is ``(l+s) e^(-(l+s)L) / (s + l e^(-(l+s)L))``. ``E[X]``
    is Daly's eq. 13.
    """
    rate, a, whole = 1.0 / mtbf, interval + cost, restart + interval + cost
    if rate * whole > 300.0:
        raise UsageError(f"{whole} s without an interruption every {mtbf} s", hint="it would never end")
    mean_y = math.expm1(rate * whole) / rate
    var_y = (math.expm1(2 * rate * whole) - 2 * rate * whole * math.exp(rate * whole)) / rate**2
    done = math.exp(-rate * a)
    first = (1.0 - done * (1.0 + rate * a)) / rate  # E[f; f < A]
    second = (2.0 - done * (2.0 + 2.0 * rate * a + (rate * a) ** 2)) / rate**2  # E[f^2; f < A]
    mean = done * a + first + (1.0 - done) * mean_y
    square = done * a**2 + second + 2.0 * first * mean_y + (1.0 - done) * (var_y + mean_y**2)
    count = useful / interval
    wall, variance = count * mean, count * (square - mean**2)
    return Expectation(
        1.0 - useful / wall * (1.0 + variance / wall**2), useful * math.sqrt(variance) / wall**2
    )
