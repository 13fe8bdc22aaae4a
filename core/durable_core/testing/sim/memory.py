"""The memory of simulated hosts: slots that outlive the process that filled them, not their host.

A slot is filled tensor by tensor over what it held before, so a reader that comes at the wrong moment, or
a writer that wakes up while it is read, gives bytes of two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from durable_core.commit.adopt import Sight
from durable_core.format import digests
from durable_core.format.seal import Seal
from durable_core.testing.sim.content import BASE
from durable_core.types import SliceInfo

#: What every simulated replica holds alike; ``state/n`` differs between them.
ALIKE = frozenset({BASE, "state/w", "state/b"})


@dataclass
class Slot:
    """``seal`` is ``None`` while it is empty or dirty; ``busy`` while its owner is filling it."""

    number: int
    host: str
    generation: int
    parts: dict[str, bytes] = field(default_factory=dict)
    seal: Seal | None = None
    busy: bool = False

    def sight(self) -> Sight | None:
        if self.seal is None:
            return None
        return Sight.of(self.seal, alike=ALIKE.__contains__, source=str(self.number))

    def damaged(self, info: SliceInfo) -> bool:
        return digests.xxh3(self.parts.get(info.slice.key, b"")) != info.xxh3


def reusable(slot: Slot, common: int | None) -> bool:
    """Whether a slot may be filled anew. ``common``: the newest step that every writer is known to have
    sealed; only what is older than that can never be wanted again."""
    return slot.seal is None or (common is not None and slot.seal.step < common)


def newest_common(sealed: Sequence[Collection[int]]) -> int | None:
    """The newest step that all writers have sealed. Not the least of their newest: a snapshot that one
    has skipped or voided is never complete, however new the others' are."""
    steps = set(sealed[0]).intersection(*sealed[1:])
    return max(steps, default=None)


class Memory:
    """Every slot of every host. ``wipe`` is the loss of a host, ``free`` what a new generation does with
    the slots of dead ones: the names go, and a process that still maps one writes to nobody."""

    def __init__(self) -> None:
        self.slots: dict[int, Slot] = {}
        self._made = 0

    def new(self, host: str, generation: int) -> Slot:
        self._made += 1
        slot = self.slots[self._made] = Slot(self._made, host, generation)
        return slot

    def find(self, source: str) -> Slot | None:
        return self.slots.get(int(source))

    def sights(self, hosts: Collection[str]) -> Iterator[Sight]:
        for slot in self.slots.values():
            sight = slot.sight() if slot.host in hosts else None
            if sight is not None:
                yield sight

    def wipe(self, host: str) -> None:
        self._drop(lambda slot: slot.host == host)

    def free(self, host: str, *, before: int) -> None:
        self._drop(lambda slot: slot.host == host and slot.generation < before)

    def _drop(self, gone: Callable[[Slot], bool]) -> None:
        self.slots = {number: slot for number, slot in self.slots.items() if not gone(slot)}


class Pool:
    """The slots of one process, all made when it starts."""

    def __init__(self, memory: Memory, host: str, generation: int, count: int) -> None:
        self.slots = [memory.new(host, generation) for _ in range(count)]

    def acquire(self, common: int | None, rule: Callable[[Slot, int | None], bool]) -> Slot | None:
        """A slot to fill, the emptiest and oldest first; ``None`` when all are still wanted."""
        free = [slot for slot in self.slots if not slot.busy and rule(slot, common)]
        if not free:
            return None
        slot = min(free, key=lambda each: -1 if each.seal is None else each.seal.step)
        slot.busy, slot.seal = True, None
        return slot

    def discard(self) -> None:
        """Nothing that was copied for an adoption is wanted after it."""
        for slot in self.slots:
            if not slot.busy:
                slot.seal = None


class Staging:
    """One snapshot on its way: copied while training computes, sealed when that has been confirmed.

    ``early``: a planted bug seals it before the bytes are there.
    """

    def __init__(self, slot: Slot, seal: Seal, parts: dict[str, bytes], *, early: bool = False) -> None:
        self.slot, self.seal = slot, seal
        self.confirmed = False  # nothing changed while it was copied
        self._left = list(parts.items())
        if early:
            slot.seal = seal

    @property
    def copied(self) -> bool:
        return not self._left

    def copy_one(self) -> None:
        key, data = self._left.pop(0)
        self.slot.parts[key] = data

    def finish(self, *, void: bool) -> None:
        """Sealed at last, or given up: then the slot stays dirty."""
        self.slot.busy = False
        self.slot.seal = None if void else self.seal
