"""L4. Making one object again in a place, from whatever has its bytes: the only way in which copies arise.

Nothing is published that was not verified: every extent is held in memory until it matches its digest, so
bad bytes are never spread, and the memory needed is that of the largest extent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from durable_core.engine.copies import (
    Fault,
    Place,
    SlotSource,
    Sources,
    Stored,
    TierSource,
    object_fault,
    parts,
)
from durable_core.errors import DurableError, FormatError, UsageError
from durable_core.format.manifest import Manifest
from durable_core.tier.base import Tier
from durable_core.tier.limit import PIECE, RateLimit, RateLimited
from durable_core.types import Extent, ObjectInfo, SliceKey

Stop = Callable[[], bool]


class Stopped(DurableError):
    """The copy was given up half way, as ``stop`` asked; nothing was published."""


@dataclass(frozen=True)
class Contents:
    """One object and what manifests say of its bytes: ``stored``, header first, ascending.

    What lies between is dead: nothing refers to it, and in a new copy it is zeros.
    """

    info: ObjectInfo
    stored: tuple[Stored, ...]

    @property
    def largest(self) -> int:
        """Bytes of the largest extent."""
        return max(each.extent.nbytes for each in self.stored)


class Inventory:
    """The objects of all checkpoints that are held: what none of them refers to may be left out of a copy.

    ``twins``: every extent with these bytes, wherever it lies. ``FormatError`` when manifests disagree.
    """

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self.objects: dict[str, ObjectInfo] = {}
        stored: dict[str, dict[Extent, Stored]] = {}
        for manifest in manifests:
            for info in manifest.objects:
                if self.objects.setdefault(info.key, info) != info:
                    raise FormatError(info.key, "two manifests disagree about it")
            for entry in manifest.tensors.values():
                for piece in entry.slices:
                    for each in (each for same in parts(piece) for each in same):
                        stored.setdefault(each.extent.object, {})[each.extent] = each
        self.contents: dict[str, Contents] = {
            key: _contents(info, stored.get(key, {}).values()) for key, info in self.objects.items()
        }
        self.twins: dict[tuple[str, int], list[Stored]] = {}
        for each in (each for contents in self.contents.values() for each in contents.stored):
            self.twins.setdefault((each.extent.xxh3, each.extent.nbytes), []).append(each)

    def same(self, stored: Stored) -> list[Stored]:
        """``stored``, and everything else with its bytes."""
        extent = stored.extent
        twins = self.twins.get((extent.xxh3, extent.nbytes), [])
        return [stored, *(twin for twin in twins if twin.extent != extent)]


def _contents(info: ObjectInfo, stored: Iterable[Stored]) -> Contents:
    header = Stored(Extent(info.key, 0, info.header_bytes, info.header_xxh3), SliceKey(info.key, (), ()))
    ordered = (header, *sorted(stored, key=lambda each: (each.extent.begin, each.extent.nbytes)))
    end = 0
    for each in ordered:
        extent = each.extent
        if extent.begin < end or extent.begin + extent.nbytes > info.nbytes:
            raise FormatError(info.key, f"the bytes at {extent.begin} overlap others, or are not in it")
        end = extent.begin + extent.nbytes
    return Contents(info, ordered)


def never() -> bool:
    return False


class Transfer:
    """Copies objects of ``inventory`` from ``slots`` and ``places`` (fastest first).

    ``limit`` paces what is written; ``stop`` is asked between two extents.
    """

    def __init__(
        self,
        inventory: Inventory,
        places: Iterable[Place],
        *,
        slots: Iterable[SlotSource] = (),
        limit: RateLimit | None = None,
        stop: Stop = never,
    ) -> None:
        self._inventory = inventory
        self._places = tuple(places)
        self._slots = tuple(slots)
        self._limit = limit
        self._stop = stop
        self._faults: dict[Fault, None] = {}

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What was found damaged or missing in the places read from, so far."""
        return tuple(self._faults)

    def create(self, key: str, target: Tier) -> int:
        """Make the object where there is none; its bytes, 0 for one that another made meanwhile.

        Raises as ``Sources.read`` when no place has all of it, ``Stopped``, or the target's errors.
        """
        contents = self._inventory.contents[key]
        try:
            return self._paced(target).write_object(key, self._parts(contents, self._places))
        except UsageError:
            if object_fault(target, contents.info) is not None:
                raise
            target.sync_tail(key.rpartition("/")[0] + "/")
            return 0

    def replace(self, key: str, target: Place) -> int:
        """Make the object in place of a damaged one, whose own sound bytes count where that is safe.

        Raises as ``create``. Nothing is removed before all of it was found whole.
        """
        contents = self._inventory.contents[key]
        places = self._places
        if not target.tier.replaces_atomically:
            # In between nothing will be there, so it must not be the only one to have something.
            places = tuple(place for place in places if place.name != target.name)
            for _ in self._parts(contents, places):
                pass
        return self._paced(target.tier).replace_object(key, self._parts(contents, places))

    def _paced(self, tier: Tier) -> Tier:
        return tier if self._limit is None else RateLimited(tier, self._limit)

    def _parts(self, contents: Contents, places: tuple[Place, ...]) -> Iterator[memoryview]:
        """The object's bytes in order; the buffer is used again for each part."""
        sources = Sources([*self._slots, *(TierSource(place, look_first=False) for place in places)])
        try:
            yield from self._verified(contents, sources)
        finally:
            self._faults.update(dict.fromkeys(sources.faults))

    def _verified(self, contents: Contents, sources: Sources) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(contents.largest))
        at = 0
        for each in contents.stored:
            if self._stop():
                raise Stopped(f"the copy of {contents.info.key} was stopped")
            extent = each.extent
            yield from _zeros(extent.begin - at)
            out = buffer[: extent.nbytes]
            sources.read(self._inventory.same(each), self._inventory.objects, out)
            yield out
            at = extent.begin + extent.nbytes
        yield from _zeros(contents.info.nbytes - at)


def _zeros(nbytes: int) -> Iterator[memoryview]:
    zeros = memoryview(bytes(min(nbytes, PIECE)))
    for begin in range(0, nbytes, PIECE):
        yield zeros[: nbytes - begin]
