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
from durable_core.format import digests, patch, shard
from durable_core.tier.base import Tier
from durable_core.types import Extent, ObjectInfo, PlacedSlice, SliceKey, Traits

#: What a copy can fail with; anything else is a fault of our own.
CopyError = CorruptError | ObjectNotFoundError | TierError
COPY_ERRORS = (CorruptError, ObjectNotFoundError, TierError)

#: Bytes copied at a time, so that they are digested while in the processor's cache.
_CHUNK = 1 << 18
_NO_OBJECT = ""

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


@dataclass(frozen=True)
class Stored:
    """Bytes that lie somewhere, and the slice they are of: all of it, its base, a patch or its twin."""

    extent: Extent
    slice: SliceKey


class Source(Protocol):
    """Where bytes may be had. Both methods raise what is in ``COPY_ERRORS``."""

    name: str
    #: it may be gone for good, so that nothing waits for it to come back
    volatile: bool

    def offers(self, stored: Stored, objects: Objects) -> bool:
        """Whether the bytes seem to be here. A source that need not have them says ``False``."""

    def read(self, stored: Stored, objects: Objects, out: memoryview) -> str:
        """Fill ``out``; the xxh3-128 of what is in it now."""


class TierSource:
    """The objects of a place. The first look at an object is remembered: one instance for one restore.

    ``look_first=False``: also of objects that are damaged elsewhere, or have the wrong length.
    """

    def __init__(self, place: Place, *, look_first: bool = True) -> None:
        self._look_first = look_first
        self.name = place.name
        self.volatile = place.traits.volatile
        self._tier = place.tier
        self._judged: dict[str, CopyError | None] = {}
        self._locks: dict[str, threading.Lock] = {}

    def offers(self, stored: Stored, objects: Objects) -> bool:
        info = objects.get(stored.extent.object)
        if info is None or not self._look_first:
            return info is not None
        with self._locks.setdefault(info.key, threading.Lock()):
            if info.key not in self._judged:
                self._judged[info.key] = object_fault(self._tier, info)
        fault = self._judged[info.key]
        if fault is not None:
            raise fault
        return True

    def read(self, stored: Stored, objects: Objects, out: memoryview) -> str:
        return read_extent(self._tier, stored.extent, out)


class SlotSource:
    """Slices in this host's memory, found by content: ``lookup(slice, xxh3)`` gives bytes or ``None``."""

    volatile = True

    def __init__(self, name: str, lookup: Callable[[SliceKey, str], memoryview | None]) -> None:
        self.name = name
        self._lookup = lookup

    def offers(self, stored: Stored, objects: Objects) -> bool:
        view = self._lookup(stored.slice, stored.extent.xxh3)
        return view is not None and view.nbytes == stored.extent.nbytes

    def read(self, stored: Stored, objects: Objects, out: memoryview) -> str:
        view = self._lookup(stored.slice, stored.extent.xxh3)
        if view is None or view.nbytes != len(out):  # its slot was used again meanwhile
            raise ObjectNotFoundError(stored.extent.object, self.name)
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
        """Some source seems to hold what makes up the slice; raises as ``read``."""

        def nothing(source: Source, stored: Stored) -> None:
            """That it is offered is enough."""

        if not self._has_result(piece, lambda whole: self._first(whole, objects, nothing)):
            for same in parts(piece):
                self._first(same, objects, nothing)

    def read_slice(self, piece: PlacedSlice, objects: Objects, out: memoryview) -> None:
        """Fill ``out`` with a slice, verified. Raises as ``read``, and ``FormatError`` for a bad patch."""
        if self._has_result(piece, lambda whole: self.read(whole, objects, out)):
            return
        base, *patches = parts(piece)
        self.read(base, objects, out)
        for same in patches:
            extent = same[0].extent
            data = bytearray(extent.nbytes)
            self.read(same, objects, memoryview(data))
            patch.apply(data, out, key=extent.object)
        if patches and digests.xxh3(out) != piece.info.xxh3:
            what = f"{piece.info.slice.key!r} differs from its digest once it is patched"
            raise DigestMismatchError(patches[-1][0].extent.object, what)

    def _has_result(self, piece: PlacedSlice, take: Callable[[tuple[Stored]], str]) -> bool:
        """A patched slice as a whole lies in no object, but perhaps in a slot."""
        if not piece.patches:
            return False
        try:
            take((Stored(Extent(_NO_OBJECT, 0, piece.info.nbytes, piece.info.xxh3), piece.info.slice),))
        except COPY_ERRORS:
            return False  # what a source did wrong is noted, and there is another way
        return True

    def read(self, same: Sequence[Stored], objects: Objects, out: memoryview) -> str:
        """Fill ``out`` with verified bytes that lie in several places; the name of the source that had them.

        When no copy is whole: ``TierError`` if one that lasts could not be read just now (it may be whole),
        else the last ``CorruptError``, else ``ObjectNotFoundError``.
        """

        def attempt(source: Source, stored: Stored) -> None:
            extent = stored.extent
            if source.read(stored, objects, out) != extent.xxh3:
                what = f"the bytes of {stored.slice.key!r} at {extent.begin} differ from their digest"
                raise DigestMismatchError(extent.object, what)

        name = self._first(same, objects, attempt)
        with self._lock:
            self._bytes[name] += len(out)
        return name

    def _first(
        self, same: Sequence[Stored], objects: Objects, attempt: Callable[[Source, Stored], None]
    ) -> str:
        """The fastest source that offers one of these and whose attempt succeeds."""
        failures: list[tuple[Source, CopyError]] = []
        for source in self._order():
            for stored in same:
                try:
                    if source.offers(stored, objects):
                        attempt(source, stored)
                        return source.name
                except COPY_ERRORS as error:
                    failures.append((source, error))
                    self._note(source, stored.extent.object, error)
        raise _verdict(failures, same[0].extent.object)

    def _order(self) -> list[Source]:
        """One that failed to answer is asked last, lest every slice wait for its timeout."""
        return sorted(self._sources, key=lambda source: source.name in self._failing)

    def _note(self, source: Source, key: str, error: CopyError) -> None:
        with self._lock:
            self._faults[Fault.of(source.name, key, error)] = None
            if isinstance(error, TierError):
                self._failing.add(source.name)


def parts(piece: PlacedSlice) -> tuple[tuple[Stored, ...], ...]:
    """What makes up a slice, base first, and where each part lies: a base without patches may lie twice."""
    key = piece.info.slice
    twin = () if piece.twin is None else (Stored(piece.twin, key),)
    return ((Stored(piece.base, key), *twin), *((Stored(each, key),) for each in piece.patches))


def _verdict(failures: Sequence[tuple[Source, CopyError]], key: str) -> CopyError:
    """What it means that every source failed."""
    errors = [error for _, error in failures]
    waiting = [error for source, error in failures if isinstance(error, TierError) and not source.volatile]
    corrupt = [error for error in errors if isinstance(error, CorruptError)]
    for group in (waiting, corrupt, errors):
        if group:
            return group[-1]
    return ObjectNotFoundError(key, "any source")


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


def read_extent(tier: Tier, extent: Extent, out: memoryview) -> str:
    """The bytes of one extent into ``out``, from one tier; their xxh3-128, for the caller to judge."""
    hasher = digests.xxh3_hasher()
    tier.stream_into(extent.object, extent.begin, out, hasher.update)
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
