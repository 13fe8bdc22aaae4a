"""L4. Copying checkpoints into another place: what it lacks, verified on the way.

Killed anywhere, the place has whole objects or none, and the next call goes on with what is missing. The
journal learns of the copy only when all of it is there (``commit.promotion``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from durable_core.engine.copies import COPY_ERRORS, Fault, Place, SlotSource, object_fault
from durable_core.engine.transfer import Inventory, Stop, Stopped, Transfer, never
from durable_core.errors import ObjectNotFoundError, TierError
from durable_core.format import layout
from durable_core.tier.limit import RateLimit
from durable_core.types import ObjectInfo


@dataclass(frozen=True)
class Promoted:
    """``copied`` keys and their ``bytes``; ``present`` keys were there; ``failed``: key -> why it is not.

    ``faults``: what was found damaged in the sources, and mostly stepped around.
    """

    copied: tuple[str, ...]
    present: tuple[str, ...]
    bytes: int
    failed: Mapping[str, str]
    faults: tuple[Fault, ...]
    stopped: bool

    @property
    def complete(self) -> bool:
        return not self.failed and not self.stopped


def promote(
    sources: Iterable[Place],
    target: Place,
    keys: Iterable[str],
    inventory: Inventory,
    *,
    slots: Iterable[SlotSource] = (),
    limit: RateLimit | None = None,
    stop: Stop = never,
) -> Promoted:
    """Copy the objects ``keys`` from ``sources`` (fastest first) to ``target``, one after the other.

    An object of the right length with the right header is taken for whole: objects become visible only
    when they are, and scrubbing finds what happens to them later. What fails is reported, not raised.
    """
    transfer = Transfer(inventory, sources, slots=slots, limit=limit, stop=stop)
    copied: list[str] = []
    present: list[str] = []
    failed: dict[str, str] = {}
    nbytes = 0
    stopped = False
    for key in keys:
        if stopped := stop():
            break
        try:
            made = _ensure(transfer, key, target, inventory.objects[key])
        except Stopped:
            stopped = True
            break
        except COPY_ERRORS as error:
            failed[key] = str(error)
            continue
        nbytes += made
        (copied if made else present).append(key)
    return Promoted(tuple(copied), tuple(present), nbytes, failed, transfer.faults, stopped)


def _ensure(transfer: Transfer, key: str, target: Place, info: ObjectInfo) -> int:
    """The object is in ``target`` for good; the bytes that this took, none when it was there."""
    fault = object_fault(target.tier, info)
    if fault is None:
        # Whoever made it may have died before its name was durable, and the journal is to rely on it.
        target.tier.sync_tail(key.rpartition("/")[0] + "/")
        return 0
    if isinstance(fault, ObjectNotFoundError):
        return transfer.create(key, target.tier)
    if isinstance(fault, TierError):
        raise fault  # nothing is known of it, so nothing is put in its place
    return transfer.replace(key, target)


def share(
    objects: Iterable[ObjectInfo], role: str, roles: Iterable[str], coordinator: str
) -> tuple[str, ...]:
    """The keys ``role`` copies: of objects it wrote; the coordinator also those of roles that are gone."""
    present = set(roles)
    keys = []
    for info in objects:
        parsed = layout.parse_checkpoint_key(info.key)
        owner = None if parsed is None else parsed.role
        if owner == role or (role == coordinator and owner not in present):
            keys.append(info.key)
    return tuple(keys)
