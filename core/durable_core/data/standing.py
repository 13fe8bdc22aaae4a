"""L3. What the state of a sequence says was drawn of each source, and what of that is not out yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from durable_core.data.mixture import policy as mixture
from durable_core.data.mixture.lanes import UNIFORM
from durable_core.data.order import Ids, order_from
from durable_core.data.order.buffered import BUFFERED, BufferedSequence
from durable_core.data.packing import policy as packing
from durable_core.data.packing.packer import FIELDS, residue
from durable_core.errors import UnsupportedError

_KNOWN = {*mixture.NAMES.values(), *packing.NAMES.values()}


class Drawing(Protocol):
    """In which order the records of an epoch are drawn: an ``Order``, or what can answer as one."""

    @property
    def size(self) -> int: ...

    def ids(self, epoch: int, start: int, stop: int, /) -> Ids: ...


@dataclass(frozen=True)
class Standing:
    """One source: every epoch before ``epoch`` was drawn whole, and ``drawn`` records of that one.

    With replacement ``epoch`` is 0, and ``drawn`` ordinals were drawn. ``order``: of an epoch; None when
    this cannot be computed. ``pending``: int64 [pieces, 4], those (id in the source, epoch, begin, end) of
    what was drawn that wait for their pack. ``exact``: no more than that was drawn; otherwise what was taken
    of the chunk that the packer has in hand is not in these numbers.
    """

    epoch: int
    drawn: int
    order: Drawing | None = None
    pending: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, FIELDS), np.int64))

    exact: bool = True

    def due(self) -> Ids | None:
        """Ids drawn of ``epoch``; None when that cannot be said."""
        return None if self.order is None else self.order.ids(self.epoch, 0, self.drawn)


def standings(plan: Mapping[str, Any], state: Any, *, epoch: int, seed: int) -> list[Standing] | None:
    """By source, in the order of the description ``plan``; one for a sequence over a single dataset.

    ``state``: the sequence's own, of which ``epoch`` of the cursor has begun; None where that epoch begins
    from nothing. None for a sequence that this version does not know.
    """
    names = [str(part.get("name", "")).partition(":")[0] for part in (plan, plan.get("packing") or plan)]
    if not {*names} <= _KNOWN:
        return None
    return _standings(plan, state, epoch, seed)


def _standings(plan: Mapping[str, Any], state: Any, epoch: int, seed: int) -> list[Standing]:
    inner = plan.get("inner")
    if inner is None:
        return _of_documents(plan, state, epoch, seed)
    if state is None:
        return _of_documents(inner, None, epoch, seed)
    found = _of_documents(inner, state["inner"], epoch, seed)
    pieces = residue(state["packer"])
    if "sources" not in inner:
        only = found[0]
        return [Standing(only.epoch, only.drawn + state["used"], only.order, pieces)]
    ends = np.cumsum([source["size"] for source in inner["sources"]])
    which = np.searchsorted(ends, pieces[:, 0], side="right")
    bases = np.concatenate([[0], ends])
    return [
        Standing(one.epoch, one.drawn, one.order, pieces[which == i] - [bases[i], 0, 0, 0], not state["used"])
        for i, one in enumerate(found)
    ]


def _of_documents(plan: Mapping[str, Any], state: Any, epoch: int, seed: int) -> list[Standing]:
    if "lanes" not in plan:
        drawn = 0 if state is None else state["position"]
        return [Standing(epoch, drawn, _order(plan, seed))]
    places = [None] * len(plan["lanes"]) if state is None else state["lanes"]
    return [_of_lane(lane, place, seed) for lane, place in zip(plan["lanes"], places, strict=True)]


def _of_lane(lane: Mapping[str, Any], place: Any, seed: int) -> Standing:
    number, within = (0, None) if place is None else place
    if "inner" in lane:  # the packs of one source
        return _standings(lane, within, number, seed)[0]
    return Standing(number, within or 0, None if lane["name"] == UNIFORM else _order(lane, seed))


class _Buffered:
    """A bounded shuffle, whose epoch is computed as a whole."""

    def __init__(self, sequence: BufferedSequence) -> None:
        self._sequence, self.size = sequence, sequence.size

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        return self._sequence.take(self._sequence.start(epoch), self.size)[0].ids[start:stop]


def _order(description: Mapping[str, Any], seed: int) -> Drawing | None:
    try:
        if str(description["name"]).partition(":")[0] == BUFFERED:
            return _Buffered(BufferedSequence.from_description(description, seed=seed))
        return order_from(description, seed=seed)
    except UnsupportedError:
        return None
