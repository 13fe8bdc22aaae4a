"""L3. The physical plane: where batches come from, in logical order, with their receipts.

A source reads; it counts nothing. All three stand on torch's loaders with a batch sampler of ours
that starts anywhere at once, and a private generator, so that making an iterator draws nothing from
the global streams.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

from durable_core.data.cursor import Layout
from durable_core.data.ledger import Tag
from durable_core.data.loader.fetch import (
    Collate,
    MapCollate,
    MapFetcher,
    StreamCollate,
    StreamFetcher,
    Ticket,
    is_stateful,
)
from durable_core.data.order import Order, wrapped_ids
from durable_core.data.rng import SampleSeeds, preserved_streams, seed_streams
from durable_core.errors import OrderError, SpecMismatchError, UsageError


@dataclass(frozen=True)
class Reading:
    """How to read: torch's own DataLoader arguments, passed through as they are."""

    collate_fn: Collate
    num_workers: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        generator = torch.Generator()
        generator.manual_seed(0)  # only seeds workers, whose streams are seeded again per sample
        return {"num_workers": self.num_workers, "generator": generator, **self.extra}


class Source(Protocol):
    batches: int | None
    """Batches in one epoch, or None when only the end will tell."""

    def open(self, epoch: int, batch: int, state: Any) -> Iterator[tuple[Tag, Any]]:
        """(tag, the user's batch) from ``batch`` on; ``state`` is that of the tag before, or None.

        Lazy: nothing is read, and no worker started, before the first batch is asked for.
        """


class _Feed:
    """A batch sampler whose next pass can be set; torch's loader keeps this one object for life."""

    def __init__(self) -> None:
        self.tickets: Iterator[Ticket] = iter(())

    def __iter__(self) -> Iterator[Ticket]:
        return self.tickets


class MapSource:
    """Batches of a map-style dataset along an order: any position, any worker count, no state."""

    def __init__(
        self,
        dataset: Any,
        order: Order,
        layout: Layout,
        *,
        replica: int,
        replicas: int,
        reading: Reading,
        seeds: SampleSeeds | None,
    ) -> None:
        self.batches: int | None = layout.batches
        self._order, self._layout = order, layout
        self._replica, self._replicas = replica, replicas
        self._loader = _MapLoader(dataset, reading, seeds)

    def open(self, epoch: int, batch: int, state: Any) -> Iterator[tuple[Tag, Any]]:
        batches = self._layout.batches
        delivered = self._loader.run(self._ticket(epoch, k) for k in range(batch, batches))
        count = batch
        for receipt, content in delivered:
            count += 1
            start, stop = self._layout.interval(receipt.batch)
            ids = np.array(receipt.ids, dtype=np.int64)
            yield Tag(receipt.epoch, receipt.batch, ids, stop - start, receipt.batch == batches - 1), content
        if count != batches:
            raise OrderError(f"epoch {epoch} ended after {count} of {batches} batches")

    def _ticket(self, epoch: int, batch: int) -> Ticket:
        begin = self._layout.interval(batch)[0]
        start, stop = self._layout.share(batch, self._replica, self._replicas)
        return Ticket(epoch, batch, start - begin, wrapped_ids(self._order, epoch, start, stop))


class _MapLoader:
    """torch's DataLoader, kept between passes so that persistent workers persist."""

    def __init__(self, dataset: Any, reading: Reading, seeds: SampleSeeds | None) -> None:
        self._feed = _Feed()
        self._loader: DataLoader[Any] = DataLoader(
            MapFetcher(dataset, seeds),
            batch_sampler=self._feed,  # type: ignore[arg-type]  # yields tickets, not lists of ids
            collate_fn=MapCollate(reading.collate_fn, seeds),  # type: ignore[arg-type]  # gets what MapFetcher gave
            **reading.arguments(),
        )

    def run(self, tickets: Iterator[Ticket]) -> Iterator[Any]:
        self._feed.tickets = tickets
        return iter(self._loader)


