"""L4. What each source gave, counted from the ledger and held against the declared policy.

Arithmetic on ids in the order in which they were consumed. It needs no dataset and does not know how a
mixture draws: that every record of a source comes once before any comes twice, and that the shares are
those declared, is checked on its own, beside the comparison with the sequence computed again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_core.data.cursor import Cursor
from durable_core.data.order import Ids
from durable_core.data.sequence import Batch
from durable_core.data.standing import Standing, standings
from durable_core.engine.audit.drawn import Fault
from durable_core.engine.audit.due import Plan
from durable_core.engine.audit.found import Pieces
from durable_core.engine.audit.shares import ALARM, SLACK, Debts, Windows, quota_bound
from durable_core.engine.audit.sources import (
    Source,
    SourceCount,
    drawn_from,
    mixture_of,
    sources_of,
    weighed_in,
)

_WINDOW = 1000  # draws, where none is declared

Wrong = tuple[str, int, str]
"""(detail, samples, kind of finding)."""


@dataclass(frozen=True)
class End:
    """Where the lineage ends. ``state``: the sequence's, committed with ``cursor``; ``known``: whether both
    are, and the lineage begins at the beginning. ``left``: epochs left by declaration; ``ended``: epochs
    that ended otherwise."""

    cursor: Cursor
    state: Any = None
    known: bool = False
    left: frozenset[int] = frozenset()
    ended: int = 0


@dataclass
class _Told:
    """Batches not counted yet. ``epochs`` None: nobody knows them."""

    ids: list[Ids] = field(default_factory=list)
    epochs: list[Ids | None] = field(default_factory=list)
    amounts: list[Ids] = field(default_factory=list)
    lengths: list[Ids] = field(default_factory=list)

    def add(self, pieces: Pieces, expected: Batch | None) -> None:
        ids, epochs, amounts, lengths = pieces.ids, pieces.epochs, pieces.amounts, pieces.lengths
        if epochs is None or (amounts is not None and lengths is None):  # as segments were once written
            ids, epochs = (ids, None) if expected is None else _whole(expected)
            amounts = lengths = None
        ones = np.ones(len(ids), np.int64)
        self.ids.append(ids)
        self.epochs.append(epochs)
        self.amounts.append(ones if amounts is None or lengths is None else amounts)
        self.lengths.append(ones if amounts is None or lengths is None else lengths)


class Portions:
    """Counts by source. ``add`` batches in logical order, ``judge`` at the end.

    The ledger says to which epoch of its source a draw belongs, or whoever can compute the sequence; he
    ``blame``s what differed from it. Otherwise a source has to give all its records before any of them
    again, which holds for sources that are repeated, and not for those that begin anew with others.
    """

    def __init__(self, plan: Plan, cursor: Cursor) -> None:
        policy = drawn_from(plan)
        assert policy is not None
        self.mixed = mixture_of(plan) is not None
        self._plan, self._policy = plan, policy
        self._drops = cursor.remainder == "drop"
        self._sources = sources_of(policy)
        self._bases = np.array([source.base for source in self._sources], np.int64)
        self._told = _Told()
        self._drawn = 0
        self.packed = False
        self._blind = False  # a batch came of which nobody knows the epochs
        self._blamed = np.zeros((2, len(self._sources)), np.int64)
        self._changed = False
        self._strays = 0
        weights = [source.weight or 0.0 for source in self._sources]
        self._debts = Debts(weights)
        self._windows = Windows(weights, int(policy.get("window") or _WINDOW))

    @classmethod
    def of(cls, plan: Plan | None, cursor: Cursor, before: Portions | None) -> Portions | None:
        """For a run whose data is now described by ``plan``; the counts go on if the sources are the same."""
        if plan is None or drawn_from(plan) is None:
            return None
        fresh = cls(plan, cursor)
        if before is None or not before._same_sources(fresh):
            return fresh
        before._changed |= before._plan != plan
        before._plan = plan
        return before

    def _same_sources(self, other: Portions) -> bool:
        mine, theirs = ([(s.name, s.base, s.size) for s in x._sources] for x in (self, other))
        return mine == theirs

    def add(self, pieces: Pieces, expected: Batch | None = None) -> None:
        """A batch. ``expected``: what the sequence demands, if that is what came."""
        for i in self._which(pieces.ids[len(pieces.ids) - pieces.left_out :]).tolist():
            self._sources[i].left_out += 1
        if pieces.amounts is not None:
            self.packed = True
            sums = np.bincount(self._which(pieces.ids), pieces.amounts, len(self._sources))
            for source, tokens in zip(self._sources, sums.tolist(), strict=True):
                source.tokens += int(tokens)
        self._told.add(pieces, expected)

    def blame(self, ids: Ids, surplus: Ids) -> None:
        """Each of ``ids`` came ``surplus`` times more often (less often, if negative) than it was due."""
        for i, count in zip(self._which(ids).tolist(), surplus.tolist(), strict=True):
            self._blamed[int(count < 0), i] += abs(count)

    def flush(self) -> None:
        """Count what was added."""
        told, self._told = self._told, _Told()
        if not told.ids:
            return
        ids, amounts, lengths = map(np.concatenate, (told.ids, told.amounts, told.lengths))
        labels = [label for label in told.epochs if label is not None]
        self._blind |= len(labels) < len(told.epochs)
        epochs = None if self._blind else np.concatenate(labels)
        which = self._which(ids)
        for i, source in enumerate(self._sources):
            mine = which == i
            local = ids[mine] - source.base
            inside = (local >= 0) & (local < source.size)
            self._strays += int((~inside).sum())
            if epochs is not None:
                source.drawn.take(*(x[inside] for x in (epochs[mine], local, amounts[mine], lengths[mine])))
                continue
            source.blind.draws += len(local)
            if source.once and not self.packed and self._one_after_the_other:
                source.blind.take(local[inside])
        if not self.packed:
            self._debts.follow(which, self._drawn)
            self._windows.follow(which)
        self._drawn += len(ids)

    @property
    def _one_after_the_other(self) -> bool:
        return self._policy.get("exhaustion", "repeat") in ("repeat", "error")

    def _which(self, ids: Ids) -> npt.NDArray[np.int64]:
        found = np.searchsorted(self._bases, ids, side="right") - 1
        return np.maximum(found, 0)

    # --- the verdict -------------------------------------------------------------------------

    def judge(
        self, notes: list[str], end: End, *, computed: bool
    ) -> tuple[tuple[SourceCount, ...], list[Wrong]]:
        """The counts, and what is wrong with them. ``computed``: batches were compared with the sequence."""
        self.flush()
        wrong: list[Wrong] = []
        if not (computed and self._blamed.any()):  # else each was told where it differed
            self._judge_draws(notes, wrong, end, computed=computed)
        counts = tuple(self._count(i, computed=computed) for i in range(len(self._sources)))
        if self._strays:
            wrong.append((f"{self._strays} ids belong to no source", self._strays, "mixture"))
        reason = self._not_judged()
        if not reason:
            self._judge_shares(notes, wrong)
        elif self.mixed and not computed:
            notes.append(f"the shares of the sources are not judged: {reason}")
        return counts, wrong

    def _judge_draws(self, notes: list[str], wrong: list[Wrong], end: End, *, computed: bool) -> None:
        known = self._standings(end) if not self._blind else None
        at: list[Standing | None] = [None] * len(self._sources) if known is None else [*known]
        declared = 0
        for source, standing in zip(self._sources, at, strict=True):
            faults = [*source.drawn.judge(standing if not computed else None)]
            if standing is not None:
                kept = self._beyond_declared(faults, source, standing, end)
                declared += sum(len(f.ids) for f in faults) - sum(len(f.ids) for f in kept)
                faults = kept
            for fault in faults:
                wrong.append((fault.of(source.name), len(fault.ids), fault.kind))
            source.repeated = sum(len(fault.ids) for fault in faults if fault.kind == "repeat")
            source.skipped = sum(len(fault.ids) for fault in faults if fault.kind == "skip")
            if self._blind and not computed:
                self._judge_blind(source, wrong)
        if not computed:
            notes += self._what_was_judged(known is not None, declared)

    def _judge_blind(self, source: Source, wrong: list[Wrong]) -> None:
        blind = source.blind
        source.repeated += blind.repeated
        source.skipped += blind.skipped
        if blind.repeated:
            text = f"{source.name}: {blind.repeated} records again within an epoch of it"
            wrong.append((text, blind.repeated, "repeat"))
        if blind.skipped:
            text = f"{source.name}: {blind.skipped} records left out of an epoch of it"
            wrong.append((text, blind.skipped, "skip"))

    def _standings(self, end: End) -> list[Standing] | None:
        if not end.known:
            return None
        state = None if end.state is None else end.state["sequence"]
        return standings(self._plan, state, epoch=end.cursor.epoch, seed=end.cursor.seed)

    def _beyond_declared(
        self, faults: list[Fault], source: Source, standing: Standing, end: End
    ) -> list[Fault]:
        """Without what may be missing by declaration: of epochs left early, and what ends an epoch and is
        dropped. Where packs are filled one after the other, that can only be the last records of an order."""
        skips = [fault for fault in faults if fault.kind == "skip"]
        others = [fault for fault in faults if fault.kind != "skip"]
        if self._policy.get("exhaustion") == "renormalize" and end.left:
            return others  # all sources began anew
        if not self.mixed:
            skips = [fault for fault in skips if fault.epoch not in end.left]
        spare = self._spare(standing, end)
        missing = sum(fault.amount for fault in skips)
        if missing <= spare and (standing.order is None or not self._in_turn or _at_the_end(skips, standing)):
            return others
        return others + skips

    def _spare(self, standing: Standing, end: End) -> int:
        """How many tokens (records, if not packed) of a source may be dropped at the ends of epochs."""
        packing = _packing_of(self._plan)
        row = 1 if packing is None else int(packing["length"])
        spare = (row - 1) * standing.epoch if packing is not None and packing["tail"] == "drop" else 0
        if self._drops and self._ends and end.cursor.global_batch:
            spare += (end.cursor.global_batch - 1) * row * end.ended
        return spare

    @property
    def _in_turn(self) -> bool:
        """Whether records leave the sequence in the order in which they are drawn, epoch by epoch."""
        packing = _packing_of(self._plan)
        greedy = packing is None or str(packing["name"]).startswith("greedy")
        return greedy and not (self.mixed and self._drops and self._ends)

    @property
    def _ends(self) -> bool:
        """Whether an epoch of the loader ends by itself, and not at some number of samples."""
        return not self.mixed or self._policy.get("exhaustion") in ("stop", "renormalize")

    def _what_was_judged(self, complete: bool, declared: int) -> list[str]:
        if self._blind:
            judged = self._one_after_the_other and not self.packed
            text = "epochs of the sources are not told apart: how often each record came is not judged"
            return [] if judged else [text]
        if not complete:
            return [
                "records were counted by the epochs of the sources; what is missing is not judged, as where "
                "the sources stand at the head is not known"
            ]
        notes = ["records were counted by the epochs of the sources, up to where the head's state stands"]
        if declared:
            notes.append(f"{declared} records were dropped, whole or in part, at ends of epochs, as declared")
        return notes

    def _count(self, i: int, *, computed: bool) -> SourceCount:
        source = self._sources[i]
        blamed = self._blamed[:, i].tolist()
        repeated, skipped = blamed if computed and self._blamed.any() else [source.repeated, source.skipped]
        due, unit = self._due(source)
        return SourceCount(
            name=source.name,
            dataset_id=source.dataset_id,
            size=source.size,
            draws=source.draws,
            tokens=source.tokens if self.packed else None,
            epochs=source.drawn.epochs + source.blind.epochs,
            repeated=repeated,
            skipped=skipped,
            left_out=source.left_out,
            due=due,
            due_in=unit,
        )

    def _due(self, source: Source) -> tuple[float | None, str]:
        """Its share of all that was weighed, and in what."""
        unit = weighed_in(self._policy)
        if source.weight is None or unit is None or (unit == "tokens" and not self.packed):
            return None, unit or "draws"
        total = sum(each.tokens if unit == "tokens" else each.draws for each in self._sources)
        return source.weight * total, unit

    def _not_judged(self) -> str:
        """Why draws alone do not tell whether the shares are right; empty if they do."""
        policy = self._policy
        if self._changed or policy.get("changes") or self._plan.get("updates"):
            return "the weights changed during the run"
        if policy.get("exhaustion") == "renormalize":
            return "weights are renormalized when a source is exhausted"
        if policy.get("exhaustion") == "stop" and self._drops:
            return "what is dropped at the end of an epoch counts in them"
        if self.packed or policy.get("unit", "sample") not in ("sample", "document"):
            return f"they are declared in units of {policy.get('unit', 'tokens')}s, not of records"
        if any(source.weight is None for source in self._sources):
            return "no weights are declared"
        return ""

    def _judge_shares(self, notes: list[str], wrong: list[Wrong]) -> None:
        """A broken bound is a fault; drift of independent draws is told, and proves nothing."""
        if str(self._policy.get("name")).startswith("quota"):
            worst, bound = self._debts.worst, quota_bound(len(self._sources))
            i = int(np.argmax(worst))
            if worst[i] > bound + SLACK:
                off = f"{worst[i]:.3f} draws off its quota"
                detail = f"{self._sources[i].name} was {off}; the bound is {bound:.3f}"
                wrong.append((detail, math.ceil(worst[i] - bound), "mixture"))
        elif self._windows.drifted:
            z, i, begin = self._windows.worst
            size, name = self._windows.size, self._sources[i].name
            notes.append(
                f"{name} drifted: z = {z:+.1f} in draws {begin} to {begin + size}, the worst of "
                f"{self._windows.drifted} windows of {size} beyond {ALARM:.0f}"
            )


def _whole(expected: Batch) -> tuple[Ids, Ids]:
    """(ids, epochs) of the records in a batch as it was due; a document is drawn with its first piece."""
    if expected.begins is None:
        return expected.ids, expected.epochs
    first = expected.begins == 0
    return expected.ids[first], expected.epochs[first]


def _packing_of(plan: Plan) -> Mapping[str, Any] | None:
    """The description of the packing, around a mixture or within it."""
    lanes = plan.get("lanes") or [{}]
    found: Mapping[str, Any] | None = plan.get("packing") or lanes[0].get("packing")
    return found


def _at_the_end(skips: list[Fault], standing: Standing) -> bool:
    """Whether the records that are missing of each epoch are the last ones of its order."""
    assert standing.order is not None
    missing: dict[int, set[int]] = {}
    for fault in skips:
        if fault.epoch is None:
            return False
        missing.setdefault(fault.epoch, set()).update(fault.ids.tolist())
    size = standing.order.size
    return all(
        ids == set(standing.order.ids(epoch, size - len(ids), size).tolist())
        for epoch, ids in missing.items()
    )
