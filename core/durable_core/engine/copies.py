"""L4. Many copies of one checkpoint, none of them believed.

The manifest has the digest of every slice, so a copy is any bytes that match. A slice is taken from the
fastest source that has it whole; what was found damaged or missing on the way is noted, so that the
place can be repaired.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from durable_core.errors import CorruptError, DigestMismatchError, FormatError, ObjectNotFoundError, TierError
from durable_core.format import digests, shard
from durable_core.tier.base import Tier
from durable_core.types import ObjectInfo, PlacedSlice, SliceKey, Traits

#: What a copy can fail with; anything else is a fault of our own.
CopyError = CorruptError | ObjectNotFoundError | TierError
COPY_ERRORS = (CorruptError, ObjectNotFoundError, TierError)

#: Bytes copied at a time, so that they are digested while in the processor's cache.
_CHUNK = 1 << 18

#: The objects of a manifest, by key.
Objects = Mapping[str, ObjectInfo]


@dataclass(frozen=True)
class Place:
    """One configured tier of a run: ``name`` as in the journal (``memory``, ``disk``, …)."""

    name: str
    tier: Tier
    traits: Traits


@dataclass(frozen=True)
class Fault:
    """One object of one place that is not as it should be. ``kind``: ``corrupt``, ``missing``, or
    ``unreadable`` (the tier failed, so nothing is known of the bytes)."""

    place: str
    object: str
    kind: str
    reason: str

    @classmethod
    def of(cls, place: str, key: str, error: CopyError) -> Fault:
        if isinstance(error, CorruptError):
            return cls(place, key, "corrupt", error.reason)
        kind = "missing" if isinstance(error, ObjectNotFoundError) else "unreadable"
        return cls(place, key, kind, error.message)


class Source(Protocol):
    """Where slices may be had. Both methods raise what is in ``COPY_ERRORS``."""

    name: str
    #: it may be gone for good, so that nothing waits for it to come back
    volatile: bool

    def offers(self, piece: PlacedSlice, objects: Objects) -> bool:
        """Whether the slice seems to be here. A source that need not have it says ``False``."""

    def read(self, piece: PlacedSlice, objects: Objects, out: memoryview) -> str:
        """Fill ``out``; the xxh3-128 of what is in it now."""


class TierSource:
    """The objects of a place. The first look at an object is remembered: one instance for one restore."""

    def __init__(self, place: Place) -> None:
        self.name = place.name
        self.volatile = place.traits.volatile
        self._tier = place.tier
        self._judged: dict[str, CopyError | None] = {}
        self._locks: dict[str, threading.Lock] = {}

    def offers(self, piece: PlacedSlice, objects: Objects) -> bool:
        self._require_sound(objects[piece.object])
        return True

    def read(self, piece: PlacedSlice, objects: Objects, out: memoryview) -> str:
        return read_slice(self._tier, piece, out)

    def _require_sound(self, info: ObjectInfo) -> None:
        with self._locks.setdefault(info.key, threading.Lock()):
            if info.key not in self._judged:
                self._judged[info.key] = object_fault(self._tier, info)
        fault = self._judged[info.key]
        if fault is not None:
            raise fault


class SlotSource:
    """Slices in this host's memory, found by content: ``lookup(slice, xxh3)`` gives bytes or ``None``."""

    volatile = True

    def __init__(self, name: str, lookup: Callable[[SliceKey, str], memoryview | None]) -> None:
        self.name = name
        self._lookup = lookup

    def offers(self, piece: PlacedSlice, objects: Objects) -> bool:
        view = self._lookup(piece.info.slice, piece.info.xxh3)
        return view is not None and view.nbytes == piece.info.nbytes

    def read(self, piece: PlacedSlice, objects: Objects, out: memoryview) -> str:
        view = self._lookup(piece.info.slice, piece.info.xxh3)
        if view is None or view.nbytes != len(out):
            raise ObjectNotFoundError(piece.object, self.name)  # its slot was used again meanwhile
        return _copy(view, out)


