"""L3. A lane: the draws of one source, in its own order and its own epochs. Ids are the source's own."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from durable_core.data.mixture.categorical import scaled
from durable_core.data.mixture.merge import joined
from durable_core.data.order import Order
from durable_core.data.order.arithmetic import counter_words, derive_keys
from durable_core.data.sequence import Batch, Sequence
from durable_core.errors import UsageError

UNIFORM = "uniform_v1"


Place = list[Any]
"""[passes over the source before this one, what says where in this one]: JSON-able."""


class Lane(Protocol):
    """Pure, like a ``Sequence``; its states are smaller, since a mixture keeps one per source."""

    @property
    def size(self) -> int | None:
        """Draws in a pass over the source; None: only the end will tell, or there is none."""

    @property
    def endless(self) -> bool:
        """Whether a pass never ends (drawn with replacement)."""

    @property
    def description(self) -> dict[str, Any]:
        """JSON: what it takes to make the lane again."""

    def start(self) -> Place:
        """Before the first draw."""

    def take(self, place: Place, count: int) -> tuple[Batch, Place]:
        """The next ``count`` draws. Fewer: the pass over the source ends with these."""

    def again(self, place: Place) -> Place:
        """Before the first draw of the next pass."""


class OrderLane:
    """Without replacement, along an ``Order``."""

    endless = False

    def __init__(self, order: Order) -> None:
        self._order, self.size = order, order.size
        self.description: dict[str, Any] = dict(order.description)

    def start(self) -> Place:
        return [0, 0]

    def take(self, place: Place, count: int) -> tuple[Batch, Place]:
        epoch, begin = place
        end = min(begin + count, self._order.size)
        ids = self._order.ids(epoch, begin, end)
        epochs = np.empty(len(ids), dtype=np.int64)
        epochs.fill(epoch)  # np.full takes three times as long for a few
        return Batch(ids, epochs), [epoch, end]

    def again(self, place: Place) -> Place:
        return [place[0] + 1, 0]


class UniformLane:
    """With replacement: draw k is a keyed hash of k (``uniform_v1``), and k keys its randomness."""

    size: int | None = None
    endless = True

    def __init__(self, size: int, *, dataset_id: str, source: str, seed: int) -> None:
        self._size = size
        self._keys = derive_keys(UNIFORM, dataset_id, source, seed)
        self.description: dict[str, Any] = {
            "name": UNIFORM, "size": size, "dataset_id": dataset_id, "source": source,
        }  # fmt: skip

    def start(self) -> Place:
        return [0, 0]

    def take(self, place: Place, count: int) -> tuple[Batch, Place]:
        begin, end = place[1], place[1] + count
        ids = scaled(counter_words(begin, end, self._keys), self._size)
        return Batch(ids, np.arange(begin, end, dtype=np.int64)), [0, end]

    def again(self, place: Place) -> Place:
        return place


class SequenceLane:
    """Along any ``Sequence`` over the source, such as its packs."""

    size: int | None = None
    endless = False

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self.description: dict[str, Any] = dict(sequence.description)

    def start(self) -> Place:
        return [0, self._sequence.start(0)]

    def take(self, place: Place, count: int) -> tuple[Batch, Place]:
        batch, after = self._sequence.take(place[1], count)
        return batch, [place[0], after]

    def again(self, place: Place) -> Place:
        epoch, before = place[0] + 1, place[1] if self._sequence.carries else None
        return [epoch, self._sequence.start(epoch, before)]


class RepeatingLane:
    """Pass after pass of another lane, without end."""

    size: int | None = None
    endless = True

    def __init__(self, lane: Lane, name: str) -> None:
        self._lane, self._name = lane, name
        self.description = lane.description

    def start(self) -> Place:
        return self._lane.start()

    def take(self, place: Place, count: int) -> tuple[Batch, Place]:
        batch, place = self._lane.take(place, count)
        if len(batch) == count:
            return batch, place
        parts, missing = [batch], count - len(batch)
        while missing:
            part, place = self._lane.take(self._lane.again(place), missing)
            if not len(part):
                raise UsageError(
                    f"source {self._name!r} gave nothing in epoch {place[0]}: it cannot be repeated",
                    hint="with packing, a source must fill at least one row",
                )
            parts.append(part)
            missing -= len(part)
        return joined([part for part in parts if len(part)]), place

    def again(self, place: Place) -> Place:
        return self._lane.again(place)
