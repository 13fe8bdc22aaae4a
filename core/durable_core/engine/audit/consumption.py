"""L4. What a lineage consumed, judged against what it had to consume. Pure arithmetic on ledger rows.

The proof does not trust the loader: the ids are those that came out of the dataset. An epoch has to
consume exactly the ids that its order or sequence places in its batches, from batch 0 to the last one
(or to where the cursor of the head stands, for the epoch that is still open); and of a mixture every
source has to give each of its records once before any a second time.

Batches that are as they should be cancel out at once: what is kept in memory is one segment, what
differed in the epoch that is open, and the open epoch of each source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from durable_core.data.cursor import Cursor
from durable_core.data.order import Ids
from durable_core.data.sequence import Sequence as DataSequence
from durable_core.engine.audit.due import Due, Plan, due, renumbered, resized, same_data
from durable_core.engine.audit.found import Found, OpenEpoch, difference, joined, listed, runs_of
from durable_core.engine.audit.ordinals import Ordinals
from durable_core.engine.audit.portions import End, Portions
from durable_core.engine.audit.segments import Segment, described
from durable_core.engine.audit.sources import SourceCount

MAX_FINDINGS = 100
_MAX_JUMP = 100_000  # epochs, or batches of one, whose ids are compared when none of them has a row

_UNCOMPUTED = (
    "batches are of another size since a restart, where the sequence was not at its start: from there on ids "
    "are not compared with it, but judged by what the ledger says of the sources"
)


@dataclass(frozen=True)
class Finding:
    """``kind``: repeat, skip, order, overlap, cursor, mixture. ``count``: samples (rows, for an overlap)."""

    kind: str
    c: int | None
    epoch: int | None
    count: int
    detail: str


@dataclass(frozen=True)
class EpochCount:
    """One epoch: ``closed`` when a later one was begun; ``abandoned`` samples were left by declaration,
    ``left_out`` are the records among ``samples`` that were (they did not decode)."""

    epoch: int
    closed: bool
    samples: int
    repeated: int
    skipped: int
    abandoned: int
    left_out: int = 0


@dataclass(frozen=True)
class Consumption:
    """The verdict. ``samples``: as the cursor counts them; ``pieces``: ids in the ledger, which are more
    where documents are packed. ``ids_checked``: the order is one this code can compute, so every id was
    compared; otherwise batches were compared by their numbers only, and sources by their own counts.
    """

    samples: int
    pieces: int
    repeated: int
    skipped: int
    epochs: tuple[EpochCount, ...]
    findings: tuple[Finding, ...]
    ids_checked: bool
    sources: tuple[SourceCount, ...] = ()
    silent: tuple[Segment, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        return not self.findings


def consume(segments: Sequence[Segment], *, sequence: DataSequence | None = None) -> Consumption:
    """Walk the segments of one lineage, oldest first.

    A segment without a cursor is read with the description of the data in the next one that has it, but
    for the size of its batches, where that is known.
    ``sequence``: the run's own, for one that cannot be computed from its description alone (packing needs
    the lengths of the documents).
    """
    walk = _Walk(sequence)
    for segment, (cursor, plan) in zip(segments, described(segments), strict=True):
        walk.take(segment, cursor, plan)
    return walk.finish()


def role_order(role: str) -> tuple[str, int, str]:
    """Sorts ``dp2`` before ``dp10``, as shares of a batch are dealt."""
    match = re.fullmatch(r"(.*?)(\d+)", role)
    return (match[1], int(match[2]), role) if match else (role, -1, role)


class _Walk:
    def __init__(self, sequence: DataSequence | None) -> None:
        self._sequence = sequence
        self._findings: list[Finding] = []
        self._epochs: list[EpochCount] = []
        self._open: dict[int, OpenEpoch] = {}
        self._closed: set[int] = set()
        self._next = 0  # the first epoch not settled yet
        self._first_batch: dict[int, int] = {}  # where an epoch begins on a lineage that starts inside it
        self._left: int | None = None  # the epoch last left by declaration
        self._left_early: set[int] = set()  # all of those
        self._jumped: set[int] = set()  # epochs between one left by declaration and the one begun next
        self._data: tuple[Cursor, Plan | None] | None = None
        self._due: Due | None = None
        self._portions: Portions | None = None
        self._samples, self._pieces = 0, 0
        self._epochs_lost = 0  # samples of epochs without any row
        self._checked = 0  # the epoch of the last cursor that was looked at
        self._base = 0  # samples consumed before this lineage begins
        self._ids_checked = True
        self._silent: list[Segment] = []
        self._end: End | None = None
        self._resized = False  # batches were of another size before
        self._at_start = True  # and no epoch was over then
        self._uncomputed = False  # so that what is due is not computed from there on

    def take(self, segment: Segment, cursor: Cursor, plan: Plan | None) -> None:
        start, batches = segment.cursor, self._sorted_out(segment)
        if not batches and segment.through > max(segment.after, 0):
            self._silent.append(segment)
        if self._data is None and start is not None and not batches:
            self._next, self._base = start.epoch, start.consumed_samples
            self._first_batch = {start.epoch: start.batch}
        self._describe(cursor, plan)
        for (epoch, batch), found in sorted(batches.items()):
            self._batch(segment.c, epoch, batch, found)
        if self._portions is not None:
            self._portions.flush()
        if segment.cursor is not None:
            self._check_cursor(segment.c, segment.cursor)
        self._end = End(cursor, segment.state, known=segment.cursor is not None and not self._base)

    def finish(self) -> Consumption:
        sources: tuple[SourceCount, ...] = ()
        notes = [_UNCOMPUTED] if self._uncomputed else []
        if self._data is not None:
            cursor = self._data[0]
            self._settle_until(cursor.epoch)
            for number in sorted({*self._open, *([cursor.epoch] if cursor.batch else [])}):
                self._settle(number, cursor)
        repeated = sum(epoch.repeated for epoch in self._epochs)
        skipped = sum(epoch.skipped for epoch in self._epochs) + self._epochs_lost
        if self._portions is not None and self._end is not None:
            ended = sum(epoch.closed for epoch in self._epochs) - len(self._left_early)
            end = replace(self._end, left=frozenset(self._left_early), ended=ended)
            sources, wrong = self._portions.judge(notes, end, computed=self._ids_checked)
            for detail, count, kind in wrong:
                self._find(kind, None, None, count, detail)
            repeated = repeated or sum(source.repeated for source in sources)
            skipped = skipped or sum(source.skipped for source in sources)
            sources = sources if self._portions.mixed else ()
        return Consumption(
            samples=self._samples,
            pieces=self._pieces,
            repeated=repeated,
            skipped=skipped,
            epochs=tuple(self._epochs),
            findings=tuple(self._findings),
            ids_checked=self._ids_checked and self._samples > 0,
            sources=sources,
            silent=tuple(self._silent),
            notes=tuple(notes),
        )

    def _describe(self, cursor: Cursor, plan: Plan | None) -> None:
        if self._data is None or self._due is None or not same_data(self._data, (cursor, plan)):
            fresh = due(cursor, plan, self._sequence)
            was = None if self._data is None else self._data[0]
            if was is not None and was.global_batch and was.global_batch != cursor.global_batch:
                self._resize(was, cursor)  # a restart may go on with batches of another size
                self._resized = True
                self._at_start = self._at_start and not (was.epoch or self._closed or self._left_early)
            if self._resized:
                self._due = resized(fresh, cursor.global_batch, at_start=self._at_start)
                self._uncomputed = self._uncomputed or self._due is not fresh
            else:
                self._due = fresh
            self._ids_checked = self._ids_checked and self._due.computes
            self._portions = Portions.of(plan, cursor, self._portions)
        self._data = (cursor, plan)

    def _resize(self, was: Cursor, now: Cursor) -> None:
        number = partial(renumbered, was, now)
        for epoch in self._open.values():
            epoch.renumber(number)
        self._first_batch = {epoch: number(epoch, batch) for epoch, batch in self._first_batch.items()}

    # --- one segment ---------------------------------------------------------------------------

    def _sorted_out(self, segment: Segment) -> dict[tuple[int, int], Found]:
        """Its rows by batch; every batch is in one segment, for all roles commit the same steps."""
        batches: dict[tuple[int, int], Found] = {}
        rows = dict(segment.rows)
        for role in sorted(rows, key=role_order):
            for row in rows[role]:
                if not segment.after < row.step <= segment.through:
                    steps = f"steps {segment.after + 1} to {segment.through}"
                    detail = f"{role}: step {row.step} in the segment of {steps}"
                    self._find("overlap", segment.c, row.epoch, 1, detail)
                batches.setdefault((row.epoch, row.batch), Found()).add(role, row)
        return batches

    def _batch(self, c: int, number: int, batch: int, found: Found) -> None:
        pieces = sum(len(row.ids) for row in found.rows)
        self._pieces += pieces
        if number in self._closed:
            self._samples += pieces
            if pieces:
                detail = f"batch {batch} of epoch {number}, which was over"
                self._find("repeat", c, number, pieces, detail)
                self._epochs.append(EpochCount(number, True, pieces, pieces, 0, 0))
            return
        if self._left is not None and number > self._left:
            self._jumped.update(range(self._left + 1, min(number, self._left + _MAX_JUMP)))
            self._left = None
        self._settle_until(number)
        epoch = self._open.setdefault(number, self._begin(number))
        if found.is_batch:
            self._compare(epoch, batch, found)
        for row in found.again:
            epoch.got.append(row.ids)
            epoch.again += len(row.ids)
            epoch.samples += len(row.ids)
            self._samples += len(row.ids)
            if self._portions is not None:
                self._portions.add(joined([row]))
        if found.leaves:
            epoch.left_at, self._left = batch, number
            self._left_early.add(number)
            self._now.leave(number, batch)

    @property
    def _now(self) -> Due:
        assert self._due is not None
        return self._due

    def _begin(self, number: int) -> OpenEpoch:
        first = self._first_batch.get(number, 0)
        counted = Ordinals(whole=not first) if self._now.counts else None
        return OpenEpoch(number, next=first, ordinals=counted)

    def _compare(self, epoch: OpenEpoch, batch: int, found: Found) -> None:
        pieces = found.joined()
        ids = pieces.ids
        samples, as_due, expected = len(ids), False, None
        if batch < epoch.next:
            late = epoch.fill(batch)  # what was due is among the wanted already
            epoch.got.append(ids)
            epoch.again += 0 if late else len(ids)
        else:
            self._jump(epoch, batch)
            expected = self._now.batch(epoch.number, batch)
            epoch.next = batch + 1
            if epoch.ordinals is not None:
                epoch.ordinals.take(ids)
            if pieces.amounts is not None:  # the rows name pieces
                samples = (
                    self._now.samples(epoch.number, batch, batch + 1) if expected is None else len(expected)
                )
            as_due = expected is not None and found.is_as(expected)
            if not as_due and self._now.computes:
                epoch.moved.append(batch)
                epoch.got.append(ids)
                epoch.wanted += [] if expected is None else [expected.ids]
        epoch.left_out += pieces.left_out
        epoch.samples += samples
        self._samples += samples
        if self._portions is not None:
            self._portions.add(pieces, expected if as_due else None)

    def _jump(self, epoch: OpenEpoch, batch: int) -> None:
        """Batches from ``epoch.next`` on have no row (yet)."""
        if batch > epoch.next:
            gap = range(epoch.next, batch)
            epoch.gaps.append(gap)
            epoch.wanted += self._ids_of(epoch.number, gap)

    def _ids_of(self, number: int, batches: range) -> Iterator[Ids]:
        for batch in batches[:_MAX_JUMP]:
            expected = self._now.batch(number, batch)
            if expected is None:
                return
            yield expected.ids

    def _check_cursor(self, c: int, cursor: Cursor) -> None:
        """The cursor committed with the model and the rows committed with it say the same."""
        counted = cursor.consumed_samples - self._base
        untold = 0  # samples that short batches of packs had less than others; their rows name pieces
        if self._portions is not None and self._portions.packed and not self._now.computes:
            untold = (cursor.epoch - self._checked) * cursor.global_batch
        self._checked = cursor.epoch
        if 0 < self._samples - counted < untold:
            self._samples = counted
        if counted != self._samples:
            detail = f"the cursor counts {counted} samples, the ledger {self._samples}"
            self._find("cursor", c, cursor.epoch, abs(counted - self._samples), detail)
        at = self._open.get(cursor.epoch)
        beyond = 0 if at is None else max(at.next - cursor.batch, 0)
        if beyond or any(number > cursor.epoch for number in self._open):
            detail = f"the ledger is ahead of the cursor (epoch {cursor.epoch}, next batch {cursor.batch})"
            self._find("cursor", c, cursor.epoch, beyond, detail)

    # --- one epoch -----------------------------------------------------------------------------

    def _settle_until(self, number: int) -> None:
        """Judge every epoch before ``number``: those without a row were skipped whole.

        An epoch is judged when a later one has begun, not when the cursor says so: that it was left by
        declaration is recorded with the first batch after it.
        """
        if number <= self._next and not any(epoch < number for epoch in self._open):
            return
        for early in sorted(epoch for epoch in self._open if epoch < number):
            self._settle(early, None)
        pending = range(self._next, number)
        untouched = len(pending) - sum(1 for epoch in self._closed | self._jumped if epoch in pending)
        if untouched:
            whole = self._now.whole(self._next)
            lost = untouched * (1 if whole is None else self._now.samples(self._next, 0, whole))
            self._epochs_lost += lost
            detail = f"{untouched} epochs before epoch {number} have no batch at all"
            self._find("skip", None, None, lost, detail)
        self._next = max(self._next, number)

    def _settle(self, number: int, head: Cursor | None) -> None:
        """Judge an epoch when nothing more may come for it; ``head``: it is still open there."""
        epoch = self._open.pop(number, None) or self._begin(number)
        self._closed.add(number)
        abandoned = 0
        if head is not None:
            end = head.batch
        elif epoch.left_at is None:
            end = self._whole(epoch)
        else:
            end = epoch.left_at
            abandoned = 0 if self._now.carries else self._now.samples(number, end, self._whole(epoch))
        repeated, skipped = self._judge(epoch, end)
        self._epochs.append(
            EpochCount(number, head is None, epoch.samples, repeated, skipped, abandoned, epoch.left_out)
        )

    def _whole(self, epoch: OpenEpoch) -> int:
        whole = self._now.whole(epoch.number)
        return epoch.next if whole is None else whole

    def _judge(self, epoch: OpenEpoch, end: int) -> tuple[int, int]:
        missing = epoch.missing(end)
        surplus = self._now.samples(epoch.number, end, epoch.next)
        if self._now.computes:
            wanted = [*epoch.wanted, *self._ids_of(epoch.number, range(epoch.next, end))]
            ids, more = difference(epoch.got, wanted)
            repeated, skipped = int(more[more > 0].sum()) + surplus, int(-more[more < 0].sum())
            if self._portions is not None:
                self._portions.blame(ids, more)
        else:
            repeated = epoch.again + surplus
            skipped = sum(self._now.samples(epoch.number, gap.start, gap.stop) for gap in missing)
            if epoch.ordinals is not None:
                repeated += epoch.ordinals.repeated
                skipped = max(skipped, epoch.ordinals.skipped)
        if epoch.moved and not (self._now.computes and (repeated or skipped)):  # else that tells more
            detail = f"other samples in batches {listed(runs_of(epoch.moved))}"
            self._find("order", None, epoch.number, len(epoch.moved), detail)
        if repeated:
            self._find("repeat", None, epoch.number, repeated, f"{repeated} samples more often than due")
        if skipped:
            which = f"; missing batches {listed(missing)}" if missing else ""
            self._find("skip", None, epoch.number, skipped, f"{skipped} samples never consumed{which}")
        return repeated, skipped

    def _find(self, kind: str, c: int | None, epoch: int | None, count: int, detail: str) -> None:
        if len(self._findings) < MAX_FINDINGS:  # the first ones tell; a broken loader would fill the memory
            self._findings.append(Finding(kind, c, epoch, count, detail))
