"""L3. The ledger of acknowledged batches: the truth about what was trained on.

Frameworks fetch ahead, so a loader's own position proves nothing. A batch handed over joins a queue
with the ids that came out of the dataset; only when the trainer acknowledges it (its step is
committed) does a row appear and the cursor advance.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from durable_core.data.cursor import Cursor
from durable_core.data.order import Ids
from durable_core.data.physical.metrics import Metrics
from durable_core.errors import OrderError, UsageError
from durable_core.format.ledger import Row, RowFlag

# What is remembered for a caller that never acknowledges any batch: so many, and so many bytes of them if
# those are more than a few.
MAX_KEPT, MIN_KEPT, MAX_KEPT_BYTES = 1 << 16, 64, 1 << 28


LeftOut = Mapping[str, tuple[int, str]]
"""Object -> how many of its records were left out, and why."""


@dataclass(slots=True)  # one for each batch, and freezing it would double its price
class Tag:
    """What travels beside a batch: its place, the ids fetched for it, and what is needed to go on after it.

    ``samples`` counts over all replicas, as planned: also those left out (``skipped``) by declaration;
    ``last`` says the epoch ends with it; ``state`` is the source's own state after it, for sources that
    have one. ``amounts``, ``epochs`` and ``lengths``, for each id, and ``skipped_epochs``: see ``Row``.
    ``left_out``: by object, for a warning.
    ``seconds`` it took to fetch, in all and of a CPU (0: not known), and what was ``measured`` meanwhile.
    """

    epoch: int
    batch: int
    ids: Ids
    samples: int = 0
    last: bool = False
    state: Any = None
    amounts: Ids | None = None
    flags: RowFlag = RowFlag.NONE
    skipped: Ids | None = None
    seconds: tuple[float, float] = (0.0, 0.0)
    measured: Metrics | None = None
    epochs: Ids | None = None
    lengths: Ids | None = None
    skipped_epochs: Ids | None = None
    left_out: LeftOut | None = None


class Ledger:
    """Queue of batches handed over, rows of batches acknowledged, and the cursor between the two.

    ``carries``: the source's state goes on over an epoch's end; if not, every epoch begins with None.
    """

    def __init__(self, cursor: Cursor, state: Any = None, *, carries: bool = False) -> None:
        self._cursor = cursor
        self._carries = carries
        self._consumed = cursor.consumed_samples
        self._state = state
        self._handed = self._due = self._floor = (cursor.epoch, cursor.batch)
        self._outstanding: deque[Tag] = deque()
        self._passed: list[Tag] = []
        self._rows: list[Row] = []
        self._abandoned: tuple[int, int] | None = None
        self._leaving = False
        self._acknowledged = 0
        self._last_step: int | None = None
        self._of_step: int | None = 0  # batches of it; None when an epoch ended within it
        self._claim_told = False
        self._given, self._kept = 0, MAX_KEPT
        self._forgotten = 0

    @property
    def cursor(self) -> Cursor:
        """The position a restart would go on from: after everything acknowledged."""
        epoch, batch = self.position
        return dataclasses.replace(self._cursor, epoch=epoch, batch=batch, consumed_samples=self._consumed)

    @property
    def state(self) -> Any:
        """The source's own state at ``cursor``. At the beginning of an epoch None, unless it carries."""
        return self._state if self._carries or self._due >= self._floor else None

    @property
    def opening(self) -> Any:
        """The source's own state where the pass that opens now begins.

        That is after all that was handed over; but after all that was acknowledged, if the epoch was
        left early: what was only handed over then was never trained, and is not used up.
        """
        if self._leaving or not self._outstanding:
            return self.state
        return self._state_after(self._outstanding[-1])

    @property
    def outstanding(self) -> int:
        """Batches handed over and not yet acknowledged."""
        return len(self._outstanding)

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, batch) of the cursor."""
        return max(self._due, self._floor)

    def rewind(self, epoch: int, batch: int) -> None:
        """The pass begins again there; what it handed over, none of it acknowledged, is forgotten."""
        keep = (tag for tag in self._outstanding if (tag.epoch, tag.batch) < (epoch, batch))
        self._outstanding = deque(keep)
        self._passed.clear()
        self._handed = (epoch, batch)

    def leave(self, epoch: int) -> None:
        """A new pass begins at ``epoch``; the one before was left early.

        Its unacknowledged batches stay acknowledgeable until the new pass hands one over, or ends.
        """
        self._floor = self._handed = (epoch, 0)
        self._leaving = True

    def follow(self, epoch: int) -> None:
        """A new pass begins at ``epoch``; the one before ran to its end."""
        self._handed = (epoch, 0)

    def end_pass(self) -> None:
        """The source has no more batches: the newest batch was the last of its epoch."""
        self._settle_departure()
        epoch, batch = self._handed
        if self._outstanding and self._outstanding[-1].epoch == epoch:
            self._outstanding[-1] = dataclasses.replace(self._outstanding[-1], last=True)
        elif self._due == (epoch, 0):
            self._pass_over(epoch + 1)
        elif self._due == (epoch, batch):
            self._due = (epoch + 1, 0)
            self._state = self._state if self._carries else None

    def hand_over(self, tag: Tag) -> None:
        """Queue a batch. Raises ``OrderError`` if it is not the next one."""
        self._check_next(tag)
        self._settle_departure()
        self._outstanding.append(tag)
        self._given += 1
        if not self._acknowledged:
            self._forget_oldest(tag)
        self._handed = _after(tag)

    def pass_by(self, tag: Tag) -> None:
        """A batch before the first one that is handed over, and left out by declaration: it is used up, as
        its rows say, when that one is acknowledged. Raises ``OrderError`` if it is not the next one."""
        self._check_next(tag)
        self._passed.append(tag)
        self._handed = _after(tag)

    def _check_next(self, tag: Tag) -> None:
        if (tag.epoch, tag.batch) != self._handed:
            raise OrderError(
                f"the loader delivered epoch {tag.epoch} batch {tag.batch} where epoch {self._handed[0]} "
                f"batch {self._handed[1]} was due: a batch was lost or repeated",
                hint="restart from the last checkpoint; a fetch that raised cannot be skipped over",
            )

    def _forget_oldest(self, newest: Tag) -> None:
        if not self._given & (self._given - 1):  # measured at powers of two, which costs nothing
            self._kept = min(MAX_KEPT, max(MIN_KEPT, MAX_KEPT_BYTES // _size(newest)))
        while len(self._outstanding) > self._kept:
            self._outstanding.popleft()
            self._forgotten += 1

    def acknowledge(self, n: int, step: int, no_update: bool) -> None:
        """The oldest ``n`` batches handed over were consumed by ``step``. All or none are recorded.

        Raises ``OrderError`` for more than were handed over, or out of order.
        """
        if n < 1 or step < 0:
            raise UsageError(f"acknowledge needs n >= 1 and step >= 0, not n={n}, step={step}")
        if self._forgotten:
            raise OrderError(
                f"the first {self._forgotten} batches were handed over and never acknowledged",
                hint=f"acknowledge at least every {self._kept} batches",
            )
        if n > len(self._outstanding):
            raise OrderError(
                f"{n} batches acknowledged at step {step}, of {len(self._outstanding)} handed over",
                hint="acknowledge each batch once, and before the epoch is left",
            )
        if step != self._last_step:
            self._check_claim()
            self._of_step = 0
        elif not self._due[1]:
            self._of_step = None
        for _ in range(n):
            self._acknowledge_oldest(step, no_update)
        if self._of_step is not None:
            self._of_step += n

    def _check_claim(self) -> None:
        """Warn once when a step has had other than ``accumulate`` batches, and the epoch went on after it:
        a restart with batches of another size would keep together what no step has."""
        claimed, step = self._cursor.accumulate, self._last_step
        if step is None or claimed == 1 or self._claim_told or self._of_step in (None, claimed):
            return
        if self._due[1] and self._outstanding[0].epoch == self._due[0]:
            self._claim_told = True
            warnings.warn(
                f"data: step {step} had {self._of_step} batches, and the loader was told "
                f"accumulate={claimed}: a restart with another batch_size x replicas would make other steps",
                stacklevel=4,
            )

    def _acknowledge_oldest(self, step: int, no_update: bool) -> None:
        for passed in self._passed:
            self._use_up(passed, step, RowFlag.SKIPPED)
        self._passed.clear()
        tag = self._outstanding[0]
        if tag.batch == self._due[1] == 0 and tag.epoch > self._due[0]:
            self._pass_over(tag.epoch)  # that none was lost was seen when it was handed over
        if (tag.epoch, tag.batch) != self._due:
            raise OrderError(
                f"epoch {tag.epoch} batch {tag.batch} acknowledged where epoch {self._due[0]} "
                f"batch {self._due[1]} was due"
            )
        self._outstanding.popleft()
        if self._abandoned is not None:
            self._add_departure(step)
        self._last_step = step
        self._use_up(tag, step, RowFlag.NO_UPDATE if no_update else RowFlag.NONE)
        self._acknowledged += 1

    def _use_up(self, tag: Tag, step: int, flags: RowFlag) -> None:
        row = Row(
            step, tag.epoch, tag.batch, tag.ids, tag.flags | flags, tag.amounts, tag.epochs, tag.lengths
        )
        self._rows.append(row)
        if tag.skipped is not None and len(tag.skipped):
            flags |= RowFlag.SKIPPED
            row = Row(step, tag.epoch, tag.batch, tag.skipped, flags, epochs=tag.skipped_epochs)
            self._rows.append(row)
        self._due = _after(tag)
        self._state = self._state_after(tag)
        self._consumed += tag.samples

    def _state_after(self, tag: Tag) -> Any:
        return tag.state if self._carries or not tag.last else None

    def _settle_departure(self) -> None:
        if self._leaving:
            self._leaving = False
            self._outstanding.clear()
            if self._due < self._floor:
                self._abandoned, self._due = self._due, self._floor
                self._state = self._state if self._carries else None

    def _pass_over(self, epoch: int) -> None:
        """The epochs before ``epoch`` have no batch at all. Nothing else would say why, so a row has to."""
        if self._abandoned is None:
            self._abandoned = self._due
        self._due = (epoch, 0)

    def _declare_departure(self) -> None:
        """An epoch was left and no batch has followed yet; at the end of a run none will.

        A save taken now says that the next epoch comes next, so its ledger has to say why.
        """
        if self._leaving and not self._outstanding:
            self._settle_departure()
        if self._abandoned is not None and self._last_step is not None:
            self._add_departure(self._last_step)

    def _add_departure(self, step: int) -> None:
        assert self._abandoned is not None
        epoch, batch = self._abandoned
        self._rows.append(Row(step, epoch, batch, np.empty(0, np.int64), RowFlag.ABANDONED))
        self._abandoned = None

    # --- rows ---------------------------------------------------------------------------------

    def rows_since(self, step: int) -> tuple[Row, ...]:
        """Rows of steps after ``step``, oldest first; nothing is removed."""
        self._declare_departure()
        return tuple(row for row in self._rows if row.step > step)

    def forget_rows(self, through_step: int) -> None:
        """Drop rows of steps up to ``through_step``, once a commit has made them durable."""
        self._rows = [row for row in self._rows if row.step > through_step]

    def drain_rows(self) -> tuple[Row, ...]:
        """All rows, oldest first, which are then forgotten here."""
        self._declare_departure()
        rows, self._rows = tuple(self._rows), []
        return rows


def _after(tag: Tag) -> tuple[int, int]:
    return (tag.epoch + 1, 0) if tag.last else (tag.epoch, tag.batch + 1)


def _size(value: Any) -> int:
    """About how many bytes of memory it holds: what is shared with others is counted as well."""
    size = sys.getsizeof(value)
    if isinstance(value, Mapping):
        return size + sum(_size(key) + _size(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, deque)):
        return size + sum(_size(item) for item in value)
    if isinstance(value, Tag):
        return size + _size((value.ids, value.amounts, value.epochs, value.lengths, value.state))
    return size + int(getattr(value, "nbytes", 0))  # arrays and tensors
