"""L3. Trying again: bounded, jittered, counted. Nothing is drawn from a global stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from durable_core.clock import Clock
from durable_core.data.keys import hash_fields
from durable_core.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Retries:
    """An operation is tried ``attempts`` times, each for at most ``timeout_s`` seconds.

    Before the k-th further attempt (from 1) it pauses for a random part, between a half and all, of
    ``base_s * 2**(k - 1)``, at most ``cap_s``, seconds. The part is drawn anew for each operation, so that
    clients that failed together do not come back together; with a ``seed``, from that and the object's name.
    """

    attempts: int = 5
    base_s: float = 0.1
    cap_s: float = 5.0
    timeout_s: float = 60.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise UsageError(f"attempts must be 1 or more, not {self.attempts}")
        if not (0 <= self.base_s <= self.cap_s < float("inf")):
            raise UsageError(f"base_s {self.base_s} and cap_s {self.cap_s}: 0 <= base_s <= cap_s is needed")
        if not self.timeout_s > 0:
            raise UsageError(f"timeout_s must be above 0, not {self.timeout_s}")

    def pause(self, retry: int, name: str, chance: str = "") -> float:
        """Seconds before further attempt ``retry`` (from 1) at ``name``; ``chance`` differs from operation to
        operation, and says nothing where there is a seed. Pure."""
        salt = chance if self.seed is None else f"seed {self.seed}"
        drawn = int.from_bytes(hash_fields("retry_v1", salt, name, retry, size=8), "little") / 2**64
        grown = self.base_s * 2.0 ** min(retry - 1, 64)
        return min(grown, self.cap_s) * (0.5 + 0.5 * drawn)


@dataclass
class RetryCounts:
    """What trying again came to, of all threads that share it. ``told``: retries that ``news`` has given."""

    attempts: int = 0
    retries: int = 0
    failures: int = 0
    told: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, *, attempts: int = 0, retries: int = 0, failures: int = 0) -> None:
        with self._lock:
            self.attempts += attempts
            self.retries += retries
            self.failures += failures

    def news(self) -> int:
        """Retries since the last call, here or in the process this came from."""
        with self._lock:
            new, self.told = self.retries - self.told, self.retries
        return new

    def __reduce__(self) -> tuple[type[RetryCounts], tuple[int, int, int, int]]:
        """A process has counts of its own: a lock does not travel."""
        return RetryCounts, (self.attempts, self.retries, self.failures, self.retries)


def retried(
    work: Callable[[], T],
    *,
    name: str,
    retries: Retries,
    clock: Clock,
    transient: tuple[type[BaseException], ...],
    permanent: tuple[type[BaseException], ...] = (),
    counts: RetryCounts | None = None,
) -> T:
    """``work()``, again after an error in ``transient`` that is not in ``permanent`` as well.

    ``work`` must come to the same when repeated, and bound its own duration by ``retries.timeout_s``.
    Raises what the last attempt raised.
    """
    counted = counts if counts is not None else RetryCounts()
    attempt = 0
    while True:
        attempt += 1
        counted.add(attempts=1)
        try:
            return work()
        except transient as error:
            if isinstance(error, permanent) or attempt == retries.attempts:
                counted.add(failures=1)
                raise
        counted.add(retries=1)
        clock.sleep(retries.pause(attempt, name, clock.new_id()))
