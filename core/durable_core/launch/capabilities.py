"""L5. Another number of workers: whether the run allows it, and how the global batch stays what it is.

The global batch is a set of samples, not a number of processes: with fewer workers each takes more of it, in
more micro-batches (SCHED-07). ``DurableLoader(accumulate=)`` does that for even shares; uneven ones are for
loops that weigh each sample themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from durable_core.errors import UnsupportedError, UsageError
from durable_core.spec import CAPABILITIES, RunSpec
from durable_core.types import Promise


@dataclass(frozen=True)
class Share:
    """One worker's part of every global batch: the ``samples`` from ``begin`` on, in micro-batches of the
    sizes ``micro_batches``."""

    begin: int
    micro_batches: tuple[int, ...]

    @property
    def samples(self) -> int:
        return sum(self.micro_batches)

    def positions(self, step: int, global_batch: int) -> range:
        """Of optimizer step ``step`` (the first is 0) in the logical order of samples."""
        first = step * global_batch + self.begin
        return range(first, first + self.samples)


@dataclass(frozen=True)
class BatchPlan:
    """How ``workers`` take one global batch. ``even``: all the same number of samples in the same number of
    micro-batches, so that the mean over workers of their means is the mean over samples. When it is not, each
    worker's loss is to be summed and divided by the global batch."""

    global_batch: int
    shares: tuple[Share, ...]

    @property
    def workers(self) -> int:
        return len(self.shares)

    @property
    def even(self) -> bool:
        return len({share.micro_batches for share in self.shares}) == 1

    @property
    def accumulate(self) -> int:
        """Micro-batches of the worker that has most."""
        return max(len(share.micro_batches) for share in self.shares)


def batch_plan(global_batch: int, workers: int, *, micro_batch: int, uneven: str = "refuse") -> BatchPlan:
    """The plan with the fewest micro-batches of at most ``micro_batch`` samples each.

    Shares follow one another in the logical order, so that the samples of a step are the same for every
    number of workers. ``UnsupportedError`` when the global batch does not divide and ``uneven`` is
    ``refuse``, or when there is not a sample for everybody.
    """
    for name, value in (("global_batch", global_batch), ("workers", workers), ("micro_batch", micro_batch)):
        if value < 1:
            raise UsageError(f"{name}={value}", hint="at least 1")
    each, over = divmod(global_batch, workers)
    if each == 0:
        raise UnsupportedError(
            f"a global batch of {global_batch} has no sample for each of {workers} workers"
        )
    if over and uneven == "refuse":
        raise UnsupportedError(
            f"a global batch of {global_batch} does not divide among {workers} workers",
            hint="membership.elastic.uneven: spread, or a size that divides it",
        )
    counts = [each + (1 if place < over else 0) for place in range(workers)]
    begins = [sum(counts[:place]) for place in range(workers)]
    shares = (
        Share(begin, _micro_batches(count, micro_batch)) for begin, count in zip(begins, counts, strict=True)
    )
    return BatchPlan(global_batch, tuple(shares))


def _micro_batches(samples: int, most: int) -> tuple[int, ...]:
    """As few as will do, equal ones when there is such a number: a loader has one batch size."""
    fewest = -(-samples // most)
    number = next((n for n in range(fewest, 2 * fewest + 1) if samples % n == 0), fewest)
    each, over = divmod(samples, number)
    return tuple(each + (1 if place < over else 0) for place in range(number))


# --- whether it may be done ------------------------------------------------------------------


@dataclass(frozen=True)
class Obstacle:
    """``capability``: one of ``CAPABILITIES``, or ``promise``; ``workers``: the first size that it stands in
    the way of."""

    capability: str
    workers: int
    why: str

    def __str__(self) -> str:
        return f"{self.capability} with {self.workers} workers: {self.why}"


def obstacles(spec: RunSpec, *, now: int) -> tuple[Obstacle, ...]:
    """What stands in the way of the sizes that the spec's elastic range allows, for a run that has ``now``
    workers (SCHED-06); nothing for another membership."""
    elastic = None if spec.membership is None else spec.membership.elastic
    if elastic is None:
        return ()
    sizes = [size for size in range(elastic.min, elastic.max + 1) if size != now]
    if not sizes:
        return ()
    found = [
        Obstacle(name, sizes[0], "membership.elastic.supports does not declare it")
        for name in CAPABILITIES
        if name not in elastic.supports
    ]
    if spec.promise is Promise.BITWISE:
        found.append(Obstacle("promise", sizes[0], "bits are kept at one number of workers only"))
    if not set(allowed(spec, elastic.max)) - {now}:
        why = f"the global batch divides among none of {elastic.min} to {elastic.max} workers"
        found.append(Obstacle("global_batch", sizes[0], why))
    return tuple(found)


def allowed(spec: RunSpec, available: int) -> tuple[int, ...]:
    """The numbers of workers that the membership allows with ``available`` devices, largest first; empty:
    none, so the run waits. Of an elastic range those are left out that cannot hold the global batch."""
    membership = spec.membership
    if membership is None:
        return ()
    if membership.elastic is None:
        fixed = membership.fixed
        return () if fixed is None or fixed > available else (fixed,)
    elastic = membership.elastic
    global_batch = None if spec.data is None else spec.data.global_batch
    sizes = range(min(elastic.max, available), elastic.min - 1, -1)
    return tuple(size for size in sizes if global_batch is None or _holds(global_batch, size, elastic.uneven))


def _holds(global_batch: int, workers: int, uneven: str) -> bool:
    return global_batch >= workers and (uneven == "spread" or global_batch % workers == 0)
