"""L3. Reading ahead: in parallel, in bounded room, and handed over in the order that was asked for.

Reads are issued in logical order, by sequence number, to threads; they end in any order and wait in a
bounded buffer for their turn. When the room is used up nothing more is issued (the producer is held, and
that is counted) until something is taken. Only the next object in turn may always be read, so nothing
can stand still. How long reads take, which ones are tried again, and what a cache holds change nothing
in what comes out.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from durable_core.clock import Clock, SystemClock
from durable_core.data.physical.metrics import Metrics
from durable_core.data.physical.retry import Retries, RetryCounts, retried
from durable_core.errors import DataUnavailableError, UsageError

K = TypeVar("K")
V = TypeVar("V")

TRANSIENT = (OSError,)
PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


@dataclass(eq=False)
class _Read(Generic[K, V]):
    """One object on its way, or there; ``reserved`` bytes are kept for it."""

    key: K
    reserved: int
    future: Future[V] | None = None
    ended: bool = False
    given_up: bool = False


class ReadAhead(Generic[K, V]):
    """``read(key)`` ahead of need, by ``threads`` threads.

    Either ``over(keys)`` gives the values of any sequence of keys, in its order; or ``prefetch(keys)`` begins
    with keys that are then asked for by ``take(key)``, best in that order. One consumer; ``read`` is called
    from several threads. An error of ``read``'s is raised where its value was due.

    Args:
        max_items: objects being read or read and not yet taken.
        max_bytes: and their bytes. ``size_of(key)`` tells them beforehand; without it, what is being read
            counts as the greatest seen so far, so the bound may be passed by what is greater than that.
        timeout_s: how long the object next in turn is waited for, all attempts together.
        retries: of errors in ``transient`` (and not in ``permanent``); each attempt must bound its own time.

    Raises ``UsageError`` for a bound that is none, ``DataUnavailableError`` naming the object.
    """

    def __init__(
        self,
        read: Callable[[K], V],
        *,
        threads: int = 4,
        max_items: int = 64,
        max_bytes: int = 64 << 20,
        timeout_s: float = 300.0,
        retries: Retries = Retries(),  # noqa: B008  # frozen
        size_of: Callable[[K], int] | None = None,
        transient: tuple[type[Exception], ...] = TRANSIENT,
        permanent: tuple[type[Exception], ...] = PERMANENT,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        for name, bound in (("threads", threads), ("max_items", max_items), ("max_bytes", max_bytes)):
            if not isinstance(bound, int) or bound < 1:
                raise UsageError(f"{name} must be a whole number above 0, not {bound}: no queue is unbounded")
        if not 0 < timeout_s < math.inf:
            raise UsageError(f"timeout_s must be above 0 and finite, not {timeout_s}")
        self._read, self._size_of = read, size_of
        self._threads, self._max_items, self._max_bytes = threads, max_items, max_bytes
        self._timeout_s, self._retries = timeout_s, retries
        self._transient, self._permanent = transient, permanent
        self._clock: Clock = clock or SystemClock()
        self.metrics = Metrics() if metrics is None else metrics
        self._greatest = 0
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        """Threads and locks do not survive a fork: a worker begins with none."""
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._pool: ThreadPoolExecutor | None = None
        self._keys: Iterator[K] = iter(())
        self._waiting: list[K] = []  # the next key, if there was no room for it
        self._reads: deque[_Read[K, V]] = deque()  # in logical order
        self._running: set[_Read[K, V]] = set()
        self._reserved = 0

    def __getstate__(self) -> dict[str, Any]:
        local = ("_lock", "_pool", "_keys", "_waiting", "_reads", "_running", "_reserved", "_process")
        return {name: value for name, value in self.__dict__.items() if name not in local}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    # --- for the consumer ----------------------------------------------------------------------

    def over(self, keys: Iterable[K]) -> Iterator[V]:
        """The value of each key, in order. Keys are asked for as room allows. Ends what went before."""
        self._begin(iter(keys))
        try:
            while True:
                with self._lock:
                    self._issue()
                    if not self._reads:
                        return
                    head = self._reads[0]
                yield self._value(head)
        finally:
            self._give_up()

    def prefetch(self, keys: Iterable[K]) -> None:
        """Begin with these, as room allows; what was begun before and not taken is given up."""
        self._begin(iter(tuple(keys)))
        with self._lock:
            self._issue()

    def take(self, key: K) -> V:
        """The value of ``key``: waited for if it is on its way, else read here and now."""
        if self._process == os.getpid():
            with self._lock:
                self._issue()
                found = next((read for read in self._reads if read.key == key), None)
            if found is not None:
                return self._value(found)
        return self._attempts(key)

    @property
    def depth(self) -> int:
        """Objects being read, or read and not taken."""
        return len(self._reads)

    @property
    def nbytes(self) -> int:
        """Bytes held or reserved."""
        return self._reserved

    def close(self) -> None:
        """Give up what is on its way and end all threads, after the reads that have begun.

        Raises ``DataUnavailableError`` naming an object still being read after ``timeout_s`` seconds.
        """
        self._closed = True
        if self._process != os.getpid() or self._pool is None:
            return
        self._give_up()
        running = {read.future: read for read in tuple(self._running) if read.future is not None}
        stuck = wait(running, timeout=self._timeout_s).not_done
        self._pool.shutdown(wait=not stuck)
        self._pool = None
        for future in stuck:
            raise DataUnavailableError(
                str(running[future].key), f"still being read after {self._timeout_s} s"
            )

    # --- inside ----------------------------------------------------------------------------------

    def _begin(self, keys: Iterator[K]) -> None:
        if self._closed:
            raise UsageError("this read-ahead is closed")
        if self._process != os.getpid():
            self._reset()
        self._give_up()
        self._keys = keys

    def _give_up(self) -> None:
        with self._lock:
            self._keys, self._waiting = iter(()), []
            while self._reads:
                self._drop(self._reads[0])

    def _drop(self, read: _Read[K, V]) -> None:
        """Out of the buffer. One that is running keeps its bytes until it ends."""
        self._reads.remove(read)
        read.given_up = True
        assert read.future is not None
        if read.future.cancel() or read.ended:
            self._running.discard(read)
            self._reserved -= read.reserved

    def _issue(self) -> None:
        """Under the lock: begin reads in logical order until there is no room, or no key."""
        while self._waiting or self._pull():
            cost = self._greatest if self._size_of is None else self._size_of(self._waiting[0])
            if self._reads and not self._fits(cost):
                self.metrics.count(held=1)
                return
            read: _Read[K, V] = _Read(self._waiting.pop(), cost)
            self._reserved += cost
            self._reads.append(read)
            self._running.add(read)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="durable-read")
            read.future = self._pool.submit(self._work, read)

    def _pull(self) -> bool:
        self._waiting = list(itertools.islice(self._keys, 1))
        return bool(self._waiting)

    def _fits(self, cost: int) -> bool:
        items = len(self._reads) + sum(read.given_up for read in self._running)
        known = self._size_of is not None or self._greatest
        limit = self._max_items if known else min(self._max_items, self._threads)
        return items < limit and self._reserved + cost <= self._max_bytes

    def _work(self, read: _Read[K, V]) -> V:
        """In a thread."""
        size = 0
        try:
            value = self._attempts(read.key)
            size = size_in_bytes(value)
            return value
        finally:
            with self._lock:
                self._greatest = max(self._greatest, size)
                self._reserved += (0 if read.given_up else size) - read.reserved
                read.reserved, read.ended = size, True
                self._running.discard(read)

    def _attempts(self, key: K) -> V:
        counts, begun = RetryCounts(), self._clock.monotonic()
        try:
            value = retried(
                lambda: self._read(key),
                name=str(key),
                retries=self._retries,
                clock=self._clock,
                transient=self._transient,
                permanent=self._permanent,
                counts=counts,
            )
        except self._transient as error:
            reason = f"{type(error).__name__}: {error} (attempt {counts.attempts})"
            raise DataUnavailableError(str(key), reason) from error
        finally:
            self.metrics.measure("read", self._clock.monotonic() - begun)
            self.metrics.count(retries=counts.retries)
        self.metrics.count(records=1, nbytes=size_in_bytes(value))
        return value

    def _value(self, read: _Read[K, V]) -> V:
        """Wait for it, and take it out."""
        assert read.future is not None
        begun = self._clock.monotonic()
        there = wait((read.future,), timeout=self._timeout_s).done
        with self._lock:
            self.metrics.depth, self.metrics.age_s = len(self._reads), self._clock.monotonic() - begun
            self._drop(read)
        if not there:
            raise DataUnavailableError(
                str(read.key),
                f"not there after {self._timeout_s} s, and everything after it waits for it",
                hint="raise timeout_s, or look at the store",
            )
        return read.future.result()


def size_in_bytes(value: object) -> int:
    """What a value counts for: its buffer where it has one, else the object alone."""
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    nbytes = getattr(value, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else sys.getsizeof(value)
