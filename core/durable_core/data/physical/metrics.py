"""L3. What reading costs: latencies as histograms, amounts as counts; cheap to add to, and to add up.

Every worker measures for itself; what it has measured since it last told travels with a batch and is
added to the training process's (``Metrics.take``, ``Metrics.add``).
"""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
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

    def add(self, value: float, times: int = 1) -> None:
        """One value, or one that stands for so many; what is not positive counts as no time at all."""
        value = max(value, 0.0)
        bucket = _bucket(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.count += times
        self.total += value * times
        if value > self.greatest:
            self.greatest = value

    def add_all(self, values: Sequence[float]) -> None:
        """Many values: a third of the price."""
        for bucket, count in Counter(map(_bucket, values)).items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.count += len(values)
        self.total += sum(values)
        self.greatest = max(self.greatest, *values)

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

    def since(self, before: Histogram) -> Histogram:
        """What was added after ``before`` was a copy of this one. ``greatest`` may be its bucket's edge."""
        later = Histogram()
        for bucket, count in self.counts.items():
            added = count - before.counts.get(bucket, 0)
            if added:
                later.counts[bucket] = added
                later.greatest = max(later.greatest, min(_upper_edge(bucket), self.greatest))
        later.count, later.total = self.count - before.count, self.total - before.total
        return later

    def summary(self) -> dict[str, float | int | None]:
        """``count``, ``mean``, ``p50``, ``p95``, ``p99``, ``max``; seconds."""
        names = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        quantiles = {name: self.quantile(q) for name, q in names.items()}
        return {"count": self.count, "mean": self.mean, **quantiles, "max": self.greatest}


_ZERO = -(1 << 20)


def _bucket(value: float) -> int:
    if value <= 0:
        return _ZERO
    part, octave = math.frexp(value)  # value = part * 2**octave, 0.5 <= part < 1
    return octave * STEPS + int(part * (2 * STEPS)) - STEPS


def _upper_edge(bucket: int) -> float:
    if bucket == _ZERO:
        return 0.0
    octave, step = divmod(bucket, STEPS)
    return math.ldexp((STEPS + step + 1) / (2 * STEPS), octave)


@dataclass
class Metrics:
    """Of one process, or summed over several. Threads may add to one object.

    Seconds: ``fetch`` (a batch read, transformed and collated), ``compute`` (of that, the seconds of a CPU),
    ``read`` (an object or record, from where it lies to where it can be used), ``decode`` (of that, those of
    a CPU), ``wait`` (the training loop waited for a batch).
    ``held``: times that reading stopped at its bound. ``depth``, ``age_s`` and ``lead`` are as last seen,
    of several processes the greatest: objects read and not taken, how long the first of them was waited
    for, batches handed over and not trained yet.
    """

    fetch: Histogram = field(default_factory=Histogram)
    compute: Histogram = field(default_factory=Histogram)
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

    def measure(self, name: str, seconds: float, times: int = 1) -> None:
        """One latency: "fetch", "compute", "read", "decode" or "wait"; ``times``: it stands for so many."""
        with self._lock:
            getattr(self, name).add(seconds, times)

    def count(self, **amounts: int) -> None:
        """Add to counts, by name."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def measure_all(self, name: str, seconds: Sequence[float]) -> None:
        """Many latencies at once, none of them negative."""
        with self._lock:
            getattr(self, name).add_all(seconds)

    def fetched(self, seconds: tuple[float, float], measured: Metrics | None) -> None:
        """A batch came that took ``seconds`` in all and of a CPU (0: not known), and what was measured with
        it where it was fetched."""
        whole, computing = seconds
        if whole:
            self.fetch.add(whole)
        if computing:
            self.compute.add(computing)
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

    def copy(self) -> Metrics:
        """As it is now."""
        copied = Metrics()
        with self._lock:
            copied.merge(self)
        return copied

    def since(self, before: Metrics) -> Metrics:
        """What was measured after ``before`` was a copy of this; the gauges as they are now."""
        later = Metrics()
        with self._lock:
            for name in _LATENCIES:
                setattr(later, name, getattr(self, name).since(getattr(before, name)))
            for name in _COUNTS:
                setattr(later, name, getattr(self, name) - getattr(before, name))
            for name in _GAUGES:
                setattr(later, name, getattr(self, name))
        return later

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


class PerProcess:
    """A ``Metrics`` for each process: what is copied at a fork, or sent to a worker, was not measured by it,
    and would be told again by each of them."""

    def __init__(self) -> None:
        self._owner, self._metrics = os.getpid(), Metrics()

    def here(self) -> Metrics:
        """That of this process; nothing has been measured where it is a new one."""
        if self._owner != os.getpid():
            self._owner, self._metrics = os.getpid(), Metrics()
        return self._metrics

    def __reduce__(self) -> tuple[type[PerProcess], tuple[()]]:
        return PerProcess, ()


_LATENCIES = ("fetch", "compute", "read", "decode", "wait")
_COUNTS = ("records", "nbytes", "hits", "misses", "retries", "held")
_GAUGES = ("depth", "age_s", "lead")
