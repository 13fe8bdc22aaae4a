"""L3. What a reader is: the records of one object by ordinal, in constant time where the format allows it.

Readers are pure of policy: they read, or raise an error that names the object and the record. They
may be shared by threads, and never by processes: a reader is opened where it is used.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from durable_core.data.files import File as File
from durable_core.errors import FormatError, RecordError, UsageError

Ids = NDArray[np.int64]
Record = Any
"""A dict, bytes, str or numpy array; the format says which."""

T = TypeVar("T")

#: What decoders raise for bytes that are not what they should be. ``UnicodeDecodeError``,
#: ``JSONDecodeError`` and pyarrow's ``ArrowInvalid`` are ``ValueError``.
DECODE_ERRORS = (ValueError, KeyError, IndexError, EOFError, OverflowError, TypeError, RecursionError)

_UNASKED = 1 << 20
"""Bytes that are read without a look at how long the file is."""

DEFAULT_HELD = 256 << 20
"""Bytes of decoded row groups and frames that a process keeps, unless told otherwise."""


@dataclass(frozen=True)
class ObjectIndex:
    """What is known of an object's records before any is read.

    ``records``: how many. ``lengths``: int64 [records], tokens in each, where the format or ``tokens=``
    tells. ``ids_rule``: ``ordinal``, or ``key:<column>``, then ``keys`` are the records' own ids.
    ``schema``: text of the columns and their types, part of the dataset's identity. ``tables``: arrays
    by name that make random access possible where the format has none (offsets); they can be made
    again from the bytes, so they are kept beside a manifest and never in it.
    """

    records: int
    lengths: Ids | None = None
    ids_rule: str = "ordinal"
    schema: str = ""
    keys: tuple[str, ...] | None = None
    tables: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class ObjectReader(ABC):
    """The records of one object. Threads may share it; it is closed once, by who opened it."""

    def __init__(self, name: str, records: int) -> None:
        self.name = name
        self._records = records

    def __len__(self) -> int:
        return self._records

    def read(self, ordinals: Sequence[int]) -> list[Record]:
        """The records at ``ordinals``, in that order.

        Raises ``RecordError`` naming the first that does not decode, ``FormatError`` for an object that
        ends too early, ``UsageError`` for an ordinal outside [0, len).
        """
        for ordinal in ordinals:
            if not 0 <= ordinal < self._records:
                raise UsageError(f"{self.name}: record {ordinal} of {self._records}")
        return self._read(ordinals)

    def _read(self, ordinals: Sequence[int]) -> list[Record]:
        return [self._decoded(ordinal, self._record) for ordinal in ordinals]

    def _decoded(self, ordinal: int, decode: Callable[[int], T]) -> T:
        try:
            return decode(ordinal)
        except DECODE_ERRORS as error:
            raise RecordError(self.name, ordinal, f"{type(error).__name__}: {error}") from error

    @abstractmethod
    def _record(self, ordinal: int) -> Record:
        """One record; what it raises of ``DECODE_ERRORS`` is given the record's name."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open. Nothing is read after it."""


def tokens_in(value: Any) -> int:
    """Elements of a list, or an array of one dimension. Raises ``ValueError`` for what is none: the
    characters of a text are not its tokens."""
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return len(value)
    raise ValueError(f"{type(value).__name__} is no list of tokens")


class Ranges:
    """Byte ranges of one file by position. A local file is opened once, and read with ``pread``: that is
    as cheap as a map for what a record is, and a file truncated under it is an error, not a signal."""

    def __init__(self, file: File) -> None:
        self.name = file.name
        self._file = file
        self._lock = threading.Lock()
        self._fd: int | None = None

    def size(self) -> int:
        return self._file.size()

    def read(self, begin: int, length: int) -> bytes:
        """Exactly these bytes, or ``FormatError``."""
        if begin < 0 or not 0 <= length <= _UNASKED:
            self._check(begin, length)
        if self._file.path is None:
            data = self._file.read_range(begin, length)
        else:
            data = os.pread(self._descriptor(), length, begin)
            while 0 < len(data) < length and (
                more := os.pread(self._fd or 0, length - len(data), begin + len(data))
            ):
                data += more
        if len(data) != length:
            raise self._short(begin, length, len(data))
        return data

    def array(self, dtype: np.dtype[Any], begin: int, count: int) -> NDArray[Any]:
        """``count`` elements from byte ``begin``, in an array of its own that may be written to."""
        length = count * dtype.itemsize
        if self._file.path is None:
            return np.frombuffer(bytearray(self.read(begin, length)), dtype)
        out = np.empty(count, dtype)
        got = os.preadv(self._descriptor(), [out.view(np.uint8).data], begin) if length else 0
        if got != length:  # interrupted, beyond what one call may read, or truncated
            return np.frombuffer(bytearray(self.read(begin, length)), dtype)
        return out

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
            self._fd = None

    def _descriptor(self) -> int:
        if self._fd is None:
            with self._lock:
                if self._fd is None:
                    self._fd = os.open(self._file.path or "", os.O_RDONLY | os.O_CLOEXEC)
        return self._fd

    def _check(self, begin: int, length: int) -> None:
        """Before memory is asked for: a damaged header may speak of any number of bytes."""
        if begin < 0 or length < 0:
            raise FormatError(self.name, f"its header speaks of {length} bytes at byte {begin}")
        if begin + length > self.size():
            raise self._short(begin, length, max(self.size() - begin, 0))

    def _short(self, begin: int, length: int, got: int) -> FormatError:
        return FormatError(self.name, f"truncated: {got} of {length} bytes at byte {begin}")


class Held:
    """Decoded row groups and frames, by key, the least recently used given up beyond ``max_bytes``.

    What was used last is kept even when it alone is larger. Two threads that want one group decode it
    once; different groups are decoded side by side.
    """

    def __init__(self, max_bytes: int = DEFAULT_HELD) -> None:
        if max_bytes < 0:
            raise UsageError(f"held bytes cannot be {max_bytes}")
        self._max, self.nbytes = max_bytes, 0
        self._lock = threading.Lock()
        self._items: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._making: dict[tuple[Any, ...], threading.Lock] = {}

    def get(self, key: tuple[Any, ...], make: Callable[[], tuple[T, int]]) -> T:
        """The value for ``key``, or else of ``make() -> (value, bytes)``."""
        with self._lock:
            found = self._found(key)
            if found is not None:
                return found[0]  # type: ignore[no-any-return]  # what `make` gave for this key
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                found = self._found(key)
            if found is None:
                found = make()
                with self._lock:
                    self._keep(key, found)
        value: T = found[0]
        return value

    def _found(self, key: tuple[Any, ...]) -> tuple[Any, int] | None:
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def _keep(self, key: tuple[Any, ...], made: tuple[Any, int]) -> None:
        self._making.pop(key, None)
        self._items[key] = made
        self.nbytes += made[1]
        while self.nbytes > self._max and len(self._items) > 1:
            self.nbytes -= self._items.popitem(last=False)[1][1]

    def forget(self, owner: Any) -> None:
        """Give up what was kept for ``owner``, the first part of its keys."""
        with self._lock:
            for key in [key for key in self._items if key[0] == owner]:
                self.nbytes -= self._items.pop(key)[1]
