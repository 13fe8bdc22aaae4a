"""L4. Batches as the rows of a lineage tell them, and an epoch while it may still get more of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from durable_core.data.order import Ids
from durable_core.data.sequence import Batch
from durable_core.engine.audit.drawn import LEFT_OUT, NONE
from durable_core.engine.audit.due import amounts_of
from durable_core.engine.audit.ordinals import Ordinals
from durable_core.format.ledger import Row, RowFlag


@dataclass(frozen=True)
class Pieces:
    """Of one batch: ``ids``, the last ``left_out`` of them by declaration; beside them as in ``Row``.

    ``lengths`` of what was left out are ``LEFT_OUT``. None where a row does not say.
    """

    ids: Ids
    left_out: int = 0
    amounts: Ids | None = None
    epochs: Ids | None = None
    lengths: Ids | None = None


def joined(parts: Sequence[Row], left_out: Sequence[Row] = ()) -> Pieces:
    """The pieces of several rows."""
    rows = [*parts, *left_out]
    ids = rows[0].ids if len(rows) == 1 else np.concatenate([NONE, *(row.ids for row in rows)])
    lost, epochs = sum(len(row.ids) for row in left_out), column([row.epochs for row in rows])
    if all(row.amounts is None for row in parts):
        return Pieces(ids, lost, epochs=epochs)
    given = [np.zeros(len(row.ids), np.int64) if row.amounts is None else row.amounts for row in rows]
    lengths = column([row.lengths for row in parts])
    if lengths is not None:
        lengths = np.append(lengths, np.full(lost, LEFT_OUT))
    return Pieces(ids, lost, np.concatenate(given), epochs, lengths)


def column(parts: Sequence[Ids | None]) -> Ids | None:
    """All of them one after the other; None if any is not there."""
    there = [part for part in parts if part is not None]
    return np.concatenate([NONE, *there]) if len(there) == len(parts) else None


@dataclass
class Found:
    """One batch as its rows tell it, in role order. ``again``: of a role that had given its part."""

    parts: list[Row] = field(default_factory=list)
    again: list[Row] = field(default_factory=list)
    left_out: list[Row] = field(default_factory=list)
    leaves: bool = False
    roles: set[str] = field(default_factory=set)

    def add(self, role: str, row: Row) -> None:
        if row.flags & RowFlag.ABANDONED:
            self.leaves = True
        elif row.flags & RowFlag.SKIPPED:
            self.left_out.append(row)
        elif role in self.roles:
            self.again.append(row)
        else:
            self.roles.add(role)
            self.parts.append(row)

    @property
    def rows(self) -> list[Row]:
        return [*self.parts, *self.left_out, *self.again]

    @property
    def is_batch(self) -> bool:
        return bool(self.parts or self.left_out)

    @property
    def ids_left_out(self) -> Ids:
        return np.concatenate([NONE, *(row.ids for row in self.left_out)])

    def joined(self) -> Pieces:
        """All that came, and what was left out last."""
        return joined(self.parts, self.left_out)

    def is_as(self, expected: Batch) -> bool:
        """The ids in order, and tokens and epoch of each; what was left out is missing in its place."""
        delivered = np.concatenate([NONE, *(row.ids for row in self.parts)])
        kept = np.ones(len(expected.ids), bool)
        for i in self.ids_left_out.tolist():
            at = np.flatnonzero((expected.ids == i) & kept)
            kept[at[:1]] = False
            if not len(at):
                return False
        if not np.array_equal(delivered, expected.ids[kept]):
            return False
        tokens = amounts_of(expected)
        amounts = column([row.amounts for row in self.parts])
        epochs = column([row.epochs for row in self.parts])
        if epochs is not None and not np.array_equal(epochs, expected.epochs[kept]):
            return False
        return tokens is None or amounts is None or np.array_equal(amounts, tokens[kept])


@dataclass
class OpenEpoch:
    """An epoch that may still get batches. ``next``: all before it came, but those in ``gaps``.

    ``got`` and ``wanted`` are the ids of batches in which the two differ; ``ordinals``: of a stream."""

    number: int
    next: int = 0
    left_at: int | None = None
    gaps: list[range] = field(default_factory=list)
    got: list[Ids] = field(default_factory=list)
    wanted: list[Ids] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    samples: int = 0
    again: int = 0
    left_out: int = 0
    ordinals: Ordinals | None = None

    def missing(self, end: int) -> list[range]:
        """Batches before ``end`` without a row."""
        known = [range(gap.start, min(gap.stop, end)) for gap in self.gaps if gap.start < end]
        return [*known, range(self.next, end)] if self.next < end else known

    def renumber(self, number: Callable[[int, int], int]) -> None:
        """Batches are of another size from here on; ``number``: (epoch, batch) -> its number among those."""
        self.next = number(self.number, self.next)
        self.left_at = None if self.left_at is None else number(self.number, self.left_at)
        gaps = [(number(self.number, gap.start), number(self.number, gap.stop)) for gap in self.gaps]
        self.gaps = [range(min(start, stop - 1), stop) for start, stop in gaps]  # of a part: the whole batch

    def fill(self, batch: int) -> bool:
        """A batch came late. False: it had come before."""
        for i, gap in enumerate(self.gaps):
            if batch in gap:
                rest = (range(gap.start, batch), range(batch + 1, gap.stop))
                self.gaps[i : i + 1] = [part for part in rest if part]
                return True
        return False


def difference(actual: Sequence[Ids], expected: Sequence[Ids]) -> tuple[Ids, Ids]:
    """(ids, how many times more often than expected each came; less often, if negative)."""
    got, got_count = np.unique(np.concatenate([NONE, *actual]), return_counts=True)
    due, due_count = np.unique(np.concatenate([NONE, *expected]), return_counts=True)
    every = np.union1d(got, due)
    surplus = np.zeros(len(every), np.int64)
    surplus[np.searchsorted(every, got)] += got_count
    surplus[np.searchsorted(every, due)] -= due_count
    return every[surplus != 0], surplus[surplus != 0]


def runs_of(numbers: Sequence[int]) -> list[range]:
    """``[3, 4, 5, 9]`` -> 3 to 5 and 9, as ranges."""
    runs: list[range] = []
    for number in numbers:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs


def listed(runs: Sequence[range]) -> str:
    """``3-5, 9``; the first few."""
    shown = [str(run.start) if len(run) == 1 else f"{run.start}-{run.stop - 1}" for run in runs[:5]]
    return ", ".join(shown) + (", …" if len(runs) > 5 else "")
