"""L3. A tier in this process's memory: for tests, the simulator, and as the contract in its shortest form."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from durable_core.errors import FormatError, ObjectNotFoundError, UsageError
from durable_core.format import layout
from durable_core.tier.base import DEFAULT_LIMIT, Buffer, Tier, byte_view


class MemoryTier(Tier):
    """One lock makes every operation atomic; durable for as long as the process lives."""

    def __init__(self, name: str = "memory") -> None:
        self.location = f"memory://{name}"
        self._lock = threading.Lock()
        self._objects: dict[str, bytes] = {}

    def get(self, key: str, *, limit: int = DEFAULT_LIMIT) -> bytes:
        data = self._find(key)
        if len(data) > limit:
            raise FormatError(key, f"{len(data)} bytes, more than the limit of {limit}")
        return data

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        if offset < 0:
            raise UsageError(f"{key}: read at negative offset {offset}")
        data = self._find(key)
        target = byte_view(out)
        if offset + len(target) > len(data):
            raise FormatError(key, f"{len(data)} bytes, too short for {len(target)} at {offset}")
        target[:] = memoryview(data)[offset : offset + len(target)]

    def size(self, key: str) -> int:
        return len(self._find(key))

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        layout.check_key(key)
        copied = bytes(data)
        with self._lock:
            if key in self._objects:
                return False
            self._objects[key] = copied
            return True

    def put(self, key: str, data: Buffer) -> None:
        layout.check_key(key)
        copied = bytes(data)
        with self._lock:
            self._objects[key] = copied

    def write_object(self, key: str, parts: Iterable[Buffer]) -> int:
        layout.check_key(key)
        data = b"".join([bytes(part) for part in parts])
        with self._lock:
            if key in self._objects:
                raise UsageError(f"{key} is already there, and objects are immutable")
            self._objects[key] = data
        return len(data)

    def delete(self, key: str) -> None:
        layout.check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def list(self, prefix: str) -> Iterator[str]:
        layout.check_prefix(prefix)
        with self._lock:
            found = [key for key in self._objects if key.startswith(prefix)]
        return iter(found)

    def sync_tail(self, prefix: str) -> None:
        layout.check_prefix(prefix)

    def probe(self) -> None:
        """Nothing to prove: the lock is the primitive."""

    def _find(self, key: str) -> bytes:
        layout.check_key(key)
        with self._lock:
            data = self._objects.get(key)
        if data is None:
            raise ObjectNotFoundError(key, self.location)
        return data
