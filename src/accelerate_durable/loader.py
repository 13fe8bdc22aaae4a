"""Prepared loaders: Accelerate's own, of which one has its batches from a ``DurableLoader``.

Which one trains is not known before training begins (see ``choosing``), so each of them asks at the start of
a pass. One that does not train does what Accelerate made it do.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard, DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import find_batch_size, send_to_device, synchronize_rng_states

from accelerate_durable import hooks
from accelerate_durable.passes import EpochIsOver, Pass, no_batch
from durable_core.data import DurableLoader

if TYPE_CHECKING:
    from accelerate_durable.durable import Durable

_END = object()


class Batches:
    """A pass: what a generator yields. One that returns an ``EpochIsOver`` ends with that."""

    __slots__ = ("_of",)

    def __init__(self, of: Generator[Any, None, EpochIsOver | None]) -> None:
        self._of = of

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._of)
        except StopIteration as end:
            if end.value is not None:
                raise end.value from None
            raise


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]  # it has no types
    """What the classes below have in common. ``bind`` comes before everything else."""

    _durable: Durable
    _place: torch.device | None  # where batches go; None: they are left where they are
    _evaluates = False
    iteration: int
    end_of_dataloader: bool

    def bind(self, durable: Durable, device: torch.device | None) -> None:
        self._durable, self._place = durable, device

    @property
    def accelerator(self) -> Any:
        """Whose it is."""
        return self._durable.accelerator

    def __iter__(self) -> Iterator[Any]:
        return Batches(self._batches())

    def _batches(self) -> Generator[Any, None, EpochIsOver | None]:
        if self._durable.trains(self):
            return (yield from self._training(self._durable))
        self._evaluates, since = True, self._durable.steps
        try:
            for batch in super().__iter__():  # Accelerate's, of the classes below
                self._durable.handed_out(self, since)
                yield batch
        finally:
            self._evaluates = False
        return None

    def set_epoch(self, epoch: int) -> None:
        """The script's number of the pass to come: a hint where in its own loop it is."""
        if not self._evaluates:  # else it is Accelerate that says it
            self._durable.told_epoch(self, epoch)
        super().set_epoch(epoch)

    def _training(self, durable: Durable) -> Generator[Any, None, EpochIsOver | None]:
        verdict = durable.begin_pass()
        if verdict is not Pass.TRAINS:
            self.iteration += 1
            return no_batch(verdict)
        loader = durable.training_data
        self._synchronize(loader)
        self.begin()
        try:
            batches = iter(loader)
            durable.entered(loader.passing)
            while self.end_of_dataloader or not durable.before_batch():
                batch = next(batches, _END)
                if batch is _END:
                    durable.read_out()
                    break
                self.end_of_dataloader = not loader.more()
                if self.end_of_dataloader:
                    self._reached_end(batch, loader)
                durable.handed_out(self, durable.steps)
                yield self._placed(batch)
            self.iteration += 1
        finally:
            self.end()
        return None

    def _synchronize(self, loader: DurableLoader) -> None:
        """What ``Accelerator(rng_types=...)`` asks for, once an epoch. Samplers have no generator here."""
        kinds = [kind for kind in getattr(self, "rng_types", None) or () if kind != "generator"]
        if kinds and not loader.cursor.batch:
            synchronize_rng_states(kinds)

    def _reached_end(self, batch: Any, loader: DurableLoader) -> None:
        """``batch`` is the last; for who wants to know how many samples it has."""

    def _placed(self, batch: Any) -> Any:
        if self._place is None:
            return batch
        return send_to_device(batch, self._place, non_blocking=getattr(self, "_non_blocking", False))


class PreparedShard(PreparedLoader, DataLoaderShard):  # type: ignore[misc]
    """Of a loader whose processes each read their own share."""


class PreparedDispatcher(PreparedLoader, DataLoaderDispatcher):  # type: ignore[misc]
    """Of one that the first process reads for all. When it trains, each reads its own share."""

    def _reached_end(self, batch: Any, loader: DurableLoader) -> None:
        cursor = loader.cursor
        if cursor.size is None or loader.drop_last:  # a stream is shared out evenly, or refused
            self.remainder = find_batch_size(batch) * loader.replicas
        else:
            self.remainder = cursor.size % cursor.global_batch or cursor.global_batch


class PreparedDurable(PreparedLoader):
    """Of a ``DurableLoader`` that the script made itself. Accelerate has none of its own for it."""

    def __init__(self, loader: DurableLoader, *, drop_last: bool, non_blocking: bool) -> None:
        self.loader = loader
        self.gradient_state = GradientState()
        self.iteration = 0
        self.batch_sampler = SimpleNamespace()  # join_uneven_inputs writes to it; nothing reads it
        self._drop_last, self._non_blocking = drop_last, non_blocking

    def __iter__(self) -> Iterator[Any]:
        if self._durable.trains(self):
            return Batches(self._training(self._durable))
        return self._evaluating()

    def _evaluating(self) -> Iterator[Any]:
        since = self._durable.steps
        for batch in self.loader:
            self._durable.handed_out(self, since)
            yield self._placed(batch)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        self._durable.told_epoch(self, epoch)

    @property
    def total_batch_size(self) -> int:
        return self.loader.global_batch

    @property
    def total_dataset_length(self) -> int:
        return len(self.loader.dataset)


def prepared(loader: Any, durable: Durable, device: torch.device | None) -> Any:
    """Make a loader that Accelerate has prepared one of ours, in place."""
    hooks.become(loader, PreparedDispatcher if isinstance(loader, DataLoaderDispatcher) else PreparedShard)
    loader.bind(durable, device)
    return loader