class Sources:
    """Sources in order of speed, fastest first. For one restore; any number of threads.

    ``bytes_from`` counts verified bytes by source; ``faults`` what was found damaged or missing.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        self._faults: dict[Fault, None] = {}
        self._bytes: Counter[str] = Counter()

    @property
    def faults(self) -> tuple[Fault, ...]:
        with self._lock:
            return tuple(self._faults)

    @property
    def bytes_from(self) -> dict[str, int]:
        with self._lock:
            return dict(self._bytes)

    def require(self, piece: PlacedSlice, objects: Objects) -> None:
        """Some source seems to hold the slice; raises as ``read``."""
        self._first(piece, objects, lambda source: None)

    def read(self, piece: PlacedSlice, objects: Objects, out: memoryview) -> str:
        """Fill ``out`` with the verified bytes of a slice; the name of the source they came from.

        When no copy is whole: ``TierError`` if one that lasts could not be read just now (it may be whole),
        else the last ``CorruptError``, else ``ObjectNotFoundError``.
        """

        def attempt(source: Source) -> None:
            if source.read(piece, objects, out) != piece.info.xxh3:
                raise DigestMismatchError(
                    piece.object, f"the bytes of {piece.info.slice.key!r} differ from their digest"
                )

        name = self._first(piece, objects, attempt)
        with self._lock:
            self._bytes[name] += piece.info.nbytes
        return name

    def _first(self, piece: PlacedSlice, objects: Objects, attempt: Callable[[Source], None]) -> str:
        """The first source that offers the slice and whose attempt succeeds."""
        failures: list[tuple[Source, CopyError]] = []
        for source in self._order():
            try:
                if source.offers(piece, objects):
                    attempt(source)
                    return source.name
            except COPY_ERRORS as error:
                failures.append((source, error))
                self._note(source, piece.object, error)
        raise _verdict(failures, piece)

    def _order(self) -> list[Source]:
        """One that failed to answer is asked last, lest every slice wait for its timeout."""
        return sorted(self._sources, key=lambda source: source.name in self._failing)

    def _note(self, source: Source, key: str, error: CopyError) -> None:
        with self._lock:
            self._faults[Fault.of(source.name, key, error)] = None
            if isinstance(error, TierError):
                self._failing.add(source.name)


def _verdict(failures: Sequence[tuple[Source, CopyError]], piece: PlacedSlice) -> CopyError:
    """What it means that every source failed."""
    errors = [error for _, error in failures]
    waiting = [error for source, error in failures if isinstance(error, TierError) and not source.volatile]
    corrupt = [error for error in errors if isinstance(error, CorruptError)]
    for group in (waiting, corrupt, errors):
        if group:
            return group[-1]
    return ObjectNotFoundError(piece.object, "any source")


def check_object(tier: Tier, info: ObjectInfo) -> None:
    """Length and header of one object: with the slices, that is every byte of it."""
    nbytes = tier.size(info.key)
    if nbytes != info.nbytes:
        raise FormatError(info.key, f"has {nbytes} bytes instead of {info.nbytes}")
    header = bytearray(info.header_bytes)
    tier.read_into(info.key, 0, memoryview(header))
    if digests.xxh3(header) != info.header_xxh3:
        raise DigestMismatchError(info.key, "the header differs from its digest")
    shard.parse_header(bytes(header), info.nbytes, key=info.key)


def object_fault(tier: Tier, info: ObjectInfo) -> CopyError | None:
    """What ``check_object`` raises."""
    try:
        check_object(tier, info)
    except COPY_ERRORS as error:
        return error
    return None


def read_slice(tier: Tier, piece: PlacedSlice, out: memoryview) -> str:
    """The bytes of one slice into ``out``, from one tier; their xxh3-128, for the caller to judge."""
    hasher = digests.xxh3_hasher()
    tier.stream_into(piece.object, piece.begin, out, hasher.update)
    return hasher.hexdigest()


def _copy(view: memoryview, out: memoryview) -> str:
    import numpy as np  # copies without holding the interpreter's lock; imported late, it is not small

    source, target = np.frombuffer(view, np.uint8), np.frombuffer(out, np.uint8)
    hasher = digests.xxh3_hasher()
    for begin in range(0, len(target), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        np.copyto(target[part], source[part])
        hasher.update(target[part].data)  # what arrived: the slot may be written to at this moment
    return hasher.hexdigest()
