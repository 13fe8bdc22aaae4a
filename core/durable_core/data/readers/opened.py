"""L3. The objects of a dataset that a process has open: found, verified, indexed, and closed again.

All state here belongs to one process. An object that is used by a thread is closed when that is done.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from durable_core.data.cache import DataCache
from durable_core.data.files import File, LocalFile, Location, Stat
from durable_core.data.physical.metrics import Metrics
from durable_core.data.readers.base import Held, ObjectReader
from durable_core.data.readers.registry import companion_of, open_object
from durable_core.data.readers.tables import digest_of, kept_index
from durable_core.errors import DigestMismatchError, FormatError

Verify = Literal["open", "size"]


class Described(Protocol):
    """What a manifest says of one object."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def records(self) -> int: ...


@dataclass
class _Open:
    """``stack`` closes the reader, and lets go of what its object is held with."""

    reader: ObjectReader
    stack: ExitStack
    users: int = 0
    evicted: bool = False


class Objects:
    """Readers of a manifest's objects, at most ``most`` open; ``use`` opens what is not.

    ``verify``: ``open`` digests an object once a process before its first record is given (again when its
    stamp has changed since), or the copy of it that lies in the cache; ``size`` compares sizes only. What is
    fetched into a cache is always verified. Uses of it are counted in ``metrics``.
    """

    def __init__(
        self,
        objects: Sequence[Described],
        location: Location,
        format: str,
        *,
        columns: Sequence[str] | None,
        verify: Verify,
        cache: DataCache | None,
        index_dir: Path | None,
        held: Held,
        most: int,
        metrics: Metrics | None = None,
    ) -> None:
        self._objects, self._location, self._format = objects, location, format
        self._columns, self._verify, self._cache = columns, verify, cache
        self._index_dir, self._held, self._most = index_dir, held, most
        self._metrics = metrics or Metrics()
        self._by_name = {item.name: item for item in objects}
        self._lock = threading.Lock()
        self._opening = [threading.Lock() for _ in range(16)]  # two threads open one object once
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._verified: dict[str, Stat] = {}
        self._looked_at: set[str] = set()  # copies in the cache

    @contextmanager
    def use(self, number: int) -> Iterator[ObjectReader]:
        """The reader of object ``number``, which stays open meanwhile.

        Raises ``ObjectNotFoundError``, ``DigestMismatchError`` or ``FormatError`` naming the object, and
        ``DataUnavailableError`` when it cannot be read.
        """
        entry = self._enter(number)
        try:
            yield entry.reader
        finally:
            with self._lock:
                entry.users -= 1
                done = entry.evicted and not entry.users
            if done:
                entry.stack.close()

    def again(self, number: int) -> None:
        """Forget object ``number`` and every copy of it: the next use fetches and verifies it anew."""
        item = self._objects[number]
        with self._lock:
            entry = self._open.pop(number, None)
            self._verified.pop(item.name, None)
        self._retire([] if entry is None else [entry])
        if self._cache is not None:
            self._cache.drop(item.digest)
            companion = companion_of(self._format, item.name)
            if companion is not None:
                self._cache.drop(self._described(companion).digest)

    def close(self) -> None:
        with self._lock:
            entries = list(self._open.values())
            self._open.clear()
        self._retire(entries)

    def _retire(self, entries: Sequence[_Open]) -> None:
        """Close what nobody can enter any more: now, or when the last who uses it has ended."""
        with self._lock:
            for entry in entries:
                entry.evicted = True
            idle = [entry for entry in entries if not entry.users]
        for entry in idle:
            entry.stack.close()

    def _enter(self, number: int) -> _Open:
        entry = self._entered(number)
        if entry is not None:
            return entry
        with self._opening[number % len(self._opening)]:
            entry = self._entered(number)  # somebody may have opened it meanwhile
            if entry is not None:
                return entry
            entry = self._opened(self._objects[number])
            entry.users = 1
            with self._lock:
                self._open[number] = entry
                surplus = [self._open.popitem(last=False)[1] for _ in range(len(self._open) - self._most)]
        self._retire(surplus)
        return entry

    def _entered(self, number: int) -> _Open | None:
        with self._lock:
            entry = self._open.get(number)
            if entry is not None:
                self._open.move_to_end(number)
                entry.users += 1
            return entry

    def _opened(self, item: Described) -> _Open:
        with ExitStack() as stack:
            file = self._found(item, stack)
            name = companion_of(self._format, item.name)
            companion = None if name is None else self._found(self._described(name), stack)
            index = None
            if self._index_dir is not None and companion is None:
                verified = item.name in (self._verified if self._cache is None else self._looked_at)
                index = kept_index(
                    self._index_dir, item.digest, self._format, file, item.records, verified=verified
                )
            reader = open_object(
                self._format, file, index, self._columns, companion=companion, held=self._held
            )
            stack.callback(reader.close)
            if len(reader) != item.records:
                raise FormatError(item.name, f"{len(reader)} records where the manifest says {item.records}")
            return _Open(reader, stack.pop_all())

    def _described(self, name: str) -> Described:
        if name not in self._by_name:
            raise FormatError(name, "is not in the manifest, and the records lie in it")
        return self._by_name[name]

    def _found(self, item: Described, stack: ExitStack) -> File:
        """The object's file, verified as declared."""
        file = self._location.file(item.name)
        if self._cache is not None:
            if self._verify == "open" and item.name not in self._looked_at:
                self._cache.drop(item.digest)  # if it lies there and is something else: then it is fetched
                self._looked_at.add(item.name)
            fetched = self._cache.open(item.digest, item.nbytes, file.chunks, name=item.name)
            self._metrics.count(hits=int(fetched.hit), misses=int(not fetched.hit))
            path = stack.enter_context(fetched).path
            local = LocalFile(path.parent, path.name)
            local.name = item.name  # what errors call it; in the cache it is named by its digest
            return local
        stat = file.stat()
        if stat.nbytes != item.nbytes:
            raise DigestMismatchError(item.name, f"{stat.nbytes} bytes where the manifest says {item.nbytes}")
        if self._verify == "open" and (stat.stamp is None or self._verified.get(item.name) != stat):
            if digest_of(file) != item.digest:
                raise DigestMismatchError(item.name, f"content is not {item.digest}")
            self._verified[item.name] = stat
        return file
