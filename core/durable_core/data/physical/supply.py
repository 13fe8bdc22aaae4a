"""L3. Does the data keep up? What training needs against what reading supplies, and what holds it back.

R_req = N_tok / T_step: tokens of a step over the seconds of a step. A mean that is high enough proves
little: with bounded look-ahead, one slow fetch stops the step whatever the others do. So the gate is on the
tail.
All functions are pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from durable_core.data.physical.metrics import Metrics
from durable_core.errors import UsageError

PARTS = ("I/O", "decode", "memory", "parallelism")
_HELP = {
    "I/O": "a cache or a nearer store would help",
    "decode": "every CPU is busy: a cheaper format or transform would help",
    "memory": "more room for reading ahead would help",
    "parallelism": "more workers, or threads that read ahead, would help",
    None: "nothing else was measured",
}
OVERLAP = 1.5  # seconds of reading for one of fetching, from which on reads count as parallel


@dataclass(frozen=True)
class Need:
    """Of one replica: ``tokens`` (or samples, or bytes) in a batch, ``batches`` in a step, and the seconds
    ``step_s`` that a step takes when it never waits for data."""

    tokens: float
    step_s: float
    batches: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.tokens < math.inf and 0 < self.step_s < math.inf and self.batches >= 1):
            raise UsageError(f"tokens, step_s and batches must be above 0 and finite: {self}")

    @property
    def rate(self) -> float:
        """R_req, in tokens a second."""
        return self.tokens * self.batches / self.step_s


@dataclass(frozen=True)
class Verdict:
    """Whether supply meets need. ``required``, ``mean`` and ``tail`` are tokens a second; ``bottleneck`` is
    one of ``PARTS``, or None where nothing holds reading back or nothing was measured."""

    sufficient: bool
    reason: str
    required: float
    mean: float
    tail: float
    bottleneck: str | None = None


def judge(need: Need, measured: Metrics, *, workers: int, cpus: int, q: float = 0.99) -> Verdict:
    """Whether ``workers`` that fetch as was measured supply what a step needs, at the quantile ``q``.

    A fetch takes t seconds and ``max(workers, 1)`` run at once, so the supply is tokens * workers / t. The
    mean and the q-quantile of t give two rates; both must reach R_req. Without workers the fetch adds
    to the step instead of running beside it: the verdict says so, and the mean alone decides, for then a
    slow one stops the step by no more than it adds to the mean. Nothing measured is not sufficient.
    """
    mean_s, tail_s = measured.fetch.mean, measured.fetch.quantile(q)
    if mean_s is None or tail_s is None:
        return Verdict(False, "no fetch has been measured", need.rate, 0.0, 0.0)
    at_once = max(workers, 1)
    mean, tail = _rate(need.tokens * at_once, mean_s), _rate(need.tokens * at_once, tail_s)
    bottleneck = attribute(measured, workers=workers, cpus=cpus)
    numbers = f"needed {need.rate:.4g}/s"
    held = f"held back by {bottleneck or 'the fetch'} ({_HELP[bottleneck]})"
    if mean < need.rate:
        reason = f"{numbers}, supplied {mean:.4g}/s on average: {held}"
        return Verdict(False, reason, need.rate, mean, tail, bottleneck)
    if workers and tail < need.rate:
        reason = (
            f"{numbers}, supplied {mean:.4g}/s on average, but {tail:.4g}/s at the {q:.0%} quantile of a "
            f"fetch ({tail_s:.3g} s): slow ones stop the step; {held}"
        )
        return Verdict(False, reason, need.rate, mean, tail, bottleneck)
    reason = f"{numbers}, supplied {mean:.4g}/s on average and {tail:.4g}/s at the {q:.0%} quantile"
    if not workers:
        reason += "; with no workers every fetch is added to its step all the same"
    return Verdict(True, reason, need.rate, mean, tail)


def attribute(measured: Metrics, *, workers: int, cpus: int) -> str | None:
    """What fetching spends its seconds on, from its measured parts: one of ``PARTS``, None without any.

    *Computing* is what took a CPU, in the fetch or in decoding beside it; where that was not measured, the
    fetch less its reads.
    Mostly computing: "decode" when every CPU has its worker, else "parallelism": more workers would help.
    Mostly waiting for reads: "memory" when reading ahead was held at its bound for most records (it
    would have been further ahead with more room), else "parallelism" when reads hardly overlapped (their
    seconds do not exceed the fetch's), else "I/O".
    """
    fetch, read = measured.fetch.total, measured.read.total
    compute, decode = measured.compute, measured.decode
    if not fetch:
        return None
    known = compute.count or decode.count
    computing = max(compute.total, decode.total) if known else max(fetch - read, 0.0)
    if computing >= fetch / 2:
        return "decode" if workers >= cpus else "parallelism"
    if measured.held > measured.records / 2:
        return "memory"
    return "I/O" if read > fetch * OVERLAP else "parallelism"


def _rate(tokens: float, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else math.inf
