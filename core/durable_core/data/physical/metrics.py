"""L3. What reading costs: latencies as histograms, amounts as counts; cheap to add to, and to add up.

Every worker measures for itself; what it has measured since it last told travels with a batch and is
added to the training process's (``Metrics.take``, ``Metrics.add``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from durable_core.errors import UsageError

STEPS = 8  # buckets for each doubling: a quantile is right within an eighth


class Histogram:
    """Counts of positive values (seconds) by size. Each doubling has ``STEPS`` buckets of equal width.

    A quantile is the upper edge of its bucket: never below the true one, and at most 1/8 above it (no
    more than the greatest value seen). About 0.3 us to add a value; a few hundred buckets at most.
    """

    __slots__ = ("count", "counts", "greatest", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.greatest = 0.0

    def add(self, value: float) -> None:
        """One value; what is not positive counts as no time at all."""
        if value <= 0:
            value = 0.0
            bucket = _ZERO
        else:
            part, octave = math.frexp(value)  # value = part * 2**octave, 0.5 <= part < 1
            bucket = octave * STEPS + int(part * (2 * STEPS)) - STEPS
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        if value > self.greatest:
            self.greatest = value

    def quantile(self, q: float) -> float | None:
        """The value that a share ``q`` (0 to 1) of all do not exceed; None without any."""
        if not 0 <= q <= 1:
            raise UsageError(f"a quantile lies between 0 and 1, not at {q}")
        rank = max(1, math.ceil(q * self.count))
        below = 0
        for bucket in sorted(self.counts):
            below += self.counts[bucket]
            if below >= rank:
                return min(_upper_edge(bucket), self.greatest)
        return None

    @property
    def mean(self) -> float | None:
        """Exact, from the sum; None without any value."""
        return self.total / self.count if self.count else None

    def merge(self, other: Histogram) -> None:
        """Add all of another one's values."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.count += other.count
        self.total += other.total
        self.greatest = max(self.greatest, other.greatest)

    def summary(self) -> dict[str, float | int | None]:
        """``count``, ``mean``, ``p50``, ``p95``, ``p99``, ``max``; seconds."""
        names = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        quantiles = {name: self.quantile(q) for name, q in names.items()}
        return {"count": self.count, "mean": self.mean, **quantiles, "max": self.greatest}


_ZERO = -(1 << 20)


def _upper_edge(bucket: int) -> float:
    if bucket == _ZERO:
        return 0.0
    octave, step = divmod(bucket, STEPS)
    return math.ldexp((STEPS + step + 1) / (2 * STEPS), octave)


@dataclass
class Metrics:
    """Of one process, or summed over several. Threads may add to one object.

    Seconds: ``fetch`` (a batch read, transformed and collated), ``read`` (an object or record from where
    it lies), ``decode`` (its bytes made a record), ``wait`` (the training loop waited for a batch).
    ``held``: times that reading stopped at its bound. ``depth``, ``age_s`` and ``lead`` are as last seen,
    of several processes the greatest: objects read and not taken, how long the first of them was waited
    for, batches handed over and not trained yet.
    """

    fetch: Histogram = field(default_factory=Histogram)
    read: Histogram = field(default_factory=Histogram)
    decode: Histogram = field(default_factory=Histogram)
    wait: Histogram = field(default_factory=Histogram)
    records: int = 0
    nbytes: int = 0
    hits: int = 0
    misses: int = 0
    retries: int = 0
    held: int = 0
    depth: int = 0
    age_s: float = 0.0
    lead: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def measure(self, name: str, seconds: float) -> None:
        """One latency: "fetch", "read", "decode" or "wait"."""
        with self._lock:
            getattr(self, name).add(seconds)

    def count(self, **amounts: int) -> None:
        """Add to counts, by name."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def fetched(self, seconds: float, measured: Metrics | None) -> None:
        """A batch came that took ``seconds`` (0: not known), and what its worker measured with it."""
        if seconds:
            self.fetch.add(seconds)
        if measured is not None:
            self.merge(measured)

    def merge(self, other: Metrics) -> None:
        """Add what another process measured."""
        with self._lock:
            for name in _LATENCIES:
                getattr(self, name).merge(getattr(other, name))
            for name in _COUNTS:
                setattr(self, name, getattr(self, name) + getattr(other, name))
            for name in _GAUGES:
                setattr(self, name, max(getattr(self, name), getattr(other, name)))

    def take(self) -> Metrics:
        """What was measured since the last ``take``, which is then forgotten here."""
        taken = Metrics()
        with self._lock:
            for name in (*_LATENCIES, *_COUNTS, *_GAUGES):
                fresh = getattr(taken, name)
                setattr(taken, name, getattr(self, name))
                setattr(self, name, fresh)
        return taken

    def summary(self) -> dict[str, Any]:
        """JSON-able: a summary of each latency (seconds), the counts, the gauges and ``hit_rate``."""
        with self._lock:
            latencies = {name: getattr(self, name).summary() for name in _LATENCIES}
            numbers = {name: getattr(self, name) for name in (*_COUNTS, *_GAUGES)}
        asked = numbers["hits"] + numbers["misses"]
        return {**latencies, **numbers, "hit_rate": numbers["hits"] / asked if asked else None}

    def __getstate__(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())  # a lock does not travel


_LATENCIES = ("fetch", "read", "decode", "wait")
_COUNTS = ("records", "nbytes", "hits", "misses", "retries", "held")
_GAUGES = ("depth", "age_s", "lead")
