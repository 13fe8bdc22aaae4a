"""L3. What runs where the data is read, in a worker or not: seed, fetch, collate, say which ids it was."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from durable_core.data.rng import SampleSeeds, seed_streams

Collate = Callable[[Any], Any]


@dataclass(frozen=True)
class Ticket:
    """Asks for one batch: ``ids`` in order; ``part`` is where they begin in the global batch."""

    epoch: int
    batch: int
    part: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Receipt:
    """Says which ids were really asked of the dataset, for which batch."""

    epoch: int
    batch: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Fetched:
    """Samples on their way to the collate function."""

    receipt: Receipt
    part: int
    samples: Any


class MapFetcher(Dataset[Any]):
    """Stands before the user's map-style dataset; every other attribute is the dataset's own.

    ``__getitem__`` is called once per sample, with the streams seeded for that sample. A dataset with
    ``__getitems__`` gets its whole batch in one call under the batch's streams: its draws then depend
    on the batch's composition, so they repeat at the same number of replicas only.
    """

    _OWN = frozenset({"_dataset", "_seeds", "_batched"})

    def __init__(self, dataset: Any, seeds: SampleSeeds | None) -> None:
        self._dataset = dataset
        self._seeds = seeds
        self._batched = _has_getitems(dataset)

    def __getitems__(self, ticket: Ticket) -> Fetched:
        receipt = Receipt(ticket.epoch, ticket.batch, ticket.ids)
        return Fetched(receipt, ticket.part, self._samples(ticket))

    def _samples(self, ticket: Ticket) -> Sequence[Any]:
        dataset, seeds, generator = self._dataset, self._seeds, torch.default_generator
        if self._batched:
            if seeds is not None:
                seed_streams(seeds.fetch(ticket.epoch, ticket.batch, ticket.part), generator)
            items: Sequence[Any] = dataset.__getitems__(list(ticket.ids))
            return items
        if seeds is None:
            return [dataset[index] for index in ticket.ids]
        samples = []
        for index in ticket.ids:
            seed_streams(seeds.sample(ticket.epoch, index), generator)
            samples.append(dataset[index])
        return samples

    def __len__(self) -> int:
        return len(self._dataset)

    # A worker_init_fn finds this object in get_worker_info().dataset and opens files on it.
    def __getattr__(self, name: str) -> Any:
        if name in MapFetcher._OWN or name.startswith("__"):  # protocols are answered by this class alone
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in MapFetcher._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._dataset, name, value)


def _has_getitems(dataset: Any) -> bool:
    while type(dataset) is Subset:  # its own __getitems__ only passes the call on
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


class MapCollate:
    """Collates under the batch's streams and keeps the receipt beside the result."""

    def __init__(self, collate_fn: Collate, seeds: SampleSeeds | None) -> None:
        self._collate_fn = collate_fn
        self._seeds = seeds

    def __call__(self, fetched: Fetched) -> tuple[Receipt, Any]:
        receipt = fetched.receipt
        if self._seeds is not None:
            seeds = self._seeds.collate(receipt.epoch, receipt.batch, fetched.part)
            seed_streams(seeds, torch.default_generator)
        return receipt, self._collate_fn(fetched.samples)


# --- iterable datasets ----------------------------------------------------------------------


@dataclass(frozen=True)
class StreamItem:
    """One item of an iterable dataset and its place in its worker's stream."""

    epoch: int
    worker: int
    workers: int
    ordinal: int
    value: Any

    @property
    def id(self) -> int:
        """Unique in the epoch; a stream has no better identity."""
        return self.ordinal * self.workers + self.worker


class StreamFetcher(IterableDataset[StreamItem]):
    """Stands before the user's iterable dataset. ``epoch`` is set before each pass.

    Every epoch begins from the dataset as given: workers are started with a fresh copy, and without
    workers the state it had at first is loaded again. A ``set_epoch`` of the dataset's is called.
    """

    def __init__(self, dataset: Any, seeds: SampleSeeds | None) -> None:
        self.dataset = dataset
        self.seeds = seeds
        self.epoch = 0
        self._initial = _state_of(dataset)
        self._used = False

    def __iter__(self) -> StreamIterator:
        if self._used and self._initial is not None:
            self.dataset.load_state_dict(copy.deepcopy(self._initial))
        self._used = True
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self.epoch)
        return StreamIterator(self.dataset, self.seeds, self.epoch)


class StreamIterator(Iterator[StreamItem]):
    """Counts and seeds; its state holds the count, and the dataset's or its iterator's own state.

    The dataset's iterator is made at the first need, so that a loaded state is in place before any
    of the dataset's code runs: first the dataset's state, then ``iter``, then the iterator's state.
    Before its first item it has none: a worker's share is often only settled by ``iter``.
    """

    def __init__(self, dataset: Any, seeds: SampleSeeds | None, epoch: int) -> None:
        info = get_worker_info()
        self._worker, self._workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._dataset, self._seeds, self._epoch = dataset, seeds, epoch
        self._iterator: Iterator[Any] | None = None
        self._ordinal = 0
        self._replayed = 0  # items to pass over first, when only their number is known

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> StreamItem:
        while self._ordinal < self._replayed:
            self._take()
        value = self._take()
        return StreamItem(self._epoch, self._worker, self._workers, self._ordinal - 1, value)

    def _take(self) -> Any:
        if self._seeds is not None:
            seeds = self._seeds.stream(self._epoch, self._worker, self._ordinal)
            seed_streams(seeds, torch.default_generator)
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        value = next(self._iterator)
        self._ordinal += 1
        return value

    def state_dict(self) -> dict[str, Any]:
        ordinal = max(self._ordinal, self._replayed)
        if not ordinal:
            return {"ordinal": 0, "dataset": None, "iterator": None}
        return {
            "ordinal": ordinal,
            "dataset": _state_of(self._dataset),
            "iterator": _state_of(self._iterator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["dataset"] is None and state["iterator"] is None:  # at the start, or the weakest promise
            self._replayed = state["ordinal"]
            return
        self._ordinal = state["ordinal"]
        if state["dataset"] is not None:
            self._dataset.load_state_dict(state["dataset"])
        if state["iterator"] is not None:
            iterator = iter(self._dataset)
            iterator.load_state_dict(state["iterator"])
            self._iterator = iterator


class StreamCollate:
    """Collates items of one worker; without automatic batching it gets a single item."""

    def __init__(self, collate_fn: Collate, seeds: SampleSeeds | None) -> None:
        self._collate_fn = collate_fn
        self._seeds = seeds

    def __call__(self, fetched: StreamItem | list[StreamItem]) -> tuple[tuple[int, ...], Any]:
        items = fetched if isinstance(fetched, list) else [fetched]
        first = items[0]
        if self._seeds is not None:
            seeds = self._seeds.stream_collate(first.epoch, first.worker, first.ordinal)
            seed_streams(seeds, torch.default_generator)
        values = [item.value for item in items] if isinstance(fetched, list) else first.value
        return tuple(item.id for item in items), self._collate_fn(values)


def is_stateful(item: Any) -> bool:
    """Whether it has ``state_dict`` and ``load_state_dict``."""
    return all(callable(getattr(item, name, None)) for name in ("state_dict", "load_state_dict"))


def _state_of(item: Any) -> Any:
    """A copy: a dataset may well return the very list that it goes on changing."""
    return copy.deepcopy(item.state_dict()) if is_stateful(item) else None
