"""L3. Where data lies: a directory, or a URL through fsspec (``s3://``). A location is never an identity.

Reads are ranges, each bounded in time and repeated as ``Retries`` says. What is opened here can be used in a
forked or spawned worker: nothing that belongs to a process is kept across processes.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import parse_qsl, urlsplit

from durable_core.clock import Clock, SystemClock
from durable_core.data.physical.retry import Retries, RetryCounts, retried
from durable_core.errors import (
    DataUnavailableError,
    FormatError,
    ObjectNotFoundError,
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

MIB = 1 << 20
#: Bytes of one request to a remote store: what a timeout or a retry is about.
PIECE = 8 * MIB
_BUFFER = MIB
#: Seconds between two times that every file system tells apart.
COARSEST_S = 2.0
_IN_URL = ("endpoint", "region", "profile")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
#: Errors that stay as they are however often one asks.
_SETTLED = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


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
        return LocalLocation(Path(rest if found else text))
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
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or str(pure) != name or name in ("", ".") or "\0" in name:
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
        raise _told(error, str(error.filename or self.root), self.url) from error


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
        parts = [self._path, *self._path.parents[: len(PurePosixPath(self.name).parts) - 1]]
        link = next((part for part in parts if part.is_symlink()), None)
        return None if link is None else f"{link} is a symbolic link to {link.readlink()}"

    def _do(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            raise _told(error, self.name, str(self._root)) from error


# --- a URL ---------------------------------------------------------------------------------------


class RemoteLocation(Location):
    """Any file system of fsspec. Its instance belongs to the process that made it (threads, sockets)."""

    def __init__(self, url: str, retries: Retries, options: Mapping[str, Any], clock: Clock) -> None:
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise UsageError(
                "the URL of the data holds a user name",
                hint="credentials come from the environment, a profile or the instance, never from a URL",
            )
        said = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(said.keys() - set(_IN_URL)):
            raise UsageError(
                f"{unknown[0]!r} is no option of a data URL", hint=f"those are {', '.join(_IN_URL)}"
            )
        self.scheme = parts.scheme
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
        self.counts = RetryCounts()
        self._retries = retries
        self._clock = clock
        self._options = _s3_options(said, retries, options) if parts.scheme == "s3" else dict(options)
        self._owner: tuple[int, Any] = (0, None)
        self.root = str(self._system()._strip_protocol(self.url))

    def file(self, name: str) -> RemoteFile:
        check_name(name)
        return RemoteFile(self, name)

    def names(self) -> list[str]:
        found = self.call("find", self.root, name=self.url)
        return sorted(str(path)[len(self.root) :].lstrip("/") for path in found if not path.endswith("/"))

    def call(self, method: str, *given: Any, name: str, **named: Any) -> Any:
        """A method of the file system; within ``timeout_s`` where it is asynchronous."""
        from fsspec.asyn import AsyncFileSystem, sync

        def work(system: Any) -> Any:
            if isinstance(system, AsyncFileSystem):
                asked = getattr(system, f"_{method}")
                return sync(system.loop, asked, *given, timeout=self._retries.timeout_s, **named)
            return getattr(system, method)(*given, **named)

        return self.ask(name, work)

    def ask(self, name: str, work: Callable[[Any], T]) -> T:
        system, passing = self._system(), _failures(self.scheme)
        try:
            return retried(
                lambda: work(system), name=f"{self.url}/{name}", retries=self._retries, clock=self._clock,
                transient=passing, permanent=_SETTLED, counts=self.counts,
            )  # fmt: skip
        except passing as error:
            # The text of an error may hold what the store answered, and that secrets: only its kind is told.
            raise _told(error, name, self.url, attempts=self._retries.attempts) from None

    def _system(self) -> Any:
        if self._owner[0] != os.getpid():
            import fsspec

            try:
                system = fsspec.filesystem(self.scheme, skip_instance_cache=True, **self._options)
            except (ImportError, ValueError) as error:
                raise UnsupportedError(
                    f"{self.url}: fsspec cannot open {self.scheme}:// here: {error}",
                    hint="pip install 'durable-training[s3]'" if self.scheme == "s3" else "",
                ) from error
            if hasattr(system, "retries"):
                system.retries = 1  # repeating is counted and bounded here
            self._owner = (os.getpid(), system)
        return self._owner[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": (0, None)}


class RemoteFile(File):
    def __init__(self, location: RemoteLocation, name: str) -> None:
        self.name = name
        self._location = location
        self._key = f"{location.root}/{name}"
        self.url = f"{location.url}/{name}"

    def stat(self) -> Stat:
        facts = self._location.call("info", self._key, name=self.name)
        if facts.get("type") == "directory":
            raise ObjectNotFoundError(self.name, self._location.url)
        stamp = next(
            (facts[each] for each in ("ETag", "etag", "generation", "mtime") if facts.get(each)), None
        )
        return Stat(int(facts["size"]), None if stamp is None else str(stamp))

    def read_range(self, begin: int, length: int) -> bytes:
        pieces = []
        for first in range(begin, begin + length, PIECE):
            wanted = min(PIECE, begin + length - first)
            piece = self._location.call(
                "cat_file", self._key, start=first, end=first + wanted, name=self.name
            )
            pieces.append(bytes(piece))
            if len(piece) < wanted:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def open(self) -> BinaryIO:
        return io.BufferedReader(_Ranges(self), _BUFFER)


class _Ranges(io.RawIOBase):
    """A stream over ranges of a file, so that libraries' reads are bounded and repeated as all others."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.size()
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        left = max(self._size - self._at, 0)
        data = self._file.read_range(self._at, min(len(view), left))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _s3_options(said: Mapping[str, str], retries: Retries, given: Mapping[str, Any]) -> dict[str, Any]:
    endpoint = said.get("endpoint") or next((os.environ[n] for n in _ENDPOINTS if os.environ.get(n)), "")
    region = said.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    config: dict[str, Any] = {
        "connect_timeout": min(10.0, retries.timeout_s),
        "read_timeout": retries.timeout_s,
        "retries": {"total_max_attempts": 1},
    }
    if endpoint:
        config["s3"] = {"addressing_style": "path"}
    options: dict[str, Any] = {"config_kwargs": config, "use_listings_cache": False}
    if endpoint:
        options["endpoint_url"] = endpoint
    if region:
        options["client_kwargs"] = {"region_name": region}
    if said.get("profile"):
        options["profile"] = said["profile"]
    return {**options, **given}


def _failures(scheme: str) -> tuple[type[BaseException], ...]:
    """What a file system raises when a read fails. s3fs lets the errors of its layers through."""
    if scheme != "s3":
        return (OSError,)
    from aiohttp import ClientError
    from botocore.exceptions import BotoCoreError

    return (OSError, ClientError, BotoCoreError)


def _told(
    error: BaseException, name: str, where: str, *, attempts: int = 1
) -> ObjectNotFoundError | DataUnavailableError:
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError(name, where)
    strerror = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""
    said = f"cannot be read: {strerror or type(error).__name__}"
    if attempts > 1 and not isinstance(error, _SETTLED):
        said += f", {attempts} times"
    return DataUnavailableError(name, said, hint=f"it should be at {where}")
