"""L3. Journal slots fetched before they are asked for, so that a replay costs one latency in many.

Safe because a slot, once there, never changes: what was found early is what would be found now. That a
slot is *empty* can change at any moment, so an absence found early is thrown away and asked for again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from durable_core.format import layout

#: Slots read one after the other before any is fetched early: following the tail never gets there.
AFTER = 4

#: Requests under way at once.
THREADS = 16


class ReadAhead:
    """``fetch(key)`` gives the bytes or ``None``, and never raises. ``depth``: slots in advance."""

    def __init__(self, fetch: Callable[[str], bytes | None], depth: int) -> None:
        self._fetch = fetch
        self._depth = depth
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._next = -1
        self._run = 0
        self._early: dict[int, Future[bytes | None]] = {}

    def take(self, key: str) -> bytes | None:
        """What was found of journal slot ``key`` in advance, once; ``None``: ask the store."""
        seq = layout.parse_journal_key(key)
        if seq is None:
            return None
        with self._lock:
            self._follow(seq)
            early = self._early.pop(seq, None)
        found = None if early is None else early.result()
        if early is not None and found is None:
            with self._lock:
                self._forget()
        return found

    def _follow(self, seq: int) -> None:
        if seq != self._next:
            self._forget()
        self._next, self._run = seq + 1, self._run + 1
        if self._run <= AFTER:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="durable-readahead")
        for ahead in range(seq + 1, seq + 1 + min(self._depth, self._run)):
            if ahead not in self._early:
                self._early[ahead] = self._pool.submit(self._fetch, layout.journal_key(ahead))

    def _forget(self) -> None:
        for future in self._early.values():
            future.cancel()
        self._early.clear()
        self._run = 0
