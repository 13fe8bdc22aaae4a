"""L3. The logical plane beyond a pure order: which samples make up global batch k, as a small state machine.

An ``Order`` answers for any position without memory. A mixture, a packer or a bounded shuffle buffer
has a little: counts, a residue, a buffer of ids. A ``Sequence`` is a *pure* function from that state to
(batch, state after it): the state travels with the batch, so that fetching ahead costs nothing in
exactness. No record is read to compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from durable_core.data.order import Ids, Order
from durable_core.errors import UnsupportedError

State = dict[str, Any]
"""JSON-able and small (the order of a kilobyte)."""


@dataclass(frozen=True)
class Batch:
    """One *global* batch: the same on every replica.

    ``ids``: int64 [pieces], in the dataset's id space. ``epochs``: int64 [pieces], what keys the
    randomness of a sample: the epoch of its source, or the ordinal of the draw with replacement.
    ``begins``/``ends``: int64 [pieces], token ranges; None for whole records. ``packs``: int64
    [samples + 1], pieces of sample j are ``packs[j]:packs[j + 1]``; None for one piece a sample.
    """

    ids: Ids
    epochs: Ids
    begins: Ids | None = None
    ends: Ids | None = None
    packs: Ids | None = None

    def __len__(self) -> int:
        """Samples (rows), not pieces."""
        return len(self.ids) if self.packs is None else len(self.packs) - 1


class Sequence(Protocol):
    """Global batches in logical order. ``take`` is pure: same arguments, same answer, for ever."""

    @property
    def name(self) -> str:
        """The versioned name; two sequences with one name agree for ever."""

    @property
    def description(self) -> Mapping[str, Any]:
        """JSON: what an audit needs to compute it again, ``{"name": …, …}``."""

    @property
    def carries(self) -> bool:
        """Whether an epoch begins from the state in which the one before it ended."""

    def batches(self, global_batch: int) -> int | None:
        """Batches in an epoch; None when it is endless or only the end will tell."""

    def start(self, epoch: int, before: State | None = None) -> State:
        """The state at the beginning of ``epoch``; ``before``: at the end of the one before it, or of one
        under this number that gave no batch (see ``opened``)."""

    def take(self, state: State, count: int) -> tuple[Batch, State]:
        """The next ``count`` samples, and the state after them. Fewer: the epoch ends with these."""


class OrderedSequence:
    """Any ``Order`` as a sequence, for packing or as a source of a mixture. State: epoch and position."""

    carries = False

    def __init__(self, order: Order) -> None:
        self.order = order
        self.name = order.name
        self.description: Mapping[str, Any] = order.description

    def batches(self, global_batch: int) -> int | None:
        return -(-self.order.size // global_batch)

    def start(self, epoch: int, before: State | None = None) -> State:
        return {"epoch": epoch, "position": 0}

    def take(self, state: State, count: int) -> tuple[Batch, State]:
        epoch, begin = state["epoch"], state["position"]
        end = min(begin + count, self.order.size)
        ids = self.order.ids(epoch, begin, end)
        return Batch(ids, np.full(len(ids), epoch, dtype=np.int64)), {"epoch": epoch, "position": end}


MAX_SHORT = 1000
"""Epochs without a batch that are passed over in a row; a mixture has about one for each of its sources."""


def opened(
    sequence: Sequence,
    epoch: int,
    before: State | None,
    global_batch: int,
    *,
    drop: bool,
    change: Callable[[State, int], State] = lambda state, _: state,
) -> tuple[State, int]:
    """The state before the first batch of ``epoch``, and how many batches were passed over for it.

    An epoch of a sequence that carries can be without a batch: its sources ran out with the last one before
    it, or give less than a batch, and that is dropped. The next begins where it ends, under the same number.
    A batch that was dropped counts as taken. ``change``: what becomes of the state before a batch so far on.
    """
    state, passed = sequence.start(epoch, before), 0
    for _ in range(MAX_SHORT if sequence.carries else 0):
        taken, after = sequence.take(change(state, passed), global_batch)
        if len(taken) == global_batch or (len(taken) and not drop):
            break
        state, passed = sequence.start(epoch, after), passed + bool(len(taken))
    return state, passed


def epoch_batches(sequence: Sequence, global_batch: int, *, drop: bool) -> int | None:
    """Batches in an epoch, the last one dropped if it is not full; None when only the end will tell."""
    batches, samples = sequence.batches(global_batch), sequence.batches(1)
    if batches is None or samples is None or not drop:
        return batches
    return samples // global_batch


def reweighted(sequence: Sequence, state: State, batch: int, weights: Mapping[str, Any]) -> State:
    """``state`` with other weights from ``batch`` on, which counts since the run began.

    Raises ``UnsupportedError`` for what has none, and what the sequence has to say against them.
    """
    change = getattr(sequence, "with_update", None)
    if change is None:
        raise UnsupportedError(
            f"{sequence.name} has no weights that could be changed", hint="update_weights is for a Mixture"
        )
    changed: State = change(state, batch, weights)
    return changed