class SamplerSource:
    """Batches of a map-style dataset along a user's own sampler.

    With ``state_dict`` on the sampler, its state after each batch of ids travels with the batch, so a
    resume is exact. Without one, a resume draws the epoch's ids again from its start and drops those
    of the batches already trained: ids only, no data is read. The global streams are seeded for each
    batch of ids, so samplers that draw from those repeat their draws.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Any,
        *,
        batch_size: int | None,
        drop_last: bool,
        batches: int | None,
        reading: Reading,
        seeds: SampleSeeds,
        sample_seeds: SampleSeeds | None,
    ) -> None:
        self.batches = batches
        self._sampler, self._batch_size, self._drop_last = sampler, batch_size, drop_last
        self._seeds, self._stateful = seeds, is_stateful(sampler)
        self._states: deque[Any] = deque()
        self._loader = _MapLoader(dataset, reading, sample_seeds)

    def open(self, epoch: int, batch: int, state: Any) -> Iterator[tuple[Tag, Any]]:
        self._states.clear()
        limit = None if self.batches is None else self.batches - batch
        tickets = itertools.islice(self._tickets(epoch, batch, state), limit)
        for receipt, content in self._loader.run(tickets):
            ids = np.array(receipt.ids, dtype=np.int64)
            last = self.batches is not None and receipt.batch == self.batches - 1
            after = self._states.popleft()  # drawn in this order, delivered in this order
            yield Tag(receipt.epoch, receipt.batch, ids, len(ids), last, after), content

    def _tickets(self, epoch: int, batch: int, state: Any) -> Iterator[Ticket]:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        if self._stateful and batch and state is None:
            raise SpecMismatchError("no state was recorded for the sampler", fields=("sampler",))
        resumed = self._stateful and state is not None
        if resumed:
            self._sampler.load_state_dict(state)
        drawn: Iterator[Any] | None = None
        for k in itertools.count(batch if resumed else 0):
            with preserved_streams(torch.default_generator):
                seed_streams(self._seeds.sampler(epoch, k), torch.default_generator)
                drawn = iter(self._sampler) if drawn is None else drawn
                ids = self._draw(drawn)
            if ids is None:
                return
            if k >= batch:
                self._states.append(copy.deepcopy(self._sampler.state_dict()) if self._stateful else None)
                yield Ticket(epoch, k, 0, ids)

    def _draw(self, drawn: Iterator[Any]) -> tuple[int, ...] | None:
        if self._batch_size is None:  # a batch sampler
            batch = next(drawn, None)
            return None if batch is None else tuple(int(i) for i in batch)
        ids = tuple(int(i) for i in itertools.islice(drawn, self._batch_size))
        short = len(ids) < self._batch_size
        return None if not ids or (short and self._drop_last) else ids


class StreamSource:
    """Batches of an iterable dataset that can save its state, through torchdata's loader.

    The whole loader's state after each batch travels with the batch, so that looking ahead costs
    nothing in exactness. Keep a dataset's state small: with workers it crosses a queue every batch.
    Workers are started afresh for every epoch, so that each epoch begins from the dataset as given.
    """

    batches: int | None = None

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None,
        drop_last: bool,
        reading: Reading,
        seeds: SampleSeeds | None,
    ) -> None:
        self._fetcher = StreamFetcher(dataset, seeds)
        self._loader: StatefulDataLoader[Any] = StatefulDataLoader(
            self._fetcher,
            batch_size=batch_size,
            drop_last=drop_last,
            collate_fn=StreamCollate(reading.collate_fn, seeds),
            snapshot_every_n_steps=1,
            **reading.arguments(),
        )

    def open(self, epoch: int, batch: int, state: Any) -> Iterator[tuple[Tag, Any]]:
        if batch and state is None:
            raise OrderError(f"no state was recorded for batch {batch} of a stream")
        self._fetcher.epoch = epoch
        if state is not None:
            self._loader.load_state_dict(copy.deepcopy(state))
        fresh = state is None
        for k, (ids, content) in enumerate(self._loader, start=batch):
            fresh = False
            after = self._loader.state_dict()  # made afresh each time, from copies
            yield Tag(epoch, k, np.array(ids, dtype=np.int64), len(ids), state=after), content
        if fresh:
            raise UsageError(
                f"the iterable dataset gave nothing in epoch {epoch}",
                hint="its iterator must begin anew at each iter(), unless a state was just loaded",
            )
