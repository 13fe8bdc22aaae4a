"""L3. Data in a store, through fsspec: ranges, each bounded in time and repeated as ``Retries`` says."""

from __future__ import annotations

import asyncio
import functools
import io
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import parse_qsl, urlsplit

from durable_core.clock import Clock
from durable_core.data.files import MIB, PIECE, SETTLED, File, Location, Stat, check_name, told
from durable_core.data.physical.retry import Retries, RetryCounts, retried
from durable_core.errors import ObjectNotFoundError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

_BUFFER = MIB
_IN_URL = ("endpoint", "region", "profile")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


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
                # A listing is many requests, which the store's client bounds one by one.
                bound = None if method == "find" else self._retries.timeout_s
                return sync(system.loop, asked, *given, timeout=bound, **named)
            return getattr(system, method)(*given, **named)

        return self._ask(name, work)

    def _ask(self, name: str, work: Callable[[Any], T]) -> T:
        system, (failures, settled) = self._system(), _failures(self.scheme)
        try:
            return retried(
                lambda: work(system), name=f"{self.url}/{name}", retries=self._retries, clock=self._clock,
                transient=failures, permanent=settled, counts=self.counts,
            )  # fmt: skip
        except failures as error:
            # The text of an error may hold what the store answered, and that secrets: only its kind is told.
            attempts = 1 if isinstance(error, settled) else self._retries.attempts
            raise told(error, name, self.url, attempts=attempts) from None

    def _system(self) -> Any:
        if self._owner[0] != os.getpid():
            self._owner = (os.getpid(), _connected(self.scheme, self._options))
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


_SYSTEMS: dict[tuple[int, str, str], Any] = {}
"""One file system for all locations of a process that ask for the same: making one takes a second."""


def _connected(scheme: str, options: Mapping[str, Any]) -> Any:
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"{scheme}:// is read with {error.name}, which is not installed",
            hint=f"pip install 'durable-training[{'s3' if scheme == 's3' else 'data'}]'",
        ) from error

    key = (os.getpid(), scheme, repr(options))
    if key not in _SYSTEMS:
        try:
            system = fsspec.filesystem(scheme, skip_instance_cache=True, **options)
        except (ImportError, ValueError) as error:
            raise UnsupportedError(
                f"fsspec cannot open {scheme}:// here: {error}",
                hint="pip install 'durable-training[s3]'" if scheme == "s3" else "",
            ) from error
        if hasattr(system, "retries"):
            system.retries = 1  # repeating is counted and bounded here
        _SYSTEMS[key] = system
    return _SYSTEMS[key]


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


_Errors = tuple[type[BaseException], ...]


@functools.cache
def _failures(scheme: str) -> tuple[_Errors, _Errors]:
    """What a file system raises when a read fails, and what of it stays as it is however often one asks.

    s3fs lets the errors of its layers through; a timeout is an ``OSError`` only since Python 3.11.
    """
    failures: _Errors = (OSError, asyncio.TimeoutError)
    if scheme != "s3":
        return failures, SETTLED
    from aiohttp import ClientError as HttpError
    from botocore import exceptions

    unsigned = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.ProfileNotFound,
    )
    return (*failures, HttpError, exceptions.BotoCoreError, exceptions.ClientError), (*SETTLED, *unsigned)
