"""L3. Iterable datasets: items counted and seeded where they are read, and the state after each batch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]
from torchdata.stateful_dataloader.incremental_state import (  # type: ignore[import-untyped]
    _DATASET_ITER_STATE,
    _FETCHER_STATE,
)

from durable_core.data.ledger import Tag
from durable_core.data.loader.reading.failures import Carrying, Failure, carried, unwrapped
from durable_core.data.loader.reading.fetch import Collate
from durable_core.data.loader.reading.front import StreamFront
from durable_core.data.loader.reading.seeding import Seeder
from durable_core.data.loader.sources.mapped import Reading, is_stateful
from durable_core.data.loader.sources.planned import Share
from durable_core.data.rng import SampleSeeds
from durable_core.errors import DurableError, OrderError, UsageError

_START: dict[str, Any] = {"ordinal": 0, "ended": False, "dataset": None, "iterator": None}
_SNAPSHOT, _WORKERS = "_snapshot", "_worker_snapshots"  # in the state of a torchdata loader with workers


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


_Fetched = StreamItem | Failure


class StreamFetcher(IterableDataset[StreamItem]):
    """Stands before the user's iterable dataset. ``epoch`` is set before each pass.

    Every epoch begins from the dataset as given: workers are started with a fresh copy, and without
    workers the state it had at first is loaded again. A ``set_epoch`` of the dataset's is called.
    ``resume`` is the state of the one iterator that the next pass begins from, if it does; ``given`` the
    dataset's at first, where another has read it since.
    """

    def __init__(self, dataset: Any, seeds: SampleSeeds | None, given: Any = None) -> None:
        self.dataset = dataset
        self.seeds = seeds
        self.epoch = 0
        self.resume: dict[str, Any] | None = None
        self.initial = _state_of(dataset) if given is None else given
        self._used = given is not None

    def __iter__(self) -> StreamIterator:
        if self._used and self.initial is not None:
            self.dataset.load_state_dict(copy.deepcopy(self.initial))
        self._used = True
        self.tell_epoch()
        iterator = StreamIterator(self.dataset, self.seeds, self.epoch)
        if self.resume is not None:
            iterator.load_state_dict(copy.deepcopy(self.resume))
        return iterator

    def tell_epoch(self) -> None:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self.epoch)


class StreamIterator(Iterator[StreamItem]):
    """Counts and seeds; its state holds the count, and the dataset's or its iterator's own state.

    That the dataset's iterator has ended is part of the state, and then its own state is not: of a
    dataset that begins anew after its end it would be where the next epoch begins. What has ended is
    never asked again. The loader does not remember it either, for a worker that ended before the others.

    The dataset's iterator is made at the first need, so that a loaded state is in place before any
    of the dataset's code runs: first the dataset's state, then ``iter``, then the iterator's state.
    Before its first item it has none: a worker's share is often only settled by ``iter``.
    """

    def __init__(self, dataset: Any, seeds: SampleSeeds | None, epoch: int) -> None:
        info = get_worker_info()
        self._worker, self._workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._dataset, self._epoch = dataset, epoch
        self._seeder = _seeder(seeds)
        self._iterator: Iterator[Any] | None = None
        self._ordinal = 0
        self._replayed = 0  # items to pass over first, when only their number is known
        self._ended = False

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> StreamItem:
        if self._ended:
            raise StopIteration
        while self._ordinal < self._replayed:
            self._take()
        value = self._take()
        return StreamItem(self._epoch, self._worker, self._workers, self._ordinal - 1, value)

    def _take(self) -> Any:
        value = self._seeder.run(self._advance)
        self._ordinal += 1
        return value

    def _advance(self) -> Any:
        seeds = self._seeder.seeds
        if seeds is not None:
            self._seeder.part(lambda: seeds.stream(self._epoch, self._worker, self._ordinal))
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        try:
            return next(self._iterator)
        except StopIteration:
            self._ended = True
            raise

    def state_dict(self) -> dict[str, Any]:
        ordinal = max(self._ordinal, self._replayed)
        state = {**_START, "ordinal": ordinal, "ended": self._ended}
        if ordinal and not self._ended:
            state |= {"dataset": _state_of(self._dataset), "iterator": _state_of(self._iterator)}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("ended", False):  # not written by earlier versions
            self._ordinal, self._ended = state["ordinal"], True
            return
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
    """Collates items of one worker; without automatic batching it gets a single item.

    ``share`` says which part of a global batch is this replica's.
    """

    def __init__(self, collate_fn: Collate, seeds: SampleSeeds | None, share: Share | None) -> None:
        self._collate_fn = collate_fn
        self._seeder = _seeder(seeds)
        self._share = share

    def __call__(self, fetched: _Fetched | list[_Fetched]) -> tuple[tuple[int, ...], int, Any] | Failure:
        every = fetched if isinstance(fetched, list) else [fetched]
        came = [item for item in every if not isinstance(item, Failure)]
        if len(came) < len(every):
            return next(item for item in every if isinstance(item, Failure))
        try:
            return self._batch(came, alone=every is not fetched)
        except DurableError as error:
            return carried(error)

    def _batch(self, whole: list[StreamItem], *, alone: bool) -> tuple[tuple[int, ...], int, Any]:
        items, count = self._own(whole)
        values = items[0].value if alone else [item.value for item in items]
        content = self._seeder.run(lambda: self._collated(items[0], values))
        return tuple(item.id for item in items), count, content

    def _collated(self, first: StreamItem, values: Any) -> Any:
        seeds = self._seeder.seeds
        if seeds is not None:
            self._seeder.part(lambda: seeds.stream_collate(first.epoch, first.worker, first.ordinal))
        return self._collate_fn(values)

    def _own(self, items: list[StreamItem]) -> tuple[list[StreamItem], int]:
        """This replica's items, and how many all replicas have."""
        share, count = self._share, len(items)
        if share is None or share.replicas == 1:
            return items, count
        own = items[count * share.replica // share.replicas : count * (share.replica + 1) // share.replicas]
        return own, count


def one_iterator(state: dict[str, Any]) -> dict[str, Any]:
    """The state of the only ``StreamIterator`` in that of a torchdata loader with 0 or 1 workers."""
    if "ordinal" in state:
        return state
    holder = state[_SNAPSHOT][_WORKERS]["worker_0"] if _SNAPSHOT in state else state
    found: dict[str, Any] = holder[_FETCHER_STATE][_DATASET_ITER_STATE]
    return found


def _state_of(item: Any) -> Any:
    """A copy: a dataset may well return the very list that it goes on changing."""
    return copy.deepcopy(item.state_dict()) if is_stateful(item) else None


def _seeder(seeds: SampleSeeds | None) -> Seeder:
    """What a stream gave cannot be asked for again, so every item is seeded."""
    return Seeder(seeds, always=True, restore=False)


class StreamSource:
    """Batches of an iterable dataset that can save its state, through torchdata's loader.

    Several replicas each read the whole stream, and take their ``share`` of each global batch; no share
    means that the dataset makes its own batches.

    The state after each batch travels with the batch, so that looking ahead costs nothing in exactness:
    of the one iterator with 0 or 1 workers, which are the same to it, else of the whole loader. Keep
    a dataset's state small: with workers it crosses a queue every batch.
    Workers are started afresh for every epoch, so that each epoch begins from the dataset as given.
    """

    batches: int | None = None

    def __init__(
        self,
        dataset: Any,
        share: Share | None,
        *,
        reading: Reading,
        seeds: SampleSeeds | None,
        given: Any = None,
    ) -> None:
        self._fetcher = StreamFetcher(dataset, seeds, given)
        self.given = None if reading.num_workers else self._fetcher.initial  # workers have copies
        self._loader: StatefulDataLoader[Any] = StatefulDataLoader(
            StreamFront(dataset, Carrying(self._fetcher, start=dict(_START))),
            batch_size=None if share is None else share.global_batch,
            drop_last=share is not None and share.remainder == "drop",
            collate_fn=StreamCollate(reading.collate_fn, seeds, share),
            snapshot_every_n_steps=1,
            **reading.arguments(),
        )

    def close(self) -> None:
        """Its workers end with their pass."""

    def open(self, epoch: int, batch: int, state: Any) -> Iterator[tuple[Tag, Any]]:
        if batch and state is None:
            raise OrderError(f"no state was recorded for batch {batch} of a stream")
        self._fetcher.epoch = epoch
        if self._loader.num_workers:
            # Hugging Face's keep the epoch in memory that workers share, and *add* what is missing: two that
            # do so at once add it twice. Told before they start, they add nothing.
            self._fetcher.tell_epoch()
        single = self._loader.num_workers <= 1
        self._fetcher.resume = one_iterator(state) if single and state is not None else None
        if state is not None and not single:
            self._loader.load_state_dict(copy.deepcopy(state))
        fresh = state is None
        for k, (ids, samples, content) in enumerate(unwrapped(self._loader), start=batch):
            fresh = False
            whole = self._loader.state_dict()  # made afresh each time, from copies
            after = one_iterator(whole) if single else whole
            yield Tag(epoch, k, np.array(ids, dtype=np.int64), samples, state=after), content
        if fresh:
            raise UsageError(
                f"the iterable dataset gave nothing in epoch {epoch}",
                hint="its iterator must begin anew at each iter(), unless a state was just loaded",
            )
