"""L3. What runs where a map-style dataset is read, in a worker or not: fetch, collate, name the ids."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from durable_core.clock import SystemClock
from durable_core.data.loader.seeding import Seeder
from durable_core.data.packing import Packing
from durable_core.data.packing.rows import Piece, Row, assemble, record_length
from durable_core.data.physical.metrics import Metrics
from durable_core.errors import SkippedRecord, UnsupportedError

Collate = Callable[[Any], Any]
PAD_MASK = "pad_mask"
_now = SystemClock().monotonic


@dataclass(frozen=True)
class Pieces:
    """What the pieces of a ticket are, beside their ids.

    ``epochs`` keys the randomness of each. ``begins``/``ends`` are token ranges, ``packs`` the limits of
    the samples among the pieces; None where a piece is a whole record and a sample.
    """

    epochs: tuple[int, ...]
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    packs: tuple[int, ...] | None = None


@dataclass(slots=True)  # one for each batch, and freezing it would double its price
class Ticket:
    """Asks for one batch: ``ids`` in order; ``part`` is where they begin in the global batch.

    ``padded``: how many samples, counted from the end, only fill the batch up. ``pieces`` is None
    where each id is a sample of ``epoch``.
    """

    epoch: int
    batch: int
    part: int
    ids: tuple[int, ...]
    padded: int = 0
    pieces: Pieces | None = None


@dataclass(slots=True)
class Receipt:
    """Says which ids were really asked of the dataset, for which batch, and came (``skipped``: did not).

    What fills a batch up is not among them. Of packs only: ``amounts``, the tokens used of each id, and
    ``lengths``, those of its record when it is packed whole. ``epochs`` of its source that each was asked
    for in, and ``skipped_epochs``: None where all were asked for in ``epoch``.
    """

    epoch: int
    batch: int
    ids: tuple[int, ...]
    skipped: tuple[int, ...] = ()
    padded: int = 0
    amounts: tuple[int, ...] | None = None
    empty: bool = False
    seconds: float = 0.0
    """What fetching and collating took in a worker; without one, the training loop waits for it."""
    measured: Metrics | None = None
    """What the dataset measured since the last batch of this process."""
    epochs: tuple[int, ...] | None = None
    lengths: tuple[int, ...] | None = None
    skipped_epochs: tuple[int, ...] | None = None


class MapFetcher(Dataset[Any]):
    """Stands before the user's map-style dataset; every other attribute is the dataset's own.

    ``fetcher[ticket]`` is the collated batch, and the receipt beside it. The dataset's ``__getitem__`` is
    called once per record, under the randomness of that record. A dataset with ``__getitems__`` gets its
    whole batch in one call under the batch's: its draws then depend on the batch's composition, so they
    repeat at the same number of replicas only. A record for which ``SkippedRecord`` is raised (or
    stands in what ``__getitems__`` gives) is left out.

    It all happens in ``__getitem__``, as the seeder may want the whole of it again.
    """

    _OWN = frozenset({"_dataset", "_seeder", "_collate", "_packing", "_batched", "_prefetch", "_measures"})

    def __init__(
        self, dataset: Any, seeder: Seeder, collate: Collation, packing: Packing | None = None
    ) -> None:
        self._dataset = dataset
        self._seeder = seeder
        self._collate = collate
        self._packing = packing
        self._batched = _has_getitems(dataset)
        self._prefetch = callable(getattr(dataset, "prefetch", None))
        self._measures = isinstance(getattr(dataset, "metrics", None), Metrics)

    def __getitem__(self, ticket: Ticket) -> tuple[Receipt, Any]:
        begun = _now() if get_worker_info() is not None else 0.0
        if self._prefetch:
            self._dataset.prefetch(ticket.ids)
        receipt, content = self._seeder.run(lambda: self._batch(ticket))
        if begun:
            receipt.seconds = _now() - begun
        if self._measures:
            receipt.measured = self._dataset.metrics.take()
        return receipt, content

    def _batch(self, ticket: Ticket) -> tuple[Receipt, Any]:
        pieces = ticket.pieces
        if pieces is None or pieces.packs is None:
            receipt, samples = self._samples(ticket)
        else:
            receipt, samples = self._packs(ticket, pieces, pieces.packs)
        if receipt.empty:  # nothing to collate; the training process says so
            return receipt, None
        seeds = self._seeder.seeds
        if seeds is not None:
            self._seeder.part(lambda: seeds.collate(ticket.epoch, ticket.batch, ticket.part))
        return receipt, self._collate(samples, receipt.padded)

    def _samples(self, ticket: Ticket) -> tuple[Receipt, Sequence[Any]]:
        samples, complete = self._records(ticket)
        trained = len(ticket.ids) - ticket.padded
        ids = ticket.ids if not ticket.padded else ticket.ids[:trained]
        epochs = None if ticket.pieces is None else ticket.pieces.epochs[:trained]
        if complete:
            return Receipt(ticket.epoch, ticket.batch, ids, (), ticket.padded, epochs=epochs), samples
        came = [not isinstance(sample, SkippedRecord) for sample in samples]
        kept = list(compress(samples, came))
        lost = [not there for there in came]
        receipt = Receipt(
            ticket.epoch,
            ticket.batch,
            tuple(compress(ids, came)),
            tuple(compress(ids, lost)),
            padded=sum(came[trained:]),
            empty=not kept,
            epochs=None if epochs is None else tuple(compress(epochs, came)),
            skipped_epochs=None if epochs is None else tuple(compress(epochs, lost)),
        )
        return receipt, kept

    def _records(self, ticket: Ticket) -> tuple[Sequence[Any], bool]:
        """A record, or what was raised to leave it out, for each id; and whether all are records."""
        dataset, seeder = self._dataset, self._seeder
        if self._batched:
            seeds = seeder.seeds
            if seeds is not None:
                seeder.part(lambda: seeds.fetch(ticket.epoch, ticket.batch, ticket.part))
            items: Sequence[Any] = dataset.__getitems__(list(ticket.ids))
            return items, not any(isinstance(item, SkippedRecord) for item in items)
        samples: list[Any] = []
        complete = True
        for index in seeder.each(ticket.ids, ticket.epoch if ticket.pieces is None else ticket.pieces.epochs):
            try:
                samples.append(dataset[index])
            except SkippedRecord as left_out:
                samples.append(left_out)
                complete = False
        return samples, complete

    def _packs(self, ticket: Ticket, pieces: Pieces, packs: tuple[int, ...]) -> tuple[Receipt, list[Row]]:
        """Every record is read once, however many pieces of it the ticket asks for."""
        wanted = list(zip(ticket.ids, pieces.epochs, strict=True))
        once = list(dict.fromkeys(wanted))
        whole = Pieces(tuple(epoch for _, epoch in once))
        ids = tuple(index for index, _ in once)
        read, _ = self._records(Ticket(ticket.epoch, ticket.batch, ticket.part, ids, pieces=whole))
        records = dict(zip(once, read, strict=True))
        came = [not isinstance(records[key], SkippedRecord) for key in wanted]
        samples: list[Row] = []
        padded = 0
        trained = len(packs) - 1 - ticket.padded
        for number in range(len(packs) - 1):
            there = [p for p in range(packs[number], packs[number + 1]) if came[p]]
            if there:
                parts = [self._piece(records[wanted[p]], ticket.ids[p], pieces, p) for p in there]
                samples.append(self._assembled(parts, counts=number < trained))
                padded += number >= trained
        count = packs[trained]  # of the pieces that are trained; what fills up repeats some
        kept = [p for p in range(count) if came[p]]
        lost = list(dict.fromkeys(wanted[p] for p in range(count) if not came[p]))
        receipt = Receipt(
            ticket.epoch,
            ticket.batch,
            tuple(ticket.ids[p] for p in kept),
            tuple(index for index, _ in lost),
            padded,
            tuple(pieces.ends[p] - pieces.begins[p] for p in kept),
            empty=not samples,
            epochs=tuple(pieces.epochs[p] for p in kept),
            lengths=tuple(self._packed_length(records[wanted[p]]) for p in kept),
            skipped_epochs=tuple(epoch for _, epoch in lost),
        )
        return receipt, samples

    def _packed_length(self, record: Any) -> int:
        """Tokens of all pieces of it together: counted in what came, not looked up."""
        assert self._packing is not None
        return self._packing.packed(record_length(record))

    def _piece(self, record: Any, index: int, pieces: Pieces, place: int) -> Piece:
        lengths = getattr(self._dataset, "lengths", None)
        planned = None if lengths is None else int(lengths[index])
        weight = 1.0
        if isinstance(record, Mapping) and isinstance(record.get("loss_weight"), (int, float)):  # a source's
            weight = float(record["loss_weight"])
            record = {name: value for name, value in record.items() if name != "loss_weight"}
        return Piece(record, pieces.begins[place], pieces.ends[place], planned, index, weight)

    def _assembled(self, parts: list[Piece], *, counts: bool) -> Row:
        """A row; if it does not count, it only fills the batch up, and has no label."""
        assert self._packing is not None
        row = assemble(self._packing, parts)
        if not counts:
            row["loss_mask"][:] = False
            for name, nothing in (("labels", self._packing.ignore_index), ("loss_weight", 0)):
                if name in row:
                    row[name][:] = nothing
        return row

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


class Collation:
    """The user's collate function, and how it is told of padding.

    ``pads``: batches may be filled up with masked samples, so all of them say which are. The function is
    told by its argument ``pad_mask`` (bool [samples], true for what only fills up) if it has one; else
    samples are mappings, and each gets an entry of that name.
    """

    def __init__(self, collate_fn: Collate, *, pads: bool = False) -> None:
        self._collate_fn: Callable[..., Any] = collate_fn
        self._pads = pads
        self._tells = pads and PAD_MASK in inspect.signature(collate_fn).parameters

    def __call__(self, samples: Sequence[Any], padded: int) -> Any:
        if not self._pads:
            return self._collate_fn(samples)
        mask = [False] * (len(samples) - padded) + [True] * padded
        if self._tells:
            return self._collate_fn(samples, pad_mask=torch.tensor(mask))
        for sample in samples:
            if not isinstance(sample, Mapping):
                raise UnsupportedError(
                    f'remainder="pad" cannot mark a sample of type {type(sample).__name__} as padding',
                    hint=f"let samples be dicts, or give a collate_fn with an argument {PAD_MASK}",
                )
        marked = zip(samples, mask, strict=True)
        return self._collate_fn([{**sample, PAD_MASK: padding} for sample, padding in marked])
