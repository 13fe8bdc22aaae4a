"""A mixture of two sources in the simplest form there is, and the lineage of a run that consumed it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from durable_core.data.cursor import Cursor
from durable_core.data.order import FullPermutation
from durable_core.data.sequence import Batch, State
from durable_core.engine.audit.segments import Segment
from durable_core.format.ledger import Row

SIZES = {"a": 9, "b": 6}
BASES = {"a": 0, "b": 9}
PATTERN = "aba"  # two of a for one of b
SEED, GLOBAL = 5, 4


def plan(**changes: Any) -> dict[str, Any]:
    """As a mixture describes itself, under a name that no version knows."""
    sources = [
        {"name": n, "dataset_id": f"sha256:{n}", "size": SIZES[n], "replacement": False} for n in SIZES
    ]
    return {"name": "pattern_v1", "unit": "sample", "sources": sources, "weights": [2, 1], "changes": [],
            "exhaustion": "repeat", **changes}  # fmt: skip


class Pattern:
    """``PATTERN`` for ever, each source along its own permutation, epoch after epoch of it."""

    name = "pattern_v1"
    carries = True

    def __init__(self, epoch_batches: int | None = None) -> None:
        self.description: Mapping[str, Any] = plan()
        self._epoch_batches = epoch_batches
        self._orders = {n: FullPermutation(SIZES[n], dataset_id=n, seed=SEED) for n in SIZES}

    def batches(self, global_batch: int) -> int | None:
        return self._epoch_batches

    def start(self, epoch: int, before: State | None = None) -> State:
        return dict(before or {"t": 0, "a": 0, "b": 0})

    def take(self, state: State, count: int) -> tuple[Batch, State]:
        state, ids, epochs = dict(state), [], []
        for _ in range(count):
            name = PATTERN[state["t"] % len(PATTERN)]
            epoch, at = divmod(state[name], SIZES[name])
            ids.append(BASES[name] + int(self._orders[name].ids(epoch, at, at + 1)[0]))
            epochs.append(epoch)
            state["t"] += 1
            state[name] += 1
        return Batch(np.array(ids, np.int64), np.array(epochs, np.int64)), state


def cursor(step: int, per_epoch: int | None = None) -> Cursor:
    epoch, batch = (0, step) if per_epoch is None else divmod(step, per_epoch)
    return Cursor("mixture", "pattern_v1", SEED, epoch, batch, None, GLOBAL, "short", step * GLOBAL)


def lineage(
    steps: int = 15, every: int = 5, *, roles: int = 1, per_epoch: int | None = None
) -> list[Segment]:
    """A sound run of ``steps`` batches of 4, dealt to ``roles`` replicas, committed every ``every``."""
    sequence = Pattern()
    state = sequence.start(0)
    segments = [Segment(0, -1, 0, {}, cursor(0, per_epoch), plan())]
    for after in range(0, steps, every):
        rows: dict[str, list[Row]] = {f"dp{r}": [] for r in range(roles)}
        for step in range(after, after + every):
            batch, state = sequence.take(state, GLOBAL)
            epoch, k = (0, step) if per_epoch is None else divmod(step, per_epoch)
            for r, part in enumerate(np.split(batch.ids, roles)):
                rows[f"dp{r}"].append(Row(step + 1, epoch, k, part))
        through = after + every
        segments.append(Segment(len(segments), after, through, rows, cursor(through, per_epoch), plan()))
    return segments


def edited(
    segments: list[Segment], c: int, change: Callable[[list[Row]], list[Row]], role: str = "dp0"
) -> list[Segment]:
    """The lineage with the rows of one segment changed, the cursors as they were."""
    rows = {**segments[c].rows, role: change(list(segments[c].rows[role]))}
    return [dataclasses.replace(s, rows=rows) if s.c == c else s for s in segments]


def described(segments: list[Segment], **changes: Any) -> list[Segment]:
    """The same with another plan."""
    return [dataclasses.replace(s, plan=plan(**changes)) for s in segments]
