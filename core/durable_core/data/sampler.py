"""L3. DurableSampler: the order as a sampler for any plain or stateful DataLoader.

Its position counts what the loader *took*, which runs ahead of training by the loader's prefetching;
``StatefulDataLoader`` allows for that, a plain ``DataLoader`` with workers does not. ``DurableLoader``
counts what was trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from durable_core.data.cursor import Cursor, Layout, Remainder, identity
from durable_core.data.numbers import whole
from durable_core.data.order import FULL_PERMUTATION, SEQUENTIAL, make_order, spanned_ids
from durable_core.errors import FormatError, UsageError


class DurableSampler:
    """Ids of one replica: one at a time (``sampler=``) or, if ``batched``, as lists (``batch_sampler=``).

    Each ``iter()`` goes through one epoch, or the rest of it after ``load_state_dict``; the next begins
    the next epoch. ``set_epoch(e)`` begins epoch e instead. A batch is ``batch_size`` samples of this
    replica; global batch k holds positions [kG, (k+1)G) with G = ``batch_size * replicas``.

    Args:
        data: a dataset or its length.
        remainder: "drop", "short", "wrap" or "straddle" (see ``Layout``); "pad" masks places, which only a
            ``DurableLoader`` can.
    """

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int = 1,
        batched: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        replica: int = 0,
        replicas: int = 1,
        remainder: Remainder = "short",
        dataset_id: str | None = None,
    ) -> None:
        counted = not hasattr(data, "__len__")
        size = whole("data", data, 1) if counted else len(data)
        batch_size, seed = whole("batch_size", batch_size, 1), whole("seed", seed)
        replica, replicas = whole("replica", replica), whole("replicas", replicas)
        if not 0 <= replica < replicas:
            raise UsageError(f"replica {replica} is not in [0, {replicas})")
        if remainder == "pad":
            raise UsageError("ids alone cannot say which places are padding", hint="use a DurableLoader")
        self._layout = Layout(size, batch_size * replicas, remainder)
        self._layout.check_shares(replicas)
        name = FULL_PERMUTATION if shuffle else SEQUENTIAL
        dataset_id = identity(range(size) if counted else data, dataset_id)[0]
        self._cursor = Cursor(dataset_id, name, seed, 0, 0, size, batch_size * replicas, remainder)
        self._order = make_order(name, size, dataset_id=dataset_id, seed=seed)
        self._replica, self._replicas = replica, replicas
        self.batched = batched
        self.batch_size = batch_size
        self._epoch, self._batch, self._within = 0, 0, 0  # next to be taken; _within counts ids of the batch

    def __iter__(self) -> Iterator[Any]:
        while self._batch < self._layout.batches_in(self._epoch):
            ids = self._ids(self._batch)
            if self.batched:
                self._batch += 1
                yield list(ids)
                continue
            while self._within < len(ids):
                self._within += 1
                yield ids[self._within - 1]
            self._batch, self._within = self._batch + 1, 0
        self._epoch, self._batch, self._within = self._epoch + 1, 0, 0

    def _ids(self, batch: int) -> tuple[int, ...]:
        spans = self._layout.spans(self._epoch, batch, self._replica, self._replicas)
        return tuple(spanned_ids(self._order, spans)[0].tolist())

    def __len__(self) -> int:
        """What this epoch yields: batches if ``batched``, else samples of this replica."""
        batches = self._layout.batches_in(self._epoch)
        if self.batched:
            return batches
        return self._layout.samples(self._epoch, 0, batches) // self._replicas

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch`` at the next ``iter()``; no effect when already in it (so that a resume stays)."""
        if epoch != self._epoch:
            self._epoch, self._batch, self._within = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """The cursor of what was taken, and ``within``: ids of this replica already taken of its batch."""
        position = {"epoch": self._epoch, "batch": self._batch}
        return {**self._cursor.to_dict(), **position, "within": self._within}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there at the next ``iter()``. Raises ``SpecMismatchError`` when the data differs."""
        if not isinstance(state, Mapping):
            raise FormatError("cursor", f"a sampler's state is a mapping, not {state!r:.80}")
        fields = dict(state)
        within = fields.pop("within", 0)
        cursor = Cursor.from_dict(fields)
        cursor.check_continues(self._cursor)
        if cursor.seed != self._cursor.seed:
            self._cursor = cursor
            self._order = make_order(
                cursor.order, self._layout.size, dataset_id=cursor.dataset_id, seed=cursor.seed
            )
        if type(within) is not int:
            raise FormatError("cursor", f"within is {within!r:.80}")
        if cursor.batch >= self._layout.batches_in(cursor.epoch) or not 0 <= within <= self.batch_size:
            raise FormatError("cursor", f"batch {cursor.batch}, {within} ids into it, is outside the epoch")
        self._epoch, self._batch, self._within = cursor.epoch, cursor.batch, within
