"""L4. Looking after copies: reading them again, counting the whole ones, making the damaged ones anew."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from durable_core.engine.copies import (
    COPY_ERRORS,
    CopyError,
    Fault,
    Place,
    SlotSource,
    object_fault,
    read_extent,
)
from durable_core.engine.transfer import Contents, Inventory, Stop, Stopped, Transfer, never
from durable_core.errors import DigestMismatchError, TierError
from durable_core.tier.base import Tier
from durable_core.tier.limit import RateLimit, RateLimited
from durable_core.types import Extent


@dataclass(frozen=True)
class Scrubbed:
    """One object of one place, read from end to end. ``whole``: its extents that are, if it is sound."""

    place: str
    object: str
    whole: frozenset[Extent]
    faults: tuple[Fault, ...]


def scrub(
    places: Iterable[Place], inventory: Inventory, *, limit: RateLimit | None = None, stop: Stop = never
) -> Iterator[Scrubbed]:
    """Read every object of ``inventory`` in each of ``places``, paced by ``limit``. Faults are findings."""
    buffer = memoryview(bytearray(max((each.largest for each in inventory.contents.values()), default=0)))
    for place in places:
        tier = place.tier if limit is None else RateLimited(place.tier, limit)
        for contents in inventory.contents.values():
            if stop():
                return
            yield _scrub_object(place.name, tier, contents, buffer)


def _scrub_object(name: str, tier: Tier, contents: Contents, buffer: memoryview) -> Scrubbed:
    key = contents.info.key
    unsound = object_fault(tier, contents.info)
    if unsound is not None:
        return Scrubbed(name, key, frozenset(), (Fault.of(name, key, unsound),))
    whole: set[Extent] = set()
    faults: list[Fault] = []
    for each in contents.stored:
        error = _extent_fault(tier, each.extent, buffer)
        if error is None:
            whole.add(each.extent)
        else:
            faults.append(Fault.of(name, key, error))
            if isinstance(error, TierError):
                break  # it would answer the next question no better
    return Scrubbed(name, key, frozenset(whole), tuple(faults))


def _extent_fault(tier: Tier, extent: Extent, buffer: memoryview) -> CopyError | None:
    try:
        if read_extent(tier, extent, buffer[: extent.nbytes]) == extent.xxh3:
            return None
    except COPY_ERRORS as error:
        return error
    what = f"the {extent.nbytes} bytes at {extent.begin} differ from their digest"
    return DigestMismatchError(extent.object, what)


def lasting_copies(
    found: Iterable[Scrubbed], places: Iterable[Place], inventory: Inventory
) -> dict[str, int]:
    """For each object how many whole copies there are of its rarest bytes, in places that are not volatile.

    A second copy in the same place counts too: it survives a flipped bit, though not the place.
    """
    lasting = {place.name for place in places if not place.traits.volatile}
    copies: Counter[tuple[str, int]] = Counter()
    for scrubbed in found:
        if scrubbed.place in lasting:
            copies.update((extent.xxh3, extent.nbytes) for extent in scrubbed.whole)
    return {
        key: min(copies[each.extent.xxh3, each.extent.nbytes] for each in contents.stored)
        for key, contents in inventory.contents.items()
    }


class Outcome(str, enum.Enum):
    REPAIRED = "repaired"
    LOST = "no whole copy is left anywhere: its slices must be written again"
    LATER = "cannot be said or done now"


@dataclass(frozen=True)
class Repair:
    """What became of one object of one place, and why."""

    place: str
    object: str
    outcome: Outcome
    reason: str = ""


def repair(
    faults: Iterable[Fault],
    places: Iterable[Place],
    inventory: Inventory,
    *,
    slots: Iterable[SlotSource] = (),
    limit: RateLimit | None = None,
    stop: Stop = never,
) -> tuple[Repair, ...]:
    """Make each damaged or missing object anew in its place, from ``slots`` and ``places`` (fastest first).

    A fault may be old: an object that is sound by now is read again as a whole before anything is done.
    Killed anywhere, the object is as it was, whole, or (where the tier cannot replace) missing while
    another place has it.
    """
    by_name: Mapping[str, Place] = {place.name: place for place in places}
    transfer = Transfer(inventory, by_name.values(), slots=slots, limit=limit, stop=stop)
    done: list[Repair] = []
    for name, key in dict.fromkeys((fault.place, fault.object) for fault in faults):
        if name not in by_name or key not in inventory.contents:
            continue  # a slot, or an object that no checkpoint held needs any more
        if stop():
            break
        try:
            done.append(_repair(transfer, by_name[name], inventory.contents[key]))
        except Stopped:
            break
    return tuple(done)


def _repair(transfer: Transfer, place: Place, contents: Contents) -> Repair:
    key = contents.info.key
    found = _scrub_object(place.name, place.tier, contents, memoryview(bytearray(contents.largest)))
    kinds = {fault.kind for fault in found.faults}
    if not kinds:
        return Repair(place.name, key, Outcome.REPAIRED, "it is whole")
    if "unreadable" in kinds:
        return Repair(place.name, key, Outcome.LATER, found.faults[-1].reason)
    try:
        if kinds == {"missing"}:
            transfer.create(key, place.tier)
        else:
            transfer.replace(key, place)
    except TierError as error:
        return Repair(place.name, key, Outcome.LATER, str(error))
    except COPY_ERRORS as error:
        return Repair(place.name, key, Outcome.LOST, str(error))
    return Repair(place.name, key, Outcome.REPAIRED, found.faults[0].reason)
