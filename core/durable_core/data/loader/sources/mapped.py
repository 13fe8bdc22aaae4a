"""L3. The physical plane: where batches come from, in logical order, with their receipts.

A source reads; it counts nothing. All stand on torch's loaders with a batch sampler of ours that
starts anywhere at once, and a private generator, so that making an iterator draws nothing from the
global streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader

from durable_core.data.cursor import Layout
from durable_core.data.ledger import Tag
from durable_core.data.loader.reading.failures import unwrapped
from durable_core.data.loader.reading.fetch import Collate, Collation, MapFetcher, Pieces, Ticket
from durable_core.data.loader.reading.front import MapFront
from durable_core.data.loader.reading.seeding import Seeder
from durable_core.data.order import Order, spanned_ids, wrapped_ids
from durable_core.data.packing import Packing
from durable_core.data.rng import SampleSeeds
from durable_core.errors import OrderError

AT_ONCE = 4096  # positions of an order looked up in one call


@dataclass(frozen=True)
class Reading:
    """How to read: torch's own DataLoader arguments, passed through as they are."""

    collate_fn: Collate
    num_workers: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    pads: bool = False
    """Whether batches may be filled up with masked samples."""
    seeds_always: bool = False
    """Whether every stream is seeded for every sample, drawn from or not."""

    def arguments(self) -> dict[str, Any]:
        generator = torch.Generator()
        generator.manual_seed(0)  # only seeds workers, whose streams are seeded again per sample
        return {"num_workers": self.num_workers, "generator": generator, **self.extra}


def is_stateful(item: Any) -> bool:
    """Whether it has ``state_dict`` and ``load_state_dict``."""
    return all(callable(getattr(item, name, None)) for name in ("state_dict", "load_state_dict"))


class Source(Protocol):
    given: Any
    """The state, as it first was, of what is read in this process and has one: another source over the same
    object, used by then, is made with it. None for what needs none."""

    def open(self, epoch: int, batch: int, state: Any) -> Iterator[tuple[Tag, Any]]:
        """(tag, the user's batch) from ``batch`` on; ``state`` is that of the tag before, or None.

        Lazy: nothing is read, and no worker started, before the first batch is asked for.
        """

    def close(self) -> None:
        """End the workers that persist. It is not opened again."""


class MapReader:
    """A source that reads through a ``MapLoader``."""

    given: Any = None
    _loader: MapLoader

    def close(self) -> None:
        self._loader.close()


class _Feed:
    """A sampler whose next pass can be set; torch's loader keeps this one object for life."""

    def __init__(self) -> None:
        self.tickets: Iterator[Ticket] = iter(())

    def __iter__(self) -> Iterator[Ticket]:
        return self.tickets


class MapSource(MapReader):
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
        self._order, self._layout = order, layout
        self._replica, self._replicas = replica, replicas
        self._loader = MapLoader(dataset, reading, seeds)

    def open(self, epoch: int, batch: int, state: Any) -> Iterator[tuple[Tag, Any]]:
        layout = self._layout
        batches = layout.batches_in(epoch)
        count, whole, final = batch, layout.global_batch, batches - 1
        for tag, content in self._loader.run(self._tickets(epoch, batch, batches)):
            count += 1
            tag.last = tag.batch == final
            tag.samples = layout.samples(epoch, final) if tag.last else whole
            yield tag, content
        if count != batches:
            raise OrderError(f"epoch {epoch} ended after {count} of {batches} batches")

    def tags(self, n: int) -> Iterator[Tag]:
        """What travels beside the first ``n`` batches of the data, which are not read."""
        for ticket in self._tickets(0, 0, n):
            pieces = ticket.pieces
            epochs = None if pieces is None else pieces.epochs
            samples = self._layout.samples(0, ticket.batch)
            yield Tag(ticket.epoch, ticket.batch, ticket.ids, samples=samples, epochs=epochs)

    def _tickets(self, epoch: int, batch: int, batches: int) -> Iterator[Ticket]:
        if self._layout.remainder != "straddle":
            yield from self._regular(epoch, batch, batches - 1)
            batch = max(batch, batches - 1)
        for k in range(batch, batches):
            yield self._ticket(epoch, k)

    def _regular(self, epoch: int, begin: int, end: int) -> Iterator[Ticket]:
        """Of batches that no remainder is in: the ids of many are looked up at once."""
        total = self._layout.global_batch
        first, last = (total * r // self._replicas for r in (self._replica, self._replica + 1))
        some = max(AT_ONCE // total, 1)
        for start in range(begin, end, some):
            many = min(some, end - start)
            ids = self._order.ids(epoch, start * total, (start + many) * total).reshape(many, total)
            for number, own in enumerate(ids[:, first:last], start):
                yield Ticket(epoch, number, first, own)

    def _ticket(self, epoch: int, batch: int) -> Ticket:
        layout, replica, replicas = self._layout, self._replica, self._replicas
        start, stop = layout.share(batch, replica, replicas, epoch)
        if layout.remainder == "straddle":
            part = start - layout.interval(batch, epoch)[0]
            ids, epochs = spanned_ids(self._order, layout.spans(epoch, batch, replica, replicas))
            return Ticket(epoch, batch, part, ids, 0, Pieces(epochs))
        wanted = wrapped_ids(self._order, epoch, start, stop)
        padded = layout.padded(epoch, batch, replica, replicas)
        if padded:  # what fills it up repeats the last sample; of the whole batch, if the share has none
            last = wanted[-1:] or wrapped_ids(self._order, epoch, layout.size - 1, layout.size)
            wanted += last * padded
        ids = np.array(wanted, dtype=np.int64)
        return Ticket(epoch, batch, start - batch * layout.global_batch, ids, padded)


class MapLoader:
    """torch's DataLoader, kept between passes so that persistent workers persist."""

    def __init__(
        self, dataset: Any, reading: Reading, seeds: SampleSeeds | None, packing: Packing | None = None
    ) -> None:
        self._feed = _Feed()
        self._fetcher = MapFetcher(
            dataset,
            Seeder(seeds, always=reading.seeds_always),
            Collation(reading.collate_fn, pads=reading.pads),
            packing,
        )
        self._loader: DataLoader[Any] = DataLoader(
            MapFront(dataset, self._fetcher),
            sampler=self._feed,  # yields tickets
            batch_size=None,  # a ticket is a whole batch
            collate_fn=_as_it_is,
            **reading.arguments(),
        )

    def run(self, tickets: Iterator[Ticket]) -> Iterator[tuple[Tag, Any]]:
        """The batches asked for, in that order; the tags want what only the source knows."""
        if not self._loader.num_workers and not self._loader.pin_memory:
            return map(self._fetcher.fetch, tickets)  # all that torch's would do, less its profiling
        self._feed.tickets = tickets
        return unwrapped(iter(self._loader))

    def close(self) -> None:
        """End the workers now. (Tickets belong to a source, and that has this: a cycle, else.)"""
        self._feed.tickets = iter(())
        del self._loader


def _as_it_is(fetched: Any) -> Any:
    return fetched
