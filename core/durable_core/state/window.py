"""L3. The last W rows of loss, learning rate and gradient norm, and the check of a restore against them.

A restore is proven by numbers, not by a process that runs (VERIF-01, VERIF-04): the steps done again
after a restore are compared with the rows recorded for the same steps before the failure. How
closely depends on the promise.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from durable_core.errors import UsageError
from durable_core.types import Promise

RELATIVE_TOLERANCE = 1e-2  # exact order, other kernels: rounding grows, a wrong moment grows faster
ABSOLUTE_TOLERANCE = 1e-6
Z_LIMIT = 4.0  # standard errors; about one false alarm in 16,000 for a normal mean
_METRICS = ("loss", "lr", "grad_norm")


@dataclass(frozen=True)
class Row:
    """One committed step. Floats are exact; ``None`` where the trainer does not report the metric."""

    step: int
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None


@dataclass(frozen=True)
class Verdict:
    """``ok`` is ``None`` when nothing could be compared. ``reason`` says what was seen, for a person."""

    ok: bool | None
    reason: str
    compared: int = 0


class Window:
    """The newest ``size`` rows, as a state object."""

    state_kind = "loop"
    state_version = 1

    def __init__(self, size: int = 64) -> None:
        if size < 1:
            raise UsageError(f"a window needs at least one row, not {size}")
        self._rows: deque[Row] = deque(maxlen=size)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Oldest first; steps rise."""
        return tuple(self._rows)

    def record(self, row: Row) -> None:
        """Append a row. A step that was recorded before (after a rollback) drops it and what came later."""
        while self._rows and self._rows[-1].step >= row.step:
            self._rows.pop()
        self._rows.append(row)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [list(astuple(row)) for row in self._rows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rows = [Row(*row) for row in state["rows"]]
        self._rows.clear()
        self._rows.extend(rows)


def compare(reference: Iterable[Row], observed: Iterable[Row], promise: Promise) -> Verdict:
    """Do the steps after a restore match the rows recorded before the failure?

    ``bitwise``: every metric of every common step has the same bits. ``exact-order``: the same within
    ``RELATIVE_TOLERANCE``. Below that the samples differ, so only distributions can be compared: the
    mean loss observed lies within ``Z_LIMIT`` standard errors (Welch) of the reference's.
    """
    old = {row.step: row for row in reference}
    new = sorted(observed, key=lambda row: row.step)
    if not promise.implies(Promise.EXACT_ORDER):
        return _distribution([row.loss for row in old.values()], [row.loss for row in new])
    same = _same_bits if promise is Promise.BITWISE else _close
    compared = 0
    for row in new:
        for metric in _METRICS if row.step in old else ():
            before, after = getattr(old[row.step], metric), getattr(row, metric)
            if before is None and after is None:
                continue
            if before is None or after is None or not same(before, after):
                reason = f"step {row.step}: {metric} was {before!r} and is now {after!r} ({promise.value})"
                return Verdict(False, reason, compared)
            compared += 1
    if not compared:
        return Verdict(None, "no step in common has a metric to compare")
    return Verdict(True, f"{compared} values agree ({promise.value})", compared)


def _same_bits(one: float, two: float) -> bool:
    return struct.pack("<d", one) == struct.pack("<d", two)


def _close(one: float, two: float) -> bool:
    if math.isnan(one) or math.isnan(two):
        return math.isnan(one) and math.isnan(two)
    return math.isclose(one, two, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)


def _distribution(old: Iterable[float | None], new: Iterable[float | None]) -> Verdict:
    before, after = [x for x in old if x is not None], [x for x in new if x is not None]
    if len(before) < 2 or len(after) < 2:
        return Verdict(None, "fewer than two losses on one side: nothing to compare")
    if not all(map(math.isfinite, (*before, *after))):
        return Verdict(False, "a loss is not finite", len(after))
    mean_before, error_before = _mean(before)
    mean_after, error_after = _mean(after)
    error = math.hypot(error_before, error_after, ABSOLUTE_TOLERANCE)
    z = (mean_after - mean_before) / error
    reason = f"mean loss {mean_before:.6g} before, {mean_after:.6g} after: z = {z:.2f}, limit {Z_LIMIT}"
    return Verdict(abs(z) <= Z_LIMIT, reason, len(after))


def _mean(values: list[float]) -> tuple[float, float]:
    """Mean and its squared-unbiased standard error, sqrt(s^2 / n)."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
