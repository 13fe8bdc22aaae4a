"""L4. What each source of a mixture gave, counted from the ledger and held against the declared policy.

Pure arithmetic on ids in the order in which they were consumed. It needs no dataset and does not know how
the mixture draws: that every record of a source comes once before any comes twice, and that the shares are
those declared, is checked on its own, beside the comparison with the sequence computed again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_core.data.order import Ids
from durable_core.data.sequence import Batch
from durable_core.engine.due import Plan

_NONE: Ids = np.empty(0, np.int64)
_SLACK = 1e-6  # of rounding, in draws: |debt| is computed in floating point
_WINDOW = 1000  # draws, where none is declared
_ALARM = 4.0  # standard deviations: one in 16,000 windows by chance


@dataclass(frozen=True)
class SourceCount:
    """One source. ``draws``: its records, each time they came; pieces of them where documents are packed and
    the sequence cannot be computed. ``tokens``: None where the ledger has no amounts. ``epochs``: complete
    ones. ``left_out`` of the draws by declaration (those records did not decode). ``due``: its share of all
    draws; None if not declared. ``repeated`` and ``skipped``: more and less often than due."""

    name: str
    dataset_id: str
    size: int
    draws: int
    tokens: int | None
    epochs: int
    repeated: int
    skipped: int
    left_out: int
    due: float | None


Wrong = tuple[str, int, str]
"""(detail, samples, kind of finding)."""


@dataclass
class _Source:
    """``open``: epoch -> what came of it; where nobody says which epoch a draw belongs to, all is in 0."""

    name: str
    dataset_id: str
    base: int
    size: int
    once: bool
    weight: float | None
    draws: int = 0
    tokens: int = 0
    epochs: int = 0
    repeated: int = 0
    skipped: int = 0
    left_out: int = 0
    open: dict[int, Ids] = field(default_factory=dict)

    def take(self, ids: Ids) -> None:
        """Draws of one epoch after the other: each is over when ``size`` have come."""
        drawn = np.concatenate([self.open.pop(0, _NONE), ids])
        while len(drawn) >= self.size:
            counts = np.bincount(drawn[: self.size], minlength=self.size)
            self.repeated += int((counts[counts > 1] - 1).sum())
            self.skipped += int((counts == 0).sum())
            self.epochs += 1
            drawn = drawn[self.size :]
        self.open[0] = drawn

    def take_of(self, epoch: int, ids: Ids) -> None:
        """Draws of an epoch of it; one that is complete is forgotten."""
        drawn = np.concatenate([self.open.pop(epoch, _NONE), ids])
        if len(drawn) < self.size:
            self.open[epoch] = drawn
            return
        self.repeated += len(drawn) - len(np.unique(drawn))
        self.epochs += 1

    def open_repeats(self) -> int:
        """Of the epochs that are not complete."""
        return sum(len(ids) - len(np.unique(ids)) for ids in self.open.values())


class Portions:
    """Counts by source. ``add`` batches in logical order, ``judge`` at the end.

    Whoever can compute the sequence says to which epoch of its source a draw belongs, and ``blame``s what
    differed from it. Otherwise a source has to give all its records before any of them again, which holds
    for sources that are repeated, and not for those that begin anew with others.
    """

    def __init__(self, plan: Plan) -> None:
        mixture = mixture_of(plan)
        assert mixture is not None
        self._policy: Mapping[str, Any] = mixture
        self._updated = bool(plan.get("updates"))
        self._sources = _sources(mixture)
        self._bases = np.array([source.base for source in self._sources], np.int64)
        self._pending: list[tuple[Ids, Ids | None]] = []
        self._drawn = 0
        self._packed = False
        self._blind = False  # a batch came of which nobody knows the epochs
        self._blamed = np.zeros((2, len(self._sources)), np.int64)
        self._changed = False
        self._strays = 0
        weights = [source.weight or 0.0 for source in self._sources]
        self._debts = _Debts(weights)
        self._windows = _Windows(weights, int(mixture.get("window") or _WINDOW))

    @classmethod
    def of(cls, plan: Plan | None, before: Portions | None) -> Portions | None:
        """For a run whose data is now described by ``plan``; the counts go on if the sources are the same."""
        if plan is None or mixture_of(plan) is None:
            return None
        fresh = cls(plan)
        if before is None or not before._same_sources(fresh):
            return fresh
        before._changed = True
        return before

    def _same_sources(self, other: Portions) -> bool:
        mine, theirs = ([(s.name, s.base, s.size) for s in x._sources] for x in (self, other))
        return mine == theirs

    def add(
        self, ids: Ids, amounts: Ids | None = None, left_out: Ids = _NONE, expected: Batch | None = None
    ) -> None:
        """A batch: its ids, their tokens if known, and which of them were left out by declaration.

        ``expected``: what the sequence demands, if that is what came."""
        for i in self._which(left_out).tolist():
            self._sources[i].left_out += 1
        if amounts is not None:
            self._packed = True
            for i, tokens in enumerate(np.bincount(self._which(ids), amounts, len(self._sources))):
                self._sources[i].tokens += int(tokens)
        if expected is None:
            self._pending.append((ids, None))
        elif expected.begins is None:
            self._pending.append((expected.ids, expected.epochs))
        else:  # a document is drawn with its first piece
            first = expected.begins == 0
            self._pending.append((expected.ids[first], expected.epochs[first]))

    def blame(self, ids: Ids, surplus: Ids) -> None:
        """Each of ``ids`` came ``surplus`` times more often (less often, if negative) than it was due."""
        for i, count in zip(self._which(ids).tolist(), surplus.tolist(), strict=True):
            self._blamed[int(count < 0), i] += abs(count)

    def flush(self) -> None:
        """Count what was added."""
        if not self._pending:
            return
        ids = np.concatenate([part for part, _ in self._pending])
        labels = [label for _, label in self._pending if label is not None]
        self._blind |= len(labels) < len(self._pending)
        epochs = None if self._blind else np.concatenate(labels)
        self._pending = []
        which = self._which(ids)
        for i, source in enumerate(self._sources):
            mine = which == i
            local = ids[mine] - source.base
            self._strays += int(((local < 0) | (local >= source.size)).sum())
            source.draws += len(local)
            if source.once:
                self._follow(source, local, None if epochs is None else epochs[mine])
        if not self._packed:
            self._debts.follow(which, self._drawn)
            self._windows.follow(which)
        self._drawn += len(ids)

    def _follow(self, source: _Source, local: Ids, epochs: Ids | None) -> None:
        if epochs is not None:
            for epoch in np.unique(epochs).tolist():
                source.take_of(epoch, local[epochs == epoch])
        elif not self._packed and self._one_after_the_other:
            source.take(local[(local >= 0) & (local < source.size)])

    @property
    def _one_after_the_other(self) -> bool:
        return self._policy.get("exhaustion", "repeat") in ("repeat", "error")

    def _which(self, ids: Ids) -> npt.NDArray[np.int64]:
        found = np.searchsorted(self._bases, ids, side="right") - 1
        return np.maximum(found, 0)

    # --- the verdict -------------------------------------------------------------------------

    def judge(self, notes: list[str], *, computed: bool) -> tuple[tuple[SourceCount, ...], list[Wrong]]:
        """The counts, and what is wrong with them. ``computed``: batches were compared with the sequence."""
        self.flush()
        wrong: list[Wrong] = []
        counts = tuple(self._count(i, computed=computed) for i in range(len(self._sources)))
        for count, source in zip(counts, self._sources, strict=True):
            again = source.repeated + source.open_repeats()
            if again and not (computed and self._blind):
                wrong.append((f"{count.name}: {again} records again within an epoch of it", again, "repeat"))
            if source.skipped and not computed:
                text = f"{count.name}: {source.skipped} records left out of an epoch of it"
                wrong.append((text, source.skipped, "skip"))
        if self._strays:
            wrong.append((f"{self._strays} ids belong to no source", self._strays, "mixture"))
        if not computed and not (self._one_after_the_other and not self._packed):
            notes.append("epochs of the sources are not told apart: how often each record came is not judged")
        reason = self._not_judged()
        if not reason:
            self._judge_shares(notes, wrong)
        elif not computed:
            notes.append(f"the shares of the sources are not judged: {reason}")
        return counts, wrong

    def _count(self, i: int, *, computed: bool) -> SourceCount:
        source = self._sources[i]
        blamed = self._blamed[:, i].tolist()
        own = [source.repeated + source.open_repeats(), source.skipped]
        repeated, skipped = blamed if computed and (self._blind or any(blamed)) else own
        return SourceCount(
            name=source.name,
            dataset_id=source.dataset_id,
            size=source.size,
            draws=source.draws,
            tokens=source.tokens if self._packed else None,
            epochs=source.epochs,
            repeated=repeated,
            skipped=skipped,
            left_out=source.left_out,
            due=None if source.weight is None else source.weight * self._drawn,
        )

    def _not_judged(self) -> str:
        """Why draws alone do not tell whether the shares are right; empty if they do."""
        policy = self._policy
        if self._changed or policy.get("changes") or self._updated:
            return "the weights changed during the run"
        if policy.get("exhaustion") == "renormalize":
            return "weights are renormalized when a source is exhausted"
        if self._packed or policy.get("unit", "sample") not in ("sample", "document"):
            return f"they are declared in units of {policy.get('unit', 'tokens')}s, not of records"
        if any(source.weight is None for source in self._sources):
            return "no weights are declared"
        return ""

    def _judge_shares(self, notes: list[str], wrong: list[Wrong]) -> None:
        """A broken bound is a fault; drift of independent draws is told, and proves nothing."""
        if str(self._policy.get("name")).startswith("quota"):
            worst, bound = self._debts.worst, quota_bound(len(self._sources))
            i = int(np.argmax(worst))
            if worst[i] > bound + _SLACK:
                off = f"{worst[i]:.3f} draws off its quota"
                detail = f"{self._sources[i].name} was {off}; the bound is {bound:.3f}"
                wrong.append((detail, math.ceil(worst[i] - bound), "mixture"))
        elif self._windows.drifted:
            z, i, begin = self._windows.worst
            size, name = self._windows.size, self._sources[i].name
            notes.append(
                f"{name} drifted: z = {z:+.1f} in draws {begin} to {begin + size}, the worst of "
                f"{self._windows.drifted} windows of {size} beyond {_ALARM:.0f}"
            )


class _Debts:
    """The largest |t w_i - N_i(t)| over all t, by source."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = weights
        self._counts = np.zeros(len(weights), np.int64)
        self.worst = np.zeros(len(weights))

    def follow(self, which: npt.NDArray[np.int64], before: int) -> None:
        """The next draws by source; ``before`` came earlier."""
        t = np.arange(before + 1, before + len(which) + 1, dtype=np.float64)
        for i, weight in enumerate(self._weights):
            counts = self._counts[i] + np.cumsum(which == i)
            self.worst[i] = max(self.worst[i], float(np.abs(t * weight - counts).max()))
            self._counts[i] = counts[-1]


