"""L3. What runs where a map-style dataset is read, in a worker or not: fetch, collate, name the ids."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from durable_core.clock import SystemClock, computed
from durable_core.data.ledger import Tag
from durable_core.data.loader.left_out import by_object
from durable_core.data.loader.reading.failures import Failure, carried
from durable_core.data.loader.reading.notes import note, reading
from durable_core.data.loader.reading.seeding import Seeder
from durable_core.data.order import Ids
from durable_core.data.packing import Packing
from durable_core.data.packing.rows import Piece, Row, assemble, record_length
from durable_core.data.physical.metrics import Metrics
from durable_core.errors import CorruptError, DurableError, SkippedRecord, UnsupportedError
from durable_core.format.ledger import RowFlag

Collate = Callable[[Any], Any]
PAD_MASK = "pad_mask"
STAND_INS = 64
_now = SystemClock().monotonic


@dataclass(frozen=True)
class Pieces:
    """What the pieces of a ticket are, beside their ids: int64 [pieces].

    ``epochs`` keys the randomness of each. ``begins``/``ends`` are token ranges, ``packs`` [samples + 1] the
    limits of the samples among the pieces; None where a piece is a whole record and a sample.
    """

    epochs: Ids
    begins: Ids | None = None
    ends: Ids | None = None
    packs: Ids | None = None


@dataclass(slots=True)  # one for each batch, and freezing it would double its price
class Ticket:
    """Asks for one batch: ``ids`` in order; ``part`` is where they begin in the global batch.

    ``padded``: how many samples, counted from the end, only fill the batch up. ``pieces`` is None
    where each id is a sample of ``epoch``.
    """

    epoch: int
    batch: int
    part: int
    ids: Ids
    padded: int = 0
    pieces: Pieces | None = None


_Read = tuple[Tag, Sequence[Any], int]
"""What was really asked of the dataset, what came, and how many at the end of that only fill up."""


class MapFetcher:
    """Asks the user's map-style dataset for the batch of a ticket.

    What comes is the tag that names what was really asked of the dataset, and beside it the collated
    batch. The dataset's ``__getitem__`` is called for one record after another, each under its own
    randomness; at most three times in a process for a whole batch again (see ``seeding``), so that what
    it counts or keeps of its calls is not exact. A dataset with ``__getitems__`` gets its
    whole batch in one call under the batch's: its draws then depend on the batch's composition, so they
    repeat at the same number of replicas only. A record for which ``SkippedRecord`` is raised (or
    stands in what ``__getitems__`` gives) is left out.
    """

    def __init__(
        self, dataset: Any, seeder: Seeder, collate: Collation, packing: Packing | None = None
    ) -> None:
        self._dataset = dataset
        self._seeder = seeder
        self._collate = collate
        self._packing = packing
        self._row_length = 0 if packing is None else packing.length
        self._batched = has_getitems(dataset)
        self._prefetch = callable(getattr(dataset, "prefetch", None))
        self._measures = isinstance(getattr(dataset, "metrics", None), Metrics)

    def __call__(self, ticket: Ticket) -> tuple[Tag, Any] | Failure:
        """``fetch`` in a worker: an error of ours is a value there, and what it took is measured."""
        begun, busy = _now(), computed(process=True)
        try:
            tag, content = self.fetch(ticket)
        except DurableError as error:
            return carried(error)
        tag.seconds = _now() - begun, computed(process=True) - busy
        return tag, content

    def fetch(self, ticket: Ticket) -> tuple[Tag, Any]:
        """Without a worker: nothing has to travel, and who asks waits."""
        if self._prefetch:
            self._dataset.prefetch(ticket.ids.tolist())
        tag, content = self._seeder.run(self._batch, ticket)
        if self._measures:
            tag.measured = self._dataset.metrics.take()
        return tag, content

    def _batch(self, ticket: Ticket) -> tuple[Tag, Any]:
        pieces = ticket.pieces
        if pieces is None or pieces.packs is None:
            tag, samples, padded = self._samples(ticket)
        else:
            tag, samples, padded = self._packs(ticket, pieces, pieces.packs.tolist())
        if padded:
            tag.flags = RowFlag.PADDED
        seeds = self._seeder.seeds
        if seeds is not None:
            self._seeder.part(lambda: seeds.collate(ticket.epoch, ticket.batch, ticket.part))
        try:
            return tag, self._collate(samples, padded)
        except Exception as error:
            note(error, reading(self._dataset, ticket.ids.tolist(), ticket.epoch, ticket.batch))
            raise

    def _samples(self, ticket: Ticket) -> _Read:
        ids, padded, pieces = ticket.ids, ticket.padded, ticket.pieces
        trained = len(ids) - padded
        if pieces is None:
            samples, complete = self._records(ticket, ids.tolist(), ticket.epoch)
            tag = Tag(ticket.epoch, ticket.batch, ids[:trained] if padded else ids)
        else:
            samples, complete = self._records(ticket, ids.tolist(), pieces.epochs.tolist())
            tag = Tag(ticket.epoch, ticket.batch, ids[:trained], epochs=pieces.epochs[:trained])
        if complete:
            return tag, samples, padded
        came = [not isinstance(sample, SkippedRecord) for sample in samples]
        there = np.array(came[:trained], dtype=bool)
        tag.ids, tag.skipped = tag.ids[there], tag.ids[~there]
        tag.left_out = by_object(samples[:trained])
        if tag.epochs is not None:
            tag.epochs, tag.skipped_epochs = tag.epochs[there], tag.epochs[~there]
        kept = list(compress(samples, came))
        if not kept:
            return tag, [self._stand_in(ticket, tag)[1]], 1
        return tag, kept, sum(came[trained:])

    def _records(self, ticket: Ticket, ids: list[int], epochs: int | list[int]) -> tuple[Sequence[Any], bool]:
        """A record, or what was raised to leave it out, for each id; and whether all are records."""
        dataset, seeder = self._dataset, self._seeder
        if self._batched:
            seeds = seeder.seeds
            if seeds is not None:
                seeder.part(lambda: seeds.fetch(ticket.epoch, ticket.batch, ticket.part))
            try:
                items: Sequence[Any] = dataset.__getitems__(ids)
            except Exception as error:
                note(error, reading(dataset, ids, ticket.epoch, ticket.batch))
                raise
            return items, not any(isinstance(item, SkippedRecord) for item in items)
        samples: list[Any] = []
        complete = True
        for index in seeder.each(ids, epochs):
            try:
                samples.append(dataset[index])
            except SkippedRecord as left_out:
                samples.append(left_out)
                complete = False
            except Exception as error:
                note(error, reading(dataset, [index], ticket.epoch, ticket.batch))
                raise
        return samples, complete

    def _packs(self, ticket: Ticket, pieces: Pieces, packs: list[int]) -> _Read:
        """Every record is read once, however many pieces of it the ticket asks for."""
        begins, ends = pieces.begins, pieces.ends
        assert begins is not None and ends is not None
        wanted = list(zip(ticket.ids.tolist(), pieces.epochs.tolist(), strict=True))
        once = list(dict.fromkeys(wanted))
        read, _ = self._records(ticket, [index for index, _ in once], [epoch for _, epoch in once])
        records = dict(zip(once, read, strict=True))
        came = [not isinstance(records[key], SkippedRecord) for key in wanted]
        samples: list[Row] = []
        padded = 0
        trained = len(packs) - 1 - ticket.padded
        for number in range(len(packs) - 1):
            there = [p for p in range(packs[number], packs[number + 1]) if came[p]]
            if there:
                parts = [
                    self._piece(records[wanted[p]], int(begins[p]), int(ends[p]), wanted[p][0]) for p in there
                ]
                samples.append(self._assembled(parts, counts=number < trained))
                padded += number >= trained
        count = packs[trained]  # of the pieces that are trained; what fills up repeats some
        kept = [p for p in range(count) if came[p]]
        tag = Tag(
            ticket.epoch,
            ticket.batch,
            ticket.ids[kept],
            amounts=(ends - begins)[kept],
            epochs=pieces.epochs[kept],
            lengths=_int64([self._packed_length(records[wanted[p]]) for p in kept]),
        )
        lost = list(dict.fromkeys(wanted[p] for p in range(count) if not came[p]))
        if lost:
            tag.skipped, tag.skipped_epochs = _int64(lost).T
            tag.left_out = by_object(records[key] for key in lost)
        if not samples:
            index, record = self._stand_in(ticket, tag)
            begun = self._piece(record, 0, min(record_length(record), self._row_length), index)
            return tag, [self._assembled([begun], counts=False)], 1
        return tag, samples, padded

    def _stand_in(self, ticket: Ticket, tag: Tag) -> tuple[int, Any]:
        """(id, record) of one that comes, for a share that lost all of its own: the batch holds it masked.

        Looked for at ``STAND_INS`` places all over the dataset, as what is bad often lies together: which
        it is depends on the data alone. Raises ``CorruptError`` where nothing can be masked, or none comes.
        """
        size, last = len(self._dataset), int(ticket.ids[-1])
        for k in range(1, STAND_INS if self._collate.pads else 0):
            index = (last + k * size // STAND_INS) % size
            records, complete = self._records(ticket, [index], ticket.epoch)
            if complete:
                return index, records[0]
        assert tag.skipped is not None
        raise CorruptError(
            f"epoch {tag.epoch} batch {tag.batch}",
            f"all of its records were left out: {', '.join(map(str, tag.skipped[:8]))}",
            hint='no batch can be empty: mend the data, or let remainder="pad" fill it with a masked sample',
        )

    def _packed_length(self, record: Any) -> int:
        """Tokens of all pieces of it together: counted in what came, not looked up."""
        assert self._packing is not None
        return self._packing.packed(record_length(record))

    def _piece(self, record: Any, begin: int, end: int, index: int) -> Piece:
        lengths = getattr(self._dataset, "lengths", None)
        planned = None if lengths is None else int(lengths[index])
        weight = 1.0
        if isinstance(record, Mapping) and isinstance(record.get("loss_weight"), (int, float)):  # a source's
            weight = float(record["loss_weight"])
            record = {name: value for name, value in record.items() if name != "loss_weight"}
        return Piece(record, begin, end, planned, index, weight)

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


def _int64(values: Sequence[Any]) -> Ids:
    return np.array(values, dtype=np.int64)


def has_getitems(dataset: Any) -> bool:
    """Whether it reads a whole batch in one call, under the batch's randomness."""
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
        self.pads = pads
        self._tells = pads and PAD_MASK in inspect.signature(collate_fn).parameters

    def __call__(self, samples: Sequence[Any], padded: int) -> Any:
        if not self.pads:
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
