"""L5. What a save interval costs. Pure arithmetic; times in seconds, rates per second.

T   useful compute between two completed checkpoints      C   exposed cost of one checkpoint
M   mean time between interruptions of the job            L   lag from staged to recoverable
D   detection, isolation, requeue                         R   rendezvous, restore, verify
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from durable_core.errors import UsageError

Method = Literal["exact", "young", "daly"]


def waste(interval: float, cost: float, mtbf: float, *, restart: float = 0.0, lag: float = 0.0) -> float:
    """Fraction of time lost, to first order: ``C/T + (T/2 + L)/M + (R+D)/M``; ``restart`` is R + D."""
    return cost / interval + (interval / 2 + lag + restart) / mtbf


def exact_waste(interval: float, cost: float, mtbf: float, *, restart: float = 0.0) -> float:
    """Fraction of the expected wall time that is not useful, for Poisson interruptions that may also hit
    a save or a restart: ``1 - T / (M e^((R+D)/M) (e^((T+C)/M) - 1))``.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22
    (2006), eq. 13.
    """
    exponent = (interval + cost) / mtbf
    if exponent > 700.0:  # e^x leaves the doubles: nothing useful is ever finished
        return 1.0
    return 1.0 - interval / (mtbf * math.exp(restart / mtbf) * math.expm1(exponent))


def young(cost: float, mtbf: float) -> float:
    """``sqrt(2 C M)``: the minimum of ``waste``. J. W. Young, CACM 17(9), 1974. Good for C << M."""
    return math.sqrt(2.0 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Daly's closed form (op. cit., eq. 37), and M for C >= 2M. Within 1 % of ``exact`` for C <= M/2."""
    if cost >= 2.0 * mtbf:
        return mtbf
    ratio = cost / (2.0 * mtbf)
    return young(cost, mtbf) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - cost


def exact(cost: float, mtbf: float) -> float:
    """The minimum of ``exact_waste``: ``M (1 + W0(-e^(-1-C/M)))``, W0 the principal branch of Lambert's W.

    With ``u = T/M`` it is the root in (0, 1) of ``-log(1-u) - u = C/M``. That side is convex and rises, and
    both ``sqrt(2C/M)`` and ``1 - e^(-1-C/M)`` lie beyond the root, so Newton's steps fall towards it and
    never pass it; solving for u keeps the digits that W0 loses near its branch point, where C << M.
    """
    c = cost / mtbf
    u = min(math.sqrt(2.0 * c), -math.expm1(-1.0 - c))
    while 0.0 < u < 1.0:
        lower = u - (-math.log1p(-u) - u - c) * (1.0 - u) / u
        if not 0.0 < lower < u:  # no progress left in doubles
            break
        u = lower
    return u * mtbf


METHODS: Mapping[Method, Callable[[float, float], float]] = {"exact": exact, "young": young, "daly": daly}


def sync_full_seconds(nbytes: float, bytes_per_second: float) -> float:
    """Seconds a synchronous save of everything stops the loop for: 8 TB at 20 GB/s are 400."""
    if not nbytes >= 0 or not bytes_per_second > 0:
        raise UsageError(
            f"{nbytes} bytes at {bytes_per_second} bytes/s", hint="bytes must not be negative, rates positive"
        )
    return nbytes / bytes_per_second


# --- several tiers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """One tier's part: C_i, and Lambda_i, the rate per second of the failures that it recovers."""

    cost: float
    failure_rate: float
    lag: float = 0.0
    restart: float = 0.0


def tier_interval(load: Load, method: Method = "young") -> float:
    """``T_i* = sqrt(2 C_i / Lambda_i)``, or ``method`` with ``M_i = 1/Lambda_i``; infinite when it
    recovers nothing."""
    return METHODS[method](load.cost, 1.0 / load.failure_rate) if load.failure_rate > 0 else math.inf


def tiered_waste(intervals: Sequence[float], loads: Sequence[Load]) -> float:
    """``sum C_i/T_i + sum Lambda_i (T_i/2 + L_i + R_i + D_i)``, to first order."""
    parts = zip(intervals, loads, strict=True)
    return sum(
        each.cost / interval
        + each.failure_rate * ((interval / 2 if each.failure_rate else 0.0) + each.lag + each.restart)
        for interval, each in parts
    )


def nested(wanted: Sequence[float], most: Sequence[float] | None = None) -> tuple[int, ...]:
    """Intervals in steps, fastest tier first, each an integer multiple of the one before it.

    Each is the multiple nearest to what it ``wanted``, but never beyond the bound in ``most`` unless one
    time the interval before it is beyond already.
    """
    intervals: list[int] = []
    before = 1
    for i, want in enumerate(wanted):
        bound = math.inf if most is None else most[i]
        finite = min(want, bound, 1e15)  # a tier that recovers nothing is written as rarely as can be said
        times = max(1, round(finite / before))
        while times > 1 and times * before > bound:
            times -= 1
        before *= times
        intervals.append(before)
    return tuple(intervals)


# --- strategies ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Strategy:
    """A row of the comparison; seconds and bytes. ``interval``: the optimum for its exposed ``cost``, though
    no shorter than the slots take to drain; ``rpo``: the most that is lost, one interval and the lag;
    ``extra_bytes``: memory beside the state."""

    name: str
    cost: float
    extra_bytes: float
    interval: float
    lag: float
    rpo: float
    restore: float
    waste: float


def strategies(
    state_bytes: float, *, bytes_per_second: float, copy_bytes_per_second: float, mtbf: float,
    restart: float = 0.0, changed: float = 1.0, slots: int = 2, method: Method = "exact",
) -> tuple[Strategy, ...]:  # fmt: skip
    """Synchronous, asynchronous and asynchronous incremental saving of the same state compared.

    ``bytes_per_second``: durable writes, and reads at a restore; ``copy_bytes_per_second``: staging in
    memory; ``changed``: the fraction of the state that differs from one save to the next.
    """
    if not state_bytes > 0 or not 0.0 < changed <= 1.0 or not mtbf > 0 or restart < 0 or slots < 1:
        raise UsageError(
            f"state_bytes={state_bytes}, changed={changed}, mtbf={mtbf}, restart={restart}, slots={slots}",
            hint="a positive size and mtbf, 0 < changed <= 1, restart >= 0, slots >= 1",
        )
    write = sync_full_seconds(state_bytes, bytes_per_second)
    copy = sync_full_seconds(state_bytes, copy_bytes_per_second)

    def row(name: str, cost: float, lag: float, slots: int) -> Strategy:
        interval = max(METHODS[method](cost, mtbf), lag / max(slots, 1))
        lost = waste(interval, cost, mtbf, restart=restart + write, lag=lag)
        return Strategy(
            name, cost, slots * float(state_bytes), interval, lag, interval + lag, write, min(lost, 1.0)
        )

    return (
        row("sync full", write, 0.0, 0),
        row("async full", copy, write, slots),
        row("async incremental", copy * changed, write * changed, slots),
    )
