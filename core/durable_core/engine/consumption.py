"""L4. What a lineage consumed, judged against what it had to consume. Pure arithmetic on ledger rows.

The proof does not trust the loader: the ids are those that came out of the dataset. An epoch has to
consume exactly the ids that its order places at the positions of its batches, from batch 0 to the
last batch (or to where the cursor of the head stands, for the epoch that is still open).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from durable_core.data.cursor import Cursor, Layout
from durable_core.data.order import Ids, Order, make_order
from durable_core.errors import UnsupportedError
from durable_core.format.ledger import Row, RowFlag

MAX_FINDINGS = 100
_MAX_JUMP = 100_000  # epochs


@dataclass(frozen=True)
class Segment:
    """What was consumed on the way to checkpoint ``c``: by steps in ``(after, through]``.

    ``rows``: role -> its rows, oldest first. ``cursor``: the position committed with ``c``; ``None``
    when the manifest that holds it is retired.
    """

    c: int
    after: int
    through: int
    rows: Mapping[str, Sequence[Row]]
    cursor: Cursor | None


@dataclass(frozen=True)
class Finding:
    """``kind``: repeat, skip, order, overlap, cursor. ``count``: samples (rows, for an overlap)."""

    kind: str
    c: int | None
    epoch: int | None
    count: int
    detail: str


@dataclass(frozen=True)
class EpochCount:
    """One epoch: ``closed`` when a later one was begun; ``abandoned`` samples were left by declaration."""

    epoch: int
    closed: bool
    samples: int
    repeated: int
    skipped: int
    abandoned: int


@dataclass(frozen=True)
class Consumption:
    """The verdict. ``ids_checked``: the order is one this code can compute, so every id was compared;
    otherwise batches were compared by their numbers only."""

    samples: int
    repeated: int
    skipped: int
    epochs: tuple[EpochCount, ...]
    findings: tuple[Finding, ...]
    ids_checked: bool

    @property
    def sound(self) -> bool:
        return not self.findings


def consume(segments: Sequence[Segment]) -> Consumption:
    """Walk the segments of one lineage, oldest first. Memory: the ids of one epoch at a time.

    A segment without a cursor is read with the description of the data in the next one that has it.
    """
    described = [segment.cursor for segment in segments]
    if segments and described[-1] is None:
        described[-1] = _after(segments)
    for i in range(len(described) - 2, -1, -1):
        described[i] = described[i] or described[i + 1]
    walk = _Walk()
    for segment, data in zip(segments, described, strict=True):
        assert data is not None
        walk.take(segment, data)
    return walk.finish()


def _after(segments: Sequence[Segment]) -> Cursor:
    """Where the rows end, for a lineage whose head has no cursor: nothing is known of its data."""
    rows = [row for segment in segments for part in segment.rows.values() for row in part]
    epoch, batch = max(((row.epoch, row.batch + 1) for row in rows), default=(0, 0))
    return Cursor("unknown", "unknown", 0, epoch, batch, None, 0, "drop", sum(len(row.ids) for row in rows))


def role_order(role: str) -> tuple[str, int, str]:
    """Sorts ``dp2`` before ``dp10``, as shares of a batch are dealt."""
    match = re.fullmatch(r"(.*?)(\d+)", role)
    return (match[1], int(match[2]), role) if match else (role, -1, role)


@dataclass
class _Epoch:
    """Batches of one epoch as found: batch -> its ids, part by part in role order."""

    number: int
    batches: dict[int, list[Ids]] = field(default_factory=dict)
    parts: set[tuple[int, str]] = field(default_factory=set)
    again: list[Ids] = field(default_factory=list)
    left_at: int | None = None

    def add(self, role: str, row: Row) -> None:
        if (row.batch, role) in self.parts:
            self.again.append(row.ids)
            return
        self.parts.add((row.batch, role))
        self.batches.setdefault(row.batch, []).append(row.ids)


class _Walk:
    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._epochs: list[EpochCount] = []
        self._open: dict[int, _Epoch] = {}
        self._closed: set[int] = set()
        self._next = 0  # the first epoch not settled yet
        self._first_batch: dict[int, int] = {}  # where an epoch begins on a lineage that starts inside it
        self._left: int | None = None  # the epoch last left by declaration
        self._jumped: set[int] = set()  # epochs between one left by declaration and the one begun next
        self._cursor: Cursor | None = None
        self._order: Order | None = None
        self._samples = 0
        self._epochs_lost = 0  # samples of epochs without any row
        self._base = 0  # samples consumed before this lineage begins
        self._ids_checked = True

    def take(self, segment: Segment, data: Cursor) -> None:
        start = segment.cursor
        if self._cursor is None and start is not None and not any(segment.rows.values()):
            self._next, self._base = start.epoch, start.consumed_samples
            self._first_batch = {start.epoch: start.batch}
        self._describe(data)
        for role in sorted(segment.rows, key=role_order):
            for row in segment.rows[role]:
                self._row(segment, role, row)
        # An epoch is judged when a later one has begun, not when the cursor says so: that it was left by
        # declaration is recorded with the first batch after it.
        self._settle_until(max(self._open, default=0), data)
        if segment.cursor is not None:
            self._check_cursor(segment.c, segment.cursor)

    def finish(self) -> Consumption:
        if self._cursor is not None:
            self._settle_until(self._cursor.epoch, self._cursor)
            for number in sorted({*self._open, *([self._cursor.epoch] if self._cursor.batch else [])}):
                self._settle(number, self._cursor, closed=False)
        return Consumption(
            samples=self._samples,
            repeated=sum(epoch.repeated for epoch in self._epochs),
            skipped=sum(epoch.skipped for epoch in self._epochs) + self._epochs_lost,
            epochs=tuple(self._epochs),
            findings=tuple(self._findings),
            ids_checked=self._ids_checked and self._samples > 0,
        )

    # --- one segment ---------------------------------------------------------------------------

    def _row(self, segment: Segment, role: str, row: Row) -> None:
        if not segment.after < row.step <= segment.through:
            detail = (
                f"{role}: step {row.step} in the segment of steps {segment.after + 1} to {segment.through}"
            )
            self._find("overlap", segment.c, row.epoch, 1, detail)
        self._samples += len(row.ids)
        if row.epoch in self._closed:
            detail = f"{role}: batch {row.batch} of epoch {row.epoch}, which was over"
            self._find("repeat", segment.c, row.epoch, len(row.ids), detail)
            self._epochs.append(EpochCount(row.epoch, True, len(row.ids), len(row.ids), 0, 0))
            return
        if self._left is not None and row.epoch > self._left:
            self._jumped.update(range(self._left + 1, min(row.epoch, self._left + _MAX_JUMP)))
            self._left = None
        epoch = self._open.setdefault(row.epoch, _Epoch(row.epoch))
        if row.flags & RowFlag.ABANDONED:
            epoch.left_at, self._left = row.batch, row.epoch
        else:
            epoch.add(role, row)

    def _check_cursor(self, c: int, cursor: Cursor) -> None:
        """The cursor committed with the model and the rows committed with it say the same."""
        counted = cursor.consumed_samples - self._base
        if counted != self._samples:
            detail = f"the cursor counts {counted} samples, the ledger {self._samples}"
            count = abs(counted - self._samples)
            self._find("cursor", c, cursor.epoch, count, detail)
        beyond = [
            b for e in self._open.values() if e.number == cursor.epoch for b in e.batches if b >= cursor.batch
        ]
        if beyond or any(number > cursor.epoch for number in self._open):
            detail = f"the ledger is ahead of the cursor (epoch {cursor.epoch}, next batch {cursor.batch})"
            self._find("cursor", c, cursor.epoch, len(beyond), detail)

    def _describe(self, cursor: Cursor) -> None:
        if self._cursor is None or not self._same_data(cursor):
            self._order = _order_of(cursor)
            self._ids_checked = self._ids_checked and self._order is not None
        self._cursor = cursor

    def _same_data(self, cursor: Cursor) -> bool:
        names = ("dataset_id", "order", "seed", "size", "global_batch", "remainder")
        return all(getattr(self._cursor, name) == getattr(cursor, name) for name in names)

    # --- one epoch -----------------------------------------------------------------------------

    def _settle_until(self, number: int, cursor: Cursor) -> None:
        """Judge every epoch before ``number``: those without a row were skipped whole."""
        for early in sorted(epoch for epoch in self._open if epoch < number):
            self._settle(early, cursor, closed=True)
        pending = range(self._next, number)
        untouched = len(pending) - sum(1 for epoch in self._closed | self._jumped if epoch in pending)
        if untouched:
            layout = _layout_of(cursor)
            lost = untouched * (_samples_between(layout, 0, layout.batches) if layout else 1)
            self._epochs_lost += lost
            self._find(
                "skip", None, None, lost, f"{untouched} epochs before epoch {number} have no batch at all"
            )
        self._next = max(self._next, number)

    def _settle(self, number: int, cursor: Cursor, *, closed: bool) -> None:
        """Judge an epoch when nothing more may come for it."""
        epoch = self._open.pop(number, _Epoch(number))
        self._closed.add(number)
        layout = _layout_of(cursor)
        whole = layout.batches if layout else max(epoch.batches, default=-1) + 1
        end = cursor.batch if not closed else whole
        abandoned = 0
        if closed and epoch.left_at is not None:
            end = min(end, epoch.left_at)
            abandoned = _samples_between(layout, end, whole)
        repeated, skipped = self._judge(epoch, end, layout, cursor)
        found = [ids for parts in epoch.batches.values() for ids in parts] + epoch.again
        self._epochs.append(EpochCount(number, closed, sum(map(len, found)), repeated, skipped, abandoned))

    def _judge(self, epoch: _Epoch, end: int, layout: Layout | None, cursor: Cursor) -> tuple[int, int]:
        due = range(self._first_batch.get(epoch.number, 0), end)
        missing = [batch for batch in due if batch not in epoch.batches]
        if layout is None or self._order is None:
            repeated = sum(map(len, epoch.again))
            skipped = sum(_samples_between(layout, b, b + 1) or cursor.global_batch or 1 for b in missing)
        else:
            expected = [_expected(self._order, layout, epoch.number, batch) for batch in due]
            actual = [np.concatenate(epoch.batches[batch]) for batch in sorted(epoch.batches)]
            repeated, skipped = _difference([*actual, *epoch.again], expected)
            if not repeated and not skipped:
                self._check_sequence(epoch, actual, expected)
        if repeated:
            self._find("repeat", None, epoch.number, repeated, f"{repeated} samples more often than due")
        if skipped:
            which = f"; missing batches {_ranges(missing)}" if missing else ""
            self._find("skip", None, epoch.number, skipped, f"{skipped} samples never consumed{which}")
        return repeated, skipped

    def _check_sequence(self, epoch: _Epoch, actual: list[Ids], expected: list[Ids]) -> None:
        pairs = zip(actual, expected, strict=len(actual) == len(expected))
        moved = [i for i, (got, due) in enumerate(pairs) if not np.array_equal(got, due)]
        if moved:
            self._find("order", None, epoch.number, len(moved), f"other samples in batches {_ranges(moved)}")

    def _find(self, kind: str, c: int | None, epoch: int | None, count: int, detail: str) -> None:
        if len(self._findings) < MAX_FINDINGS:  # the first ones tell; a broken loader would fill the memory
            self._findings.append(Finding(kind, c, epoch, count, detail))


# --- arithmetic ------------------------------------------------------------------------------


def _order_of(cursor: Cursor) -> Order | None:
    if cursor.size is None or not cursor.global_batch:
        return None
    try:
        return make_order(cursor.order, cursor.size, dataset_id=cursor.dataset_id, seed=cursor.seed)
    except UnsupportedError:
        return None  # a custom sampler's: only the batch numbers can be checked


def _layout_of(cursor: Cursor) -> Layout | None:
    if cursor.size is None or not cursor.global_batch:
        return None
    return Layout(cursor.size, cursor.global_batch, cursor.remainder)


def _samples_between(layout: Layout | None, begin: int, end: int) -> int:
    """Samples of batches [begin, end)."""
    if layout is None or begin >= end:
        return 0
    return layout.interval(end - 1)[1] - layout.interval(begin)[0]


def _expected(order: Order, layout: Layout, epoch: int, batch: int) -> Ids:
    start, stop = layout.interval(batch)
    ids = order.ids(epoch, start, min(stop, layout.size))
    if stop <= layout.size:
        return ids
    return np.concatenate([ids, order.ids(epoch, 0, stop - layout.size)])


def _difference(actual: Sequence[Ids], expected: Sequence[Ids]) -> tuple[int, int]:
    """How many ids came more often than expected, and how many less often, as multisets."""
    empty = np.empty(0, np.int64)
    got, got_count = np.unique(np.concatenate([empty, *actual]), return_counts=True)
    due, due_count = np.unique(np.concatenate([empty, *expected]), return_counts=True)
    every = np.union1d(got, due)
    surplus = np.zeros(len(every), np.int64)
    surplus[np.searchsorted(every, got)] += got_count
    surplus[np.searchsorted(every, due)] -= due_count
    return int(surplus[surplus > 0].sum()), int(-surplus[surplus < 0].sum())


def _ranges(numbers: Sequence[int]) -> str:
    """``[3, 4, 5, 9]`` -> ``3-5, 9``; the first few."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:5]]
    return ", ".join(shown) + (", …" if len(runs) > 5 else "")
