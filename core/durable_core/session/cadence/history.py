"""L5. How often the job is interrupted, read from its journal. Pure.

M is what the *job* suffers: software, preemption, storage and correlated faults together. The sum of
component rates, or any other expectation, is a prior and is worth one failure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from durable_core.commit.state import Life, RunState
from durable_core.errors import UsageError

#: The failure domain that each class of the taxonomy takes with it; a class not named here: the process.
#: Classes that do not interrupt the job are of no account, for an interruption is a generation replaced.
DOMAIN_OF_CLASS: Mapping[str, str] = {"F2": "host", "F3": "cluster", "F17": "host"}

#: What is believed of an interruption before any was seen: which domain it takes, as shares of one failure.
PRIOR_SHARES: Mapping[str, float] = {"process": 0.7, "host": 0.25, "cluster": 0.05}

#: Seconds after an interruption within which another is the same incident, unless D + R has been measured.
BURST_S = 300.0

#: 1 % point of ``exponential_misfit`` (M. A. Stephens, JASA 69, 1974, table 1.3), and the fewest gaps it is
#: asked about.
MISFIT_LIMIT = 1.308
MISFIT_GAPS = 5


@dataclass(frozen=True)
class Interruption:
    """``time``: the last sign of life before it, wall clock; ``domain``: what it took with it."""

    time: float
    domain: str = "process"


@dataclass(frozen=True)
class History:
    """``uptime``: seconds that generations were seen alive; ``interruptions`` in order of time; ``gaps``:
    seconds of uptime from one to the next; ``planned``: drains that lost nothing."""

    uptime: float = 0.0
    interruptions: tuple[Interruption, ...] = ()
    gaps: tuple[float, ...] = ()
    planned: int = 0

    def lived(self, seconds: float) -> History:
        """After so much more training without an interruption."""
        return replace(self, uptime=self.uptime + seconds)


def read_history(state: RunState, *, burst: float = BURST_S) -> History:
    """The interruptions that the journal of a run tells of.

    Every generation that another one replaced was interrupted, unless it ended the run, went back by itself
    or drained as planned: the step it drained at is committed. Interruptions within ``burst`` seconds (the
    D + R window) of one that counts are the same incident. A generation was up from its start to its last
    commit or failure: a lower bound, so that downtime is never counted as uptime.
    """
    seen: dict[int, float] = {}
    committed: dict[int, int] = {}
    causes: dict[int, list[str]] = defaultdict(list)
    for info in state.checkpoints.values():
        seen[info.generation] = max(seen.get(info.generation, info.time), info.time)
        if info.was_committed:
            committed[info.generation] = max(committed.get(info.generation, -1), info.step)
    for failure in state.failures:
        seen[failure.generation] = max(seen.get(failure.generation, failure.time), failure.time)
        causes[failure.generation].append(str(failure.payload["class"]))

    went_back = {life.generation - 1 for life in state.lives if life.asked}
    found: list[Interruption] = []
    gaps: list[float] = []
    uptime, counted_at, planned = 0.0, 0.0, 0
    for life in state.lives:
        g = life.generation
        last = max(seen.get(g, life.began), life.began)
        uptime += max(0.0, last - life.began)
        if life.ended:
            continue
        if life.drain_step is not None and _reached(state, life, committed) >= life.drain_step:
            planned += 1
            continue
        if g == state.generation or g in went_back:
            continue
        domain = _widest(causes[g])
        if found and last - found[-1].time <= burst:
            found[-1] = Interruption(found[-1].time, max(found[-1].domain, domain, key=_WIDTH.index))
            continue
        found.append(Interruption(last, domain))
        gaps.append(uptime - counted_at)
        counted_at = uptime
    return History(uptime, tuple(found), tuple(gaps), planned)


def _reached(state: RunState, life: Life, committed: Mapping[int, int]) -> int:
    """The newest step that a start after this generation goes on from; -1: the beginning."""
    if life.generation in committed:
        return committed[life.generation]
    return -1 if life.restore_point is None else state.checkpoints[life.restore_point].step


_WIDTH = ("process", "host", "rack", "cluster", "region")


def _widest(causes: Iterable[str]) -> str:
    return max(
        (DOMAIN_OF_CLASS.get(cause, "process") for cause in causes), key=_WIDTH.index, default="process"
    )


# --- what is believed of it ------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """Gamma posterior of the rate of interruptions: shape ``failures + 1``, rate ``uptime + prior``.

    ``mtbf``: M, the inverse of its mean. ``by_domain``: interruptions per second that take that domain
    with them; they add up to ``1 / mtbf``.
    """

    mtbf: float
    failures: int
    uptime: float
    by_domain: Mapping[str, float]
    exponential: bool | None = None


def estimate(history: History, *, prior_mtbf: float, shares: Mapping[str, float] = PRIOR_SHARES) -> Rate:
    """``M = (prior_mtbf + uptime) / (1 + failures)``: the prior is worth one failure.

    The split over domains is Dirichlet with ``shares`` as its one prior failure. ``exponential``: whether
    the gaps pass the check; ``None`` while there are too few.
    """
    if not prior_mtbf > 0:
        raise UsageError(f"mtbf_seconds={prior_mtbf}", hint="a positive number of seconds")
    counts = Counter(interruption.domain for interruption in history.interruptions)
    failures = len(history.interruptions)
    exposure = prior_mtbf + history.uptime
    whole = sum(shares.values())
    domains = {**shares, **counts}
    by_domain = {d: (counts[d] + shares.get(d, 0.0) / whole) / exposure for d in domains}
    misfit = exponential_misfit(history.gaps)
    return Rate(
        exposure / (1 + failures), failures, history.uptime, by_domain,
        None if misfit is None else misfit <= MISFIT_LIMIT,
    )  # fmt: skip


def exponential_misfit(gaps: Sequence[float]) -> float | None:
    """Lilliefors' statistic of ``gaps`` against the exponential distribution of their own mean, in Stephens'
    form that does not depend on their number: ``(D - 0.2/n) (sqrt(n) + 0.26 + 0.5/sqrt(n))``.

    ``None`` for fewer than ``MISFIT_GAPS``.
    """
    n = len(gaps)
    if n < MISFIT_GAPS or not sum(gaps) > 0:
        return None
    mean = sum(gaps) / n
    distance = 0.0
    for i, gap in enumerate(sorted(gaps)):
        expected = -math.expm1(-gap / mean)
        distance = max(distance, (i + 1) / n - expected, expected - i / n)
    return (distance - 0.2 / n) * (math.sqrt(n) + 0.26 + 0.5 / math.sqrt(n))
