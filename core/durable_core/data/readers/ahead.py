"""L3. Reading ahead by threads, bounded in records and bytes; what goes wrong is raised for its own id."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_TOGETHER = 8
"""Records of one object that one thread reads one after another."""


@dataclass
class _Entry(Generic[T]):
    future: Future[list[T]]
    place: int
    cost: int


class ReadAhead(Generic[T]):
    """``begin`` starts reads, ``take`` waits for one. To take in another order costs time only.

    ``read(ids)`` gives an outcome for each; what it raises is raised for all of them. ``group(id)``: ids of
    one group are read together. ``cost(id)``: bytes. What does not fit is not begun: it is read when it is
    asked for.
    """

    def __init__(
        self,
        read: Callable[[Sequence[int]], list[T]],
        *,
        group: Callable[[int], Any],
        cost: Callable[[int], int],
        threads: int,
        max_items: int,
        max_bytes: int,
    ) -> None:
        self._read, self._group, self._cost = read, group, cost
        self._max_items, self._max_bytes = max_items, max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, _Entry[T]] = OrderedDict()
        self.nbytes = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="durable-read-ahead")

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, ids: Sequence[int]) -> None:
        """Start to read what is not begun yet, as far as it fits. Does not wait."""
        with self._lock:
            for run in self._runs(ids):
                future = self._pool.submit(self._read, run)
                for place, each in enumerate(run):
                    cost = self._cost(each)
                    self._entries[each] = _Entry(future, place, cost)
                    self.nbytes += cost

    def take(self, id: int) -> T | None:
        """The outcome for ``id``, once; None when its read was not begun.

        What was begun before it and not taken by now is given up: a pass that was left.
        """
        with self._lock:
            if id not in self._entries:
                return None
            while True:
                first, entry = self._entries.popitem(last=False)
                self.nbytes -= entry.cost
                if first == id:
                    break
        return entry.future.result()[entry.place]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _runs(self, ids: Sequence[int]) -> list[list[int]]:
        runs: list[list[int]] = []
        items, nbytes, of = len(self._entries), self.nbytes, object()
        for each in dict.fromkeys(ids):
            if each in self._entries:
                continue
            items, nbytes = items + 1, nbytes + self._cost(each)
            if items > self._max_items or nbytes > self._max_bytes:
                break
            group = self._group(each)
            if group != of or len(runs[-1]) == _TOGETHER:
                runs.append([])
            of = group
            runs[-1].append(each)
        return runs
