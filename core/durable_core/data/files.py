"""L3. Where data lies: a directory, or a URL through fsspec (``s3://``). A location is never an identity.

Reads are ranges, each bounded in time and repeated as ``Retries`` says. What is opened here can be used in a
forked or spawned worker: nothing that belongs to a process is kept across processes.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from durable_core.clock import Clock, SystemClock
from durable_core.data.physical.retry import Retries, RetryCounts
from durable_core.errors import (
    DataUnavailableError,
    FormatError,
    ObjectNotFoundError,
    UsageError,
)

if TYPE_CHECKING:
    pass

T = TypeVar("T")

MIB = 1 << 20
#: Bytes of one request to a remote store: what a timeout or a retry is about.
PIECE = 8 * MIB
#: Seconds between two times that every file system tells apart.
COARSEST_S = 2.0
#: Errors that stay as they are however often one asks.
SETTLED = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


@dataclass(frozen=True)
class Stat:
    """What a store says without the content being read. ``stamp``: differs when the content does (times and
    inode, or an ETag); None where the store has none. ``changed``: wall-clock seconds, if known."""

    nbytes: int
    stamp: str | None
    changed: float | None = None

    def settled(self, now: float) -> bool:
        """Whether a later change is sure to change the stamp: a clock of coarse ticks gives two changes
        within one the same time, so what changed just now is not trusted."""
        return self.stamp is not None and (self.changed is None or now - self.changed > COARSEST_S)


class File(ABC):
    """One object at a location. ``name`` is relative to it; ``url`` says where, for messages and libraries;
    ``path`` is its path when it is a local file. Picklable; holds nothing open.

    Every method raises ``ObjectNotFoundError`` when there is no such object, and ``DataUnavailableError``
    when it cannot be read.
    """

    name: str
    url: str
    path: str | None = None

    @abstractmethod
    def stat(self) -> Stat:
        """Size and stamp."""

    def size(self) -> int:
        """Bytes."""
        return self.stat().nbytes

    @abstractmethod
    def read_range(self, begin: int, length: int) -> bytes:
        """Bytes [begin, begin + length); fewer where the object ends. Threads may share it."""

    @abstractmethod
    def open(self) -> BinaryIO:
        """A seekable stream, for libraries that want one. Its errors may be those of ``open``."""

    def alias(self) -> str | None:
        """What the name leads through that may come to mean something else, in words; None if nothing."""
        return None

    def chunks(self, size: int = PIECE) -> Iterator[bytes]:
        """The whole content in order, in pieces of ``size`` bytes."""
        end = self.size()
        for begin in range(0, end, size):
            yield self.read_range(begin, min(size, end - begin))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class Location(ABC):
    """A directory or a prefix of a store. ``url`` says where; ``counts`` are those of all its files."""

    url: str
    counts: RetryCounts

    @abstractmethod
    def file(self, name: str) -> File:
        """The object of that name, there or not. Raises ``FormatError`` for no path below the location."""

    @abstractmethod
    def names(self) -> list[str]:
        """All objects below, sorted by code point; links are named and not followed."""


def open_location(
    where: str | os.PathLike[str],
    *,
    retries: Retries | None = None,
    options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Location:
    """A directory (a path, or ``file://``), or ``s3://bucket/prefix[?endpoint=&region=&profile=]``, or any
    other URL that fsspec has a file system for.

    ``options`` go to that file system; credentials come from the environment, a profile or the instance.
    A store that fsspec reaches without asyncio (``memory://``, ``sftp://``) and a local disk are not bounded
    in time here. Raises ``UsageError``, or ``UnsupportedError`` when the file system is not installed.
    """
    text = os.fspath(where)
    scheme, found, rest = text.partition("://")
    if not found or scheme == "file":
        return LocalLocation(Path(rest) if found else Path(text).expanduser())
    from durable_core.data.stores import RemoteLocation  # a directory needs none of it

    return RemoteLocation(text, retries or Retries(), dict(options or {}), clock or SystemClock())


def open_file(where: str | os.PathLike[str], **how: Any) -> File:
    """The one object at a path or URL; arguments as for ``open_location``."""
    text = os.fspath(where)
    location, _, query = text.partition("?") if "://" in text else (text, "", "")
    parent, _, name = location.rpartition("/")
    if not name:
        raise UsageError(f"{text!r} names no object")
    root = parent or ("/" if location.startswith("/") else ".")
    return open_location(f"{root}?{query}" if query else root, **how).file(name)


def check_name(name: str) -> None:
    """Raises ``FormatError`` unless ``name`` is a path below a location, in its one spelling."""
    if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise FormatError(name, "not a path below the dataset's root")


# --- a directory ---------------------------------------------------------------------------------


class LocalLocation(Location):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)
        self.counts = RetryCounts()

    def file(self, name: str) -> LocalFile:
        check_name(name)
        return LocalFile(self.root, name)

    def names(self) -> list[str]:
        found: list[str] = []
        for directory, inner, files in os.walk(self.root, onerror=self._refuse):
            links = [name for name in inner if Path(directory, name).is_symlink()]
            found.extend(Path(directory, name).relative_to(self.root).as_posix() for name in files + links)
        return sorted(found)

    def _refuse(self, error: OSError) -> None:
        """``os.walk`` would leave out what it cannot list."""
        raise told(error, str(error.filename or self.root), self.url) from error


class LocalFile(File):
    """Plain reads: the kernel's page cache and read-ahead are better than any of ours."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self._root = root
        self._path = root / name
        self.path = self.url = str(self._path)

    def stat(self) -> Stat:
        status = self._do(self._path.stat)
        # The inode tells a file put in the place of another, ctime one whose mtime was set back.
        stamp = f"{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}"
        return Stat(status.st_size, stamp, max(status.st_mtime, status.st_ctime))

    def read_range(self, begin: int, length: int) -> bytes:
        def work() -> bytes:
            with self._path.open("rb", buffering=0) as stream:
                stream.seek(begin)
                pieces = []
                left = length
                while left and (piece := stream.read(left)):
                    pieces.append(piece)
                    left -= len(piece)
                return b"".join(pieces)

        return self._do(work)

    def chunks(self, size: int = MIB) -> Iterator[bytes]:
        with self.open() as stream:
            while chunk := self._do(lambda: stream.read(size)):
                yield chunk

    def open(self) -> BinaryIO:
        return self._do(lambda: self._path.open("rb"))

    def alias(self) -> str | None:
        parts = [self._path, *self._path.parents[: self.name.count("/")]]
        link = next((part for part in parts if part.is_symlink()), None)
        return None if link is None else f"{link} is a symbolic link to {link.readlink()}"

    def _do(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            raise told(error, self.name, str(self._root)) from error


def told(
    error: BaseException, name: str, where: str, *, attempts: int = 1
) -> ObjectNotFoundError | DataUnavailableError:
    """The error to raise for one of a file system, without what a store may have put into its text."""
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError(name, where)
    strerror = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""
    said = f"cannot be read: {strerror or type(error).__name__}"
    if attempts > 1:
        said += f", {attempts} times"
    return DataUnavailableError(name, said, hint=f"it should be at {where}")
