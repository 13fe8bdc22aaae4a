"""L3. A durable order or sequence as the source of a ``torchdata.nodes`` pipeline.

What follows it may read ahead with threads or processes as it likes (``in_order=True``): torchdata saves
the state that came with each item, and ours says what comes next, so a restart goes on exactly. The
position is what the pipeline *gave*; only a ``DurableLoader`` knows what was trained.
"""

from __future__ import annotations

from typing import Any

from torchdata.nodes import BaseNode  # type: ignore[import-untyped]

from durable_core.data.order import Order
from durable_core.data.sequence import Batch, OrderedSequence, Sequence
from durable_core.errors import SpecMismatchError, UsageError


class SequenceNode(BaseNode):  # type: ignore[misc]  # torchdata has no types
    """This replica's ``Batch`` of each global batch; follow it by a mapper that reads ``batch.ids``.

    Each pass is an epoch; a pass left early counts as one, as in torchdata's own sampler node. State: the
    epoch, the batches of it that were given, and the sequence's state.

    Args:
        source: an order or a sequence.
        global_batch: samples over all replicas; the last batch of an epoch may have fewer.

    Raises ``UsageError`` for a place that is none; at ``reset``, ``SpecMismatchError`` for the state of
    another sequence or another global batch.
    """

    def __init__(
        self, source: Order | Sequence, global_batch: int, *, replica: int = 0, replicas: int = 1
    ) -> None:
        super().__init__()
        if not 0 <= replica < replicas or global_batch < replicas:
            raise UsageError(f"replica {replica} of {replicas} has no part of {global_batch} samples")
        given: Any = source
        self._sequence: Sequence = given if hasattr(given, "take") else OrderedSequence(given)
        self._global_batch, self._replica, self._replicas = global_batch, replica, replicas
        self._epoch, self._batch, self._ended = 0, 0, False
        self._state: dict[str, Any] | None = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if initial_state is not None:
            self._load(initial_state)
            return
        if self._batch or self._ended:
            self._epoch += 1
        before = self._state if self._sequence.carries else None
        self._state = self._sequence.start(self._epoch, before)
        self._batch, self._ended = 0, False

    def next(self) -> Batch:
        if self._ended:
            raise StopIteration
        taken, after = self._sequence.take(self._state or {}, self._global_batch)
        self._state = after
        self._ended = len(taken) < self._global_batch
        if not len(taken):
            raise StopIteration
        self._batch += 1
        return part_of(taken, self._replica, self._replicas)

    def get_state(self) -> dict[str, Any]:
        return {
            "sequence": self._sequence.name,
            "global_batch": self._global_batch,
            "epoch": self._epoch,
            "batch": self._batch,
            "ended": self._ended,
            "state": self._state,
        }

    def _load(self, state: dict[str, Any]) -> None:
        recorded = state["sequence"], state["global_batch"]
        now = self._sequence.name, self._global_batch
        if recorded != now:
            raise SpecMismatchError(
                f"the state is one of {recorded[0]} in batches of {recorded[1]}, not of {now[0]} in {now[1]}",
                fields=("sequence", "global_batch"),
                hint="restore with what it was saved from",
            )
        self._epoch, self._batch, self._ended = state["epoch"], state["batch"], state["ended"]
        self._state = state["state"]


def part_of(batch: Batch, replica: int, replicas: int) -> Batch:
    """The contiguous share of one replica; shares differ by at most one sample."""
    first, last = len(batch) * replica // replicas, len(batch) * (replica + 1) // replicas
    packs = None
    if batch.packs is not None:
        packs = batch.packs[first : last + 1] - batch.packs[first]
        first, last = int(batch.packs[first]), int(batch.packs[last])
    begins = None if batch.begins is None else batch.begins[first:last]
    ends = None if batch.ends is None else batch.ends[first:last]
    return Batch(batch.ids[first:last], batch.epochs[first:last], begins, ends, packs)
