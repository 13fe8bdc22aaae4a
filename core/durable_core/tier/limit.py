"""L3. Bandwidth: background copies must not take the disk or the network from training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from durable_core.clock import Clock
from durable_core.errors import UsageError
from durable_core.tier.base import DEFAULT_LIMIT, Buffer, Tier, byte_view

#: Bytes let through at a time.
PIECE = 4 << 20


class RateLimit:
    """At most ``bytes_per_second``, for any number of threads together, with bursts of ``burst_s`` seconds.

    A bucket of tokens kept as the instant at which it will be full again (the virtual scheduling form of
    the leaky bucket, ITU-T I.371 annex A): over any span of t seconds at most rate x (t + burst) pass.
    """

    def __init__(self, bytes_per_second: float, clock: Clock, *, burst_s: float = 1.0) -> None:
        if not bytes_per_second > 0 or burst_s < 0:
            raise UsageError(f"a limit of {bytes_per_second} bytes per second, bursts of {burst_s} seconds")
        self._rate = bytes_per_second
        self._burst = burst_s
        self._clock = clock
        self._lock = threading.Lock()
        self._full_at = clock.monotonic()

    def take(self, nbytes: int) -> None:
        """Return when ``nbytes`` more may pass; those who ask later wait behind."""
        with self._lock:
            now = self._clock.monotonic()
            self._full_at = max(self._full_at, now) + nbytes / self._rate
            wait = self._full_at - self._burst - now
        if wait > 0:
            self._clock.sleep(wait)


class RateLimited(Tier):
    """``inner``; the bytes of objects pass ``limit``. Documents do not: the protocol waits for nobody."""

    def __init__(self, inner: Tier, limit: RateLimit) -> None:
        self.location = inner.location
        self.replaces_atomically = inner.replaces_atomically
        self.inner = inner
        self._limit = limit

    def get(self, key: str, *, limit: int = DEFAULT_LIMIT) -> bytes:
        return self.inner.get(key, limit=limit)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        self.stream_into(key, offset, out, lambda part: None)

    def stream_into(
        self, key: str, offset: int, out: memoryview, seen: Callable[[memoryview], object]
    ) -> None:
        view = byte_view(out)
        for begin in range(0, max(len(view), 1), PIECE):  # also of nothing: the key may not be there
            part = view[begin : begin + PIECE]
            self._limit.take(len(part))
            self.inner.stream_into(key, offset + begin, part, seen)

    def size(self, key: str) -> int:
        return self.inner.size(key)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        return self.inner.put_if_absent(key, data)

    def put(self, key: str, data: Buffer) -> None:
        self.inner.put(key, data)

    def write_object(self, key: str, parts: Iterable[Buffer]) -> int:
        return self.inner.write_object(key, self._paced(parts))

    def replace_object(self, key: str, parts: Iterable[Buffer]) -> int:
        return self.inner.replace_object(key, self._paced(parts))

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def list(self, prefix: str) -> Iterator[str]:
        return self.inner.list(prefix)

    def sync_tail(self, prefix: str) -> None:
        self.inner.sync_tail(prefix)

    def probe(self) -> None:
        self.inner.probe()

    def collect_residue(self, *, limit: int = 1000) -> int:
        return self.inner.collect_residue(limit=limit)

    def _paced(self, parts: Iterable[Buffer]) -> Iterator[memoryview]:
        for part in parts:
            view = byte_view(part)
            for begin in range(0, len(view), PIECE):
                piece = view[begin : begin + PIECE]
                self._limit.take(len(piece))
                yield piece