class _Windows:
    """z = (N_i - H w_i) / sqrt(H w_i (1 - w_i)) of each window of H draws.

    ``worst``: (z, source, first draw); ``drifted``: windows in which a source was beyond the alarm.
    """

    def __init__(self, weights: Sequence[float], size: int) -> None:
        self.size = size
        share = np.array(weights)
        self._due, self._spread = size * share, np.sqrt(size * share * (1 - share))
        self._rest = np.empty(0, np.int64)
        self._begin = 0
        self.worst = (0.0, 0, 0)
        self.drifted = 0

    def follow(self, which: npt.NDArray[np.int64]) -> None:
        drawn = np.concatenate([self._rest, which])
        for begin in range(0, len(drawn) - self.size + 1, self.size):
            counts = np.bincount(drawn[begin : begin + self.size], minlength=len(self._due))
            off = counts - self._due
            z = np.divide(off, self._spread, out=np.where(off == 0, 0.0, np.inf), where=self._spread > 0)
            i = int(np.argmax(np.abs(z)))
            self.drifted += bool(abs(z[i]) > _ALARM)
            self.worst = max(self.worst, (float(z[i]), i, self._begin), key=lambda found: abs(found[0]))
            self._begin += self.size
        self._rest = drawn[len(drawn) // self.size * self.size :]


def quota_bound(sources: int) -> float:
    """|debt| of Tijdeman's schedule never exceeds 1 - 1/(2m - 2) draws for m sources (0 for one)."""
    return 0.0 if sources < 2 else 1 - 1 / (2 * sources - 2)


def mixture_of(plan: Plan) -> Mapping[str, Any] | None:
    """The description of the mixture inside that of a (packed) sequence; None when there is none."""
    inner: Any = plan
    while isinstance(inner, Mapping):
        if isinstance(inner.get("sources"), Sequence):
            return inner
        inner = inner.get("inner")
    return None


def places_of(plan: Plan) -> dict[str, range]:
    """Source -> its ids in the ledger; empty when the plan has no mixture in it."""
    mixture = mixture_of(plan)
    sources = [] if mixture is None else _sources(mixture)
    return {source.name: range(source.base, source.base + source.size) for source in sources}


def _sources(mixture: Mapping[str, Any]) -> list[_Source]:
    """One after the other in one id space, in the order of the description."""
    weights = mixture.get("weights") or [None] * len(mixture["sources"])
    total = sum(weight or 0 for weight in weights)
    found: list[_Source] = []
    base = 0
    for described, weight in zip(mixture["sources"], weights, strict=True):
        found.append(
            _Source(
                name=str(described["name"]),
                dataset_id=str(described.get("dataset_id", "unknown")),
                base=base,
                size=int(described["size"]),
                once=not described.get("replacement", False),
                weight=weight / total if weight is not None and total else None,
            )
        )
        base += found[-1].size
    return found
