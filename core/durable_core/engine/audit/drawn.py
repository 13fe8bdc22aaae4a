"""L4. How often each record of one source came, in each epoch of it: at most once, and whole.

It needs the ledger alone: each piece says which epoch of its source it was drawn in, how many of its tokens
came, and how many its record has. A record that was not packed is one of one. With replacement each draw
has its ordinal, and comes once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from durable_core.data.order import Ids
from durable_core.data.standing import Standing

NONE: Ids = np.empty(0, np.int64)
LEFT_OUT = 1 << 62
"""The length of a record that was left out by declaration: nothing of it is missing."""
_UNKNOWN = 0
_SHOWN = 5


@dataclass(frozen=True)
class Fault:
    """``kind``: repeat or skip. ``epoch`` of the source; None with replacement, where ``ids`` are ordinals.
    ``amount``: how much is missing at least, in tokens (in records, where those are not packed)."""

    kind: str
    epoch: int | None
    ids: Ids
    detail: str
    amount: int = 0

    def of(self, source: str) -> str:
        shown = ", ".join(map(str, self.ids[:_SHOWN].tolist())) + (", …" if len(self.ids) > _SHOWN else "")
        if self.epoch is None:
            return f"{source}: {len(self.ids)} draws {self.detail}: number {shown}"
        return f"{source}: {len(self.ids)} records of its epoch {self.epoch} {self.detail}: {shown}"


class _Tally:
    """Of one epoch: sorted ``ids``, what came of each (``got``) and is due of it (``whole``).

    What comes is merged in when it is as much as what is there, or is asked for: so that it costs n log n.
    """

    def __init__(self) -> None:
        self.ids, self.got, self.whole = NONE, NONE, NONE
        self.waiting: list[tuple[Ids, Ids, Ids]] = []
        self.weight = 0  # ids that wait

    def add(self, ids: Ids, got: Ids, whole: Ids) -> None:
        self.waiting.append((ids, got, whole))
        self.weight += len(ids)
        if self.weight > len(self.ids):
            self.merge()

    def merge(self) -> None:
        if not self.waiting:
            return
        parts = [(self.ids, self.got, self.whole), *self.waiting]
        ids, got, whole = (np.concatenate(column) for column in zip(*parts, strict=True))
        self.ids, where = np.unique(ids, return_inverse=True)
        self.got = np.zeros(len(self.ids), np.int64)
        self.whole = np.zeros(len(self.ids), np.int64)
        np.add.at(self.got, where, got)
        np.maximum.at(self.whole, where, whole)
        self.waiting, self.weight = [], 0

    def beyond(self) -> Ids:
        """Ids of which more came than there is."""
        self.merge()
        found: Ids = self.ids[(self.got > self.whole) & (self.whole != _UNKNOWN)]
        return found

    def short(self) -> Ids:
        """Ids of which a part is missing."""
        self.merge()
        found: Ids = self.ids[(self.got < self.whole) & (self.whole != LEFT_OUT)]
        return found


class Drawn:
    """What came of one source. An epoch that is complete is forgotten, but for its faults.

    ``size``: its records. ``once``: drawn without replacement.
    """

    def __init__(self, size: int, *, once: bool) -> None:
        self._size, self._once = size, once
        self._open: dict[int, _Tally] = {}
        self._over: set[int] = set()
        self._before = 0  # ordinals that are complete, with replacement
        self._faults: list[Fault] = []
        self._settled = 0

    @property
    def epochs(self) -> int:
        """Complete ones."""
        return len(self._over)

    @property
    def draws(self) -> int:
        """Records, each time they were drawn."""
        for tally in self._open.values():
            tally.merge()
        return self._settled + sum(len(tally.ids) for tally in self._open.values())

    def take(self, epochs: Ids, ids: Ids, amounts: Ids | None, lengths: Ids | None) -> None:
        """Pieces: ``amounts`` of their tokens came, of ``lengths`` (``LEFT_OUT``: by declaration none)."""
        ones = np.ones(len(ids), np.int64)
        if amounts is None or lengths is None:
            amounts = lengths = ones
        amounts = np.where(lengths == 0, 1, amounts)  # a record without tokens comes by its place alone
        lengths = np.maximum(lengths, 1)
        if not self._once:
            self._take_of(0, epochs, amounts, lengths)
            return
        for epoch in np.unique(epochs).tolist():
            mine = epochs == epoch
            self._take_of(epoch, ids[mine], amounts[mine], lengths[mine])

    def _take_of(self, epoch: int, keys: Ids, amounts: Ids, lengths: Ids) -> None:
        late = keys < self._before if not self._once else np.full(len(keys), epoch in self._over)
        if late.any():
            self._again(epoch, np.unique(keys[late]))
            keys, amounts, lengths = keys[~late], amounts[~late], lengths[~late]
        if not len(keys):
            return
        tally = self._open.setdefault(epoch, _Tally())
        tally.add(keys, amounts, lengths)
        if self._once and len(tally.ids) + tally.weight >= self._size:
            tally.merge()
            if len(tally.ids) >= self._size and not len(tally.short()):
                self._settle(epoch)
        elif not self._once and not tally.waiting:
            self._forget_ordinals(tally)

    def _settle(self, epoch: int) -> None:
        tally = self._open.pop(epoch)
        self._over.add(epoch)
        self._settled += len(tally.ids)
        beyond = tally.beyond()
        if len(beyond):
            self._again(epoch, beyond)

    def _forget_ordinals(self, tally: _Tally) -> None:
        """Those before the first that is missing, or not as it should be."""
        wrong = tally.ids != self._before + np.arange(len(tally.ids))
        wrong |= (tally.got != tally.whole) & (tally.whole != LEFT_OUT)
        count = int(np.argmax(wrong)) if wrong.any() else len(tally.ids)
        tally.ids, tally.got, tally.whole = tally.ids[count:], tally.got[count:], tally.whole[count:]
        self._before += count
        self._settled += count

    def _again(self, epoch: int, keys: Ids) -> None:
        self._faults.append(Fault("repeat", epoch if self._once else None, keys, "came again"))

    # --- the verdict -------------------------------------------------------------------------

    def judge(self, standing: Standing | None) -> Iterator[Fault]:
        """What is wrong, ``standing`` being where the source stands after all that was taken.

        Without it only repeats can be told. To be called once.
        """
        if standing is not None:
            self._wait(standing)
            standing = standing if standing.exact else self._at_least(standing)
        yield from self._faults
        for epoch, tally in sorted(self._open.items()):
            beyond = tally.beyond()
            if len(beyond):
                yield Fault("repeat", epoch if self._once else None, beyond, "came again")
        if standing is None:
            return
        for epoch in range(standing.epoch + 1) if self._once else [0]:
            if epoch not in self._over:
                yield from self._missing(epoch, standing)

    def _wait(self, standing: Standing) -> None:
        """What was drawn and waits for its pack counts as come."""
        ids, epochs, begins, ends = standing.pending.T
        for epoch in np.unique(epochs).tolist() if self._once else [0]:
            mine = epochs == epoch if self._once else np.ones(len(ids), bool)
            keys = ids[mine] if self._once else epochs[mine]
            unknown = np.full(len(keys), _UNKNOWN, np.int64)
            if len(keys):
                self._open.setdefault(epoch, _Tally()).add(keys, (ends - begins)[mine], unknown)

    def _at_least(self, standing: Standing) -> Standing:
        """Records are drawn in their order, and packed as they are: before the last one, all were."""
        epoch = max([standing.epoch, *self._open, *self._over]) if self._once else 0
        drawn = standing.drawn if epoch == standing.epoch else 0
        tally = self._open.get(epoch)
        if epoch in self._over:
            drawn = self._size
        elif tally is not None:
            tally.merge()
            if not self._once:
                drawn = max([drawn, *(tally.ids[-1:] + 1).tolist()])
            elif standing.order is not None:
                came = np.isin(standing.order.ids(epoch, 0, self._size), tally.ids)
                drawn = max([drawn, *(np.flatnonzero(came)[-1:] + 1).tolist()])
        return replace(standing, epoch=epoch, drawn=drawn)

    def _missing(self, epoch: int, standing: Standing) -> Iterator[Fault]:
        tally = self._open.get(epoch, _Tally())
        named = epoch if self._once else None
        short = tally.short()
        if len(short):
            where = np.searchsorted(tally.ids, short)
            amount = int((tally.whole - tally.got)[where].sum())
            yield Fault("skip", named, short, "came with fewer tokens than they have", amount)
        if not self._once:
            due: Ids | None = np.arange(self._before, standing.drawn)
        elif epoch < standing.epoch:
            due = np.arange(self._size)
        else:
            due = standing.due()
        missing = NONE if due is None else np.setdiff1d(due, tally.ids)
        if len(missing):
            yield Fault("skip", named, missing, "never came", len(missing))
