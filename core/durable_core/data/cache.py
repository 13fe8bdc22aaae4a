"""L3. A local cache of data objects, keyed by what they hold: the digest in the manifest, never a URL.

::

    objects/ab/<64 hex>   whole, verified objects; read-only; the time of modification is that of the last use
    fills/<64 hex>        being filled; as long as the object will be, and locked by who fills it

Any number of threads and processes of one host share a directory. Everything they agree on is a lock that
the kernel keeps, so what a killed process held is free at once: *a pin* is a shared lock on an object, and
what is to be evicted is locked exclusively first. (On a network file system locks may reach only this host.)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from durable_core.clock import Clock, SystemClock
from durable_core.data.scratch import POLL_S, exclusive, is_at, sweep, try_lock
from durable_core.errors import (
    CacheError,
    CacheFullError,
    DataUnavailableError,
    DigestMismatchError,
    UsageError,
)
from durable_core.format.digests import SHA256

Fetch = Callable[[], Iterable[bytes]]


@dataclass(frozen=True)
class CacheCounts:
    """Since this ``DataCache`` was made, in this process. ``hits``: opened as they lay; ``misses``: had to be
    filled, by us or by somebody we waited for; ``filled_bytes``: verified and published by us; ``refetches``:
    fills that were not what they should be and were tried again; ``evictions`` and their bytes."""

    hits: int = 0
    misses: int = 0
    filled_bytes: int = 0
    refetches: int = 0
    evictions: int = 0
    evicted_bytes: int = 0


@dataclass(frozen=True)
class CacheUsage:
    """``objects`` whole ones of ``nbytes`` in all; ``pinned`` of them in use; ``filling``: bytes reserved."""

    objects: int
    nbytes: int
    pinned: int
    filling: int


class Pinned:
    """An object in the cache, which stays there until this is closed, or its process (and every process
    forked from it meanwhile) has ended. ``path`` may be read and mapped. ``hit``: opened as it lay."""

    hit = False

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def close(self) -> None:
        """Let go. What is open or mapped stays readable, even if the object is evicted."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Pinned:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DataCache:
    """At most ``max_bytes`` of objects in ``directory``, the least recently used given up for others.

    An object is fetched at most ``1 + refetch`` times when what comes is not what it should be. Whoever wants
    an object that another thread or process is filling waits for it, at most ``wait_s`` seconds.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        max_bytes: int,
        *,
        refetch: int = 1,
        wait_s: float = 600.0,
        clock: Clock | None = None,
    ) -> None:
        if max_bytes < 1 or refetch < 0:
            raise UsageError(f"a cache of {max_bytes} bytes that fetches {refetch} times again")
        self.directory = Path(directory).expanduser()
        self.max_bytes = max_bytes
        self.counts = CacheCounts()
        self._refetch = refetch
        self._wait_s = wait_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects = self.directory / "objects"
        self._fills = self.directory / "fills"
        with _told(f"use the cache {self.directory}"):
            for each in (self._objects, self._fills):
                each.mkdir(parents=True, exist_ok=True)
            sweep(self._fills, "*")

    def __reduce__(self) -> tuple[Callable[..., DataCache], tuple[object, ...]]:
        given = (str(self.directory), self.max_bytes, self._refetch, self._wait_s)
        return _made_again, given

    # --- using ---------------------------------------------------------------------------------

    def open(self, digest: str, nbytes: int, fetch: Fetch, *, name: str) -> Pinned:
        """The object with that digest and size, pinned; ``fetch()`` gives its content when it is not here.

        ``name`` is what errors call it. Raises ``DigestMismatchError`` when what is fetched is something else
        every time, ``CacheFullError`` when there is no room that is not in use, ``DataUnavailableError``
        when another process does not end filling it, and what ``fetch`` raises. None of it is published.
        """
        path = self._path(digest)
        if nbytes > self.max_bytes:
            raise CacheFullError(
                f"{name} has {nbytes} bytes and the cache {self.directory} may hold {self.max_bytes}",
                hint="raise max_bytes, or read it where it lies",
            )
        if (found := self._pin(path, nbytes)) is not None:
            self._count(hits=1)
            found.hit = True
            return found
        self._count(misses=1)
        while True:
            with self._turn(path, name) as fd:
                found = self._pin(path, nbytes, mend=True)  # somebody may have filled it meanwhile
                if found is None:
                    self._reserve(fd, nbytes, name)
                    self._fetch(fd, digest, nbytes, fetch, name)
                    found = self._publish(fd, path)
            if found is not None:  # else it was evicted in the instant before it was pinned
                return found

    def contains(self, digest: str) -> bool:
        """Whether it is here now; only ``open`` makes it stay."""
        return self._path(digest).exists()

    def drop(self, digest: str) -> bool:
        """Read the object again, and remove it if it is not what it should be; whether it was removed.

        For who has met a record that does not decode: a copy that is whole would only be fetched again as it
        is. Who has a damaged copy open keeps it.
        """
        path = self._path(digest)
        if not self._is_damaged(path):  # which takes nobody's turn
            return False
        with self._turn(path, path.name):
            damaged = self._is_damaged(path)  # still: nobody has filled it anew meanwhile
            if damaged:
                with _told(f"read the cache {self.directory}"):
                    path.unlink(missing_ok=True)
            return damaged

    def _is_damaged(self, path: Path) -> bool:
        """Whether something lies there, and not what its name says."""
        with _told(f"read the cache {self.directory}"):
            try:
                with path.open("rb") as stream:
                    found = hashlib.sha256()
                    while chunk := stream.read(1 << 20):
                        found.update(chunk)
            except FileNotFoundError:
                return False
        return found.hexdigest() != path.name

    def usage(self) -> CacheUsage:
        """What is here now: never more than ``max_bytes`` in all."""
        with _told(f"read the cache {self.directory}"), self._deciding():
            entries, pinned = self._entries(), 0
            for path, *_ in entries:
                fd = try_lock(path, write=False)
                pinned += fd is None
                if fd is not None:
                    os.close(fd)
            # What is published meanwhile is in neither; the other way round it would be in both.
            nbytes = sum(each for _, each, _ in entries)
            return CacheUsage(len(entries), nbytes, pinned, self._filling())

    def evict(self, to_bytes: int = 0) -> CacheUsage:
        """Give up the least recently used objects that are not in use, until ``to_bytes`` are left."""
        with _told(f"evict from the cache {self.directory}"), self._deciding():
            sweep(self._fills, "*")
            self._make_room(to_bytes)
        return self.usage()

    # --- inside --------------------------------------------------------------------------------

    def _path(self, digest: str) -> Path:
        if not SHA256.fullmatch(digest):
            raise UsageError(f"{digest!r} is no digest")
        name = digest.partition(":")[2]
        return self._objects / name[:2] / name

    def _pin(self, path: Path, nbytes: int, *, mend: bool = False) -> Pinned | None:
        """None when it is not here, or not whole: a disk lost what it had acknowledged. ``mend`` removes it
        then; only who may fill it can, or it would remove what another has filled."""
        with _told(f"read the cache {self.directory}"):
            while (fd := try_lock(path, shared=True)) is None:
                if not path.exists():
                    return None
                self._clock.sleep(POLL_S)  # somebody looks whether it is in use, or is about to remove it
            if os.fstat(fd).st_size == nbytes:
                return self._used(path, fd)
            os.close(fd)
            if mend:
                path.unlink(missing_ok=True)
            return None

    def _used(self, path: Path, fd: int) -> Pinned:
        now = int(self._clock.now() * 1e9)
        with suppress(OSError):  # another user's, or not to be written: then it ages without us
            os.utime(fd, ns=(now, now))
        return Pinned(path, fd)

    @contextmanager
    def _turn(self, path: Path, name: str) -> Iterator[int]:
        """The right to fill an object, and the private file to do it in."""
        with ExitStack() as stack:
            try:
                with _told(f"fill the cache {self.directory}"):
                    private = exclusive(self._fills / path.name, clock=self._clock, wait_s=self._wait_s)
                    fd = stack.enter_context(private)
            except TimeoutError as error:
                raise DataUnavailableError(
                    name, f"another process has been filling the cache with it for {self._wait_s:g} s"
                ) from error
            yield fd

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """One at a time decides about room, so that two do not both count on the same."""
        with ExitStack() as stack:
            try:
                lock = exclusive(self.directory / "room.lock", clock=self._clock, wait_s=self._wait_s)
                stack.enter_context(lock)
            except TimeoutError as error:
                raise CacheError(f"{error}: {self.directory} cannot be used") from error
            yield

    def _reserve(self, fd: int, nbytes: int, name: str) -> None:
        """Make the private file as long as the object will be: what counts is what it comes to."""
        with _told(f"fill the cache {self.directory}"):
            os.ftruncate(fd, 0)
            with self._deciding():
                sweep(self._fills, "*")
                filling = self._filling()
                wanted = self.max_bytes - nbytes - filling
                left = self._make_room(wanted) if wanted >= 0 else 0
                if left > wanted:
                    raise CacheFullError(
                        f"no room for the {nbytes} bytes of {name}: of {self.max_bytes} in {self.directory}, "
                        f"{left} are in use and {filling} being filled",
                        hint="raise max_bytes, or read it where it lies",
                    )
                os.ftruncate(fd, nbytes)

    def _fetch(self, fd: int, digest: str, nbytes: int, fetch: Fetch, name: str) -> None:
        """Until it is what it should be, and then no further."""
        for attempt in range(1, self._refetch + 2):
            fault = self._write(fd, fetch(), digest, nbytes)
            if fault is None:
                return
            if attempt > self._refetch:
                raise DigestMismatchError(name, f"fetched {attempt} times, {fault}; it is not published")
            self._count(refetches=1)

    def _write(self, fd: int, chunks: Iterable[bytes], digest: str, nbytes: int) -> str | None:
        """Write a content over the private file; what is wrong with it, if anything."""
        hashed, at = hashlib.sha256(), 0
        for chunk in chunks:
            hashed.update(chunk)
            if at + len(chunk) > nbytes:
                return f"it has more than {nbytes} bytes"
            with _told(f"fill the cache {self.directory}"):
                view = memoryview(chunk)
                while view:
                    done = os.pwrite(fd, view, at)
                    at, view = at + done, view[done:]
        if at != nbytes:
            return f"it has {at} bytes where {nbytes} are due"
        found = "sha256:" + hashed.hexdigest()
        return None if found == digest else f"it is {found} and not {digest}"

    def _publish(self, fd: int, path: Path) -> Pinned | None:
        """Under its name at one instant; the lock on the private file becomes the pin."""
        with _told(f"fill the cache {self.directory}"):
            os.fsync(fd)
            path.parent.mkdir(exist_ok=True)
            (self._fills / path.name).replace(path)
            os.fchmod(fd, 0o444)
            self._count(filled_bytes=os.fstat(fd).st_size)
            fcntl.flock(fd, fcntl.LOCK_SH)  # lets go for an instant
            return self._used(path, os.dup(fd)) if is_at(fd, path) else None

    def _entries(self) -> list[tuple[Path, int, int]]:
        """(path, bytes, last use in ns) of the whole objects, the least recently used first."""
        found = []
        for path in self._objects.glob("*/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((path, status.st_size, status.st_mtime_ns))
        return sorted(found, key=lambda each: (each[2], each[0].name))

    def _filling(self) -> int:
        total = 0
        for path in self._fills.iterdir():
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def _make_room(self, to_bytes: int) -> int:
        """Evict down to ``to_bytes``; the bytes that are left, more when they are in use."""
        entries = self._entries()
        left = sum(nbytes for _, nbytes, _ in entries)
        for path, nbytes, _ in entries:
            if left <= to_bytes:
                break
            fd = try_lock(path, write=False)
            if fd is None and path.exists():
                continue  # in use
            if fd is not None:
                path.unlink()
                os.close(fd)
                self._count(evictions=1, evicted_bytes=nbytes)
            left -= nbytes
        return left

    def _count(self, **more: int) -> None:
        with self._lock:
            old = self.counts
            self.counts = CacheCounts(
                **{each.name: getattr(old, each.name) + more.get(each.name, 0) for each in fields(old)}
            )


def _made_again(directory: str, max_bytes: int, refetch: int, wait_s: float) -> DataCache:
    """In another process: the same directory, counts of its own."""
    return DataCache(directory, max_bytes, refetch=refetch, wait_s=wait_s)


@contextmanager
def _told(doing: str) -> Iterator[None]:
    """A disk that is full or read-only is no fault of the data."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        raise CacheError(
            f"cannot {doing}: {error.strerror or error}", hint="the data can be read where it lies"
        ) from error
