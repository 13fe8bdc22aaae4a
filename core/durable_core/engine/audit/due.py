"""L4. Which samples were due in a global batch, computed again: at any position of an order, or one batch
after the other along a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from durable_core.data.cursor import Cursor
from durable_core.data.layout import Layout
from durable_core.data.order import Ids, Order, make_order, order_from, spanned_ids
from durable_core.data.rebuild import SAMPLER, STREAM, sequence_of
from durable_core.data.sequence import Batch, Sequence, State, epoch_batches, opened, reweighted
from durable_core.errors import UnsupportedError

AT_ONCE = 64  # batches
MAX_AHEAD = 1 << 12  # batches computed in search of the end of an epoch
Plan = Mapping[str, Any]
"""The description of a sequence, as each checkpoint keeps it beside the cursor."""


class Due(Protocol):
    """What one description of the data demands. Epochs are asked for in order, and batches within them."""

    computes: bool
    """Whether ``batch`` can say which ids were due; otherwise batches are told apart by number only."""
    counts: bool
    """Whether ids are places in a stream: see ``Ordinals``."""
    carries: bool
    """Whether an epoch goes on where the one before it stopped: leaving it early then leaves nothing out."""

    def batch(self, epoch: int, batch: int) -> Batch | None:
        """What was due; None past the end of the epoch, or when it cannot be computed."""

    def leave(self, epoch: int, batch: int) -> None:
        """The epoch was left before ``batch``, by declaration."""

    def whole(self, epoch: int) -> int | None:
        """Batches of all of the epoch; None when nobody knows."""

    def samples(self, epoch: int, begin: int, end: int) -> int:
        """Samples of its batches [begin, end)."""


def due(cursor: Cursor, plan: Plan | None, sequence: Sequence | None = None) -> Due:
    """The strongest that can be had: ``sequence`` if given, else what cursor and plan describe."""
    if cursor.order == STREAM or cursor.order.startswith(f"{SAMPLER}:"):
        return Numbered(None, cursor.global_batch or 1, counts=cursor.order == STREAM)
    layout = _layout(cursor)
    order = None if layout is None else _order(cursor, plan)
    if layout is not None and order is not None:
        return Ordered(order, layout)
    if sequence is None and plan is not None and layout is None:
        sequence = sequence_of(plan, cursor.seed)
    if sequence is not None and cursor.global_batch:
        given = () if plan is None else plan.get("updates", ())
        updates = {at: dict(weights) for at, weights in given}
        return Sequenced(sequence, cursor.global_batch, drop=cursor.remainder == "drop", updates=updates)
    return Numbered(layout, cursor.global_batch or 1)


class Numbered:
    """Neither order nor sequence can be computed here: a custom sampler's, a stream, a newer version's.

    Of the first two nobody knows how many batches an epoch has; the items of a stream are counted where
    they are read (``counts``).
    """

    computes = False
    carries = False

    def __init__(self, layout: Layout | None, global_batch: int, *, counts: bool = False) -> None:
        self._layout, self._global_batch, self.counts = layout, global_batch, counts

    def batch(self, epoch: int, batch: int) -> Batch | None:
        return None

    def leave(self, epoch: int, batch: int) -> None:
        pass

    def whole(self, epoch: int) -> int | None:
        return None if self._layout is None else self._layout.batches_in(epoch)

    def samples(self, epoch: int, begin: int, end: int) -> int:
        if self._layout is not None and end <= self._layout.batches_in(epoch):
            return self._layout.samples(epoch, begin, end)
        return max(end - begin, 0) * self._global_batch


class Ordered:
    """Batches are intervals of an order."""

    computes = True
    counts = False
    carries = False

    def __init__(self, order: Order, layout: Layout) -> None:
        self._order, self._layout = order, layout

    def batch(self, epoch: int, batch: int) -> Batch | None:
        if batch >= self._layout.batches_in(epoch):
            return None
        return Batch(*spanned_ids(self._order, self._layout.spans(epoch, batch)))

    def leave(self, epoch: int, batch: int) -> None:
        pass

    def whole(self, epoch: int) -> int | None:
        return self._layout.batches_in(epoch)

    def samples(self, epoch: int, begin: int, end: int) -> int:
        return self._layout.samples(epoch, begin, min(end, self._layout.batches_in(epoch)))


class Sequenced:
    """Batches come out of a state machine. It only goes forwards.

    Many batches are taken at once and cut, which is several times faster, unless weights change at some
    batch: how many batches were taken then matters. ``updates``: weights given during the run, by the number
    of the batch they begin with.

    ``carries_on``: into the next epoch. ``depends``: on how many batches there were, so on their size too.
    """

    computes = True
    counts = False

    def __init__(
        self,
        sequence: Sequence,
        global_batch: int,
        *,
        drop: bool,
        updates: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        self.carries = sequence.carries and sequence.description.get("exhaustion") != "renormalize"
        self._sequence, self._global_batch, self._drop = sequence, global_batch, drop
        self._known = epoch_batches(sequence, global_batch, drop=drop)
        self._updates = updates or {}
        self._at_once = 1 if self._updates or changes_weights(sequence.description) else AT_ONCE
        self._epoch, self._next = 0, 0
        self._before = 0  # batches of the run before this epoch, with those that were dropped
        self._ahead = _Ahead(self._start(0, None), 0)
        self._left: int | None = None
        self._dropped = False
        self.carries_on, self.depends = sequence.carries, bool(self._updates or self._before)

    def batch(self, epoch: int, batch: int) -> Batch | None:
        self._enter(epoch)
        taken: Batch | None = None
        while self._next <= batch:
            taken = self._advance()
            if taken is None:
                return None
        return taken

    def leave(self, epoch: int, batch: int) -> None:
        self._enter(epoch)
        self._left = batch

    def whole(self, epoch: int) -> int | None:
        """Where the end is not known it is looked for, ``MAX_AHEAD`` batches far."""
        if epoch != self._epoch:
            return self._known
        held = self._next, self._ahead, self._dropped
        self._run_out()
        count = self._next
        self._next, self._ahead, self._dropped = held
        return count

    def samples(self, epoch: int, begin: int, end: int) -> int:
        first, stop = begin * self._global_batch, end * self._global_batch
        size = self._sequence.batches(1)
        return max(stop - first if size is None else min(stop, size) - first, 0)

    def _enter(self, epoch: int) -> None:
        """A carrying sequence begins an epoch where it stopped: at the end, or where the last was left."""
        while self._epoch < epoch:
            before: State | None = None
            if self._sequence.carries:
                if self._left is None:
                    self._run_out()
                before = self._state()
            self._epoch = self._epoch + 1 if self._sequence.carries else epoch
            self._before += self._next + self._dropped
            self._ahead = _Ahead(self._start(self._epoch, before), 0)
            self._next, self._left, self._dropped = 0, None, False

    def _start(self, epoch: int, before: State | None) -> State:
        state, passed = opened(
            self._sequence, epoch, before, self._global_batch, drop=self._drop,
            change=lambda state, passed: self._weighted(state, passed),
        )  # fmt: skip
        self._before += passed
        return state

    def _weighted(self, state: State, batch: int) -> State:
        """With the weights that were given for the batch that is number ``batch`` of the epoch."""
        given = self._updates.get(self._before + batch)
        return state if given is None else reweighted(self._sequence, state, self._before + batch, given)

    def _take(self, state: State, batch: int, count: int) -> tuple[Batch, State]:
        return self._sequence.take(self._weighted(state, batch), count)

    def _run_out(self) -> None:
        for _ in range(MAX_AHEAD):
            if self._advance() is None:
                return

    def _advance(self) -> Batch | None:
        """The next batch, unless the epoch ends here."""
        if self._next == self._known:
            return None
        size, ahead = self._global_batch, self._ahead
        begin = (self._next - ahead.first) * size
        if ahead.taken is None or (begin >= len(ahead.taken) and not ahead.last):
            state = ahead.before if ahead.taken is None else ahead.after
            count = self._at_once * size
            taken, after = self._take(state, self._next, count)
            self._ahead = ahead = _Ahead(state, self._next, taken, after, len(taken) < count)
            begin = 0
        assert ahead.taken is not None
        count = min(size, len(ahead.taken) - begin)
        self._dropped = self._drop and 0 < count < size
        if count <= 0 or self._dropped:
            return None
        self._next += 1
        return cut(ahead.taken, begin, begin + count)

    def _state(self) -> State:
        """After the batches that were asked for, and a last one that was dropped."""
        ahead = self._ahead
        if ahead.taken is None:
            return ahead.before
        done = (self._next - ahead.first) * self._global_batch
        if self._dropped or done > len(ahead.taken) or (done == len(ahead.taken) and not ahead.last):
            return ahead.after
        return self._take(ahead.before, ahead.first, done)[1] if done else ahead.before


@dataclass(frozen=True)
class _Ahead:
    """Samples from batch ``first`` of the epoch on; ``last``: the epoch ends with them."""

    before: State
    first: int
    taken: Batch | None = None
    after: State = field(default_factory=dict)
    last: bool = False


def cut(batch: Batch, begin: int, end: int) -> Batch:
    """Samples [begin, end) of it."""
    if begin == 0 and end == len(batch):
        return batch
    first, stop = (begin, end) if batch.packs is None else batch.packs[[begin, end]].tolist()
    begins = None if batch.begins is None else batch.begins[first:stop]
    ends = None if batch.ends is None else batch.ends[first:stop]
    packs = None if batch.packs is None else batch.packs[begin : end + 1] - first
    return Batch(batch.ids[first:stop], batch.epochs[first:stop], begins, ends, packs)


def changes_weights(description: Plan) -> bool:
    """Whether a weight schedule is stamped with batches anywhere in it."""
    inner: Any = description
    while isinstance(inner, Mapping):
        if inner.get("changes"):
            return True
        inner = inner.get("inner")
    return False


def resized(fresh: Due, global_batch: int | None, *, at_start: bool) -> Due:
    """``fresh``, after the first batches were of another size; or by numbers only, if it cannot know where
    it stands: a sequence that carries would have to be taken through all epochs in batches of each size.

    ``at_start``: no epoch is over, so that there is one state for every number of samples.
    """
    if isinstance(fresh, Sequenced) and fresh.carries_on and (fresh.depends or not at_start):
        return Numbered(None, global_batch or 1)
    return fresh


def renumbered(was: Cursor, now: Cursor, epoch: int, batch: int) -> int:
    """The number, in ``epoch``, of the batch of ``now`` that begins where ``batch`` of ``was`` does.

    Rounded up: uneven only after the last batch of an epoch, a short one or one that runs on into the next.
    """
    old, new = was.global_batch or 1, now.global_batch or 1
    before, after = _layout(was), _layout(now)
    if before is None or after is None or now.remainder != "straddle":
        return -(-batch * old // new)
    return -(-before.step(epoch, batch) * old // new) - after.step(epoch, 0)  # counted since the run began


def _layout(cursor: Cursor) -> Layout | None:
    if cursor.size is None or not cursor.global_batch:
        return None
    return Layout(cursor.size, cursor.global_batch, cursor.remainder)


def _order(cursor: Cursor, plan: Plan | None) -> Order | None:
    if cursor.size is None:
        return None
    try:
        if plan is not None and plan.get("name") == cursor.order:
            return order_from(plan, seed=cursor.seed)
        return make_order(cursor.order, cursor.size, dataset_id=cursor.dataset_id, seed=cursor.seed)
    except UnsupportedError:
        return None  # a custom sampler's, or it needs what only the dataset tells


def amounts_of(batch: Batch) -> Ids | None:
    """Tokens of each piece of a packed batch."""
    return None if batch.begins is None or batch.ends is None else batch.ends - batch.begins


def same_data(was: tuple[Cursor, Plan | None], now: tuple[Cursor, Plan | None]) -> bool:
    """Whether both describe the same data; the position may differ."""
    names = ("dataset_id", "order", "seed", "size", "global_batch", "remainder")
    return was[1] == now[1] and all(getattr(was[0], name) == getattr(now[0], name) for name in names)
