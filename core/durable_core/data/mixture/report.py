"""L3. What a mixture was to draw and what it drew: reports from a state, alarms from counts. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from durable_core.data.mixture.policy import Policy, Weights
from durable_core.data.mixture.quota import limit
from durable_core.data.order import Ids
from durable_core.errors import FormatError, UnsupportedError

Z_LIMIT = 4.0  # standard deviations: one false alarm in 16,000 windows and sources


@dataclass(frozen=True)
class SourceReport:
    """Of one source since the run began.

    ``target``: its share by the weights in force; ``share``: what it had of all units (tokens where those
    are weighed, else draws); ``deviation``: share - target, 0 before the first draw; ``debt``: units it is
    owed (negative: it is ahead), carried over changes of weights; ``epoch``: passes over it before this one.
    """

    target: float
    draws: int
    units: int
    share: float
    deviation: float
    debt: float
    epoch: int
    removed: bool


def report(policy: Policy, state: Mapping[str, Any]) -> dict[str, SourceReport]:
    """Target policy and actual counts by source, from a state of the mixture's sequence.

    The state may be wrapped: by a loader, or by packing, whose documents in hand (at most 256, taken
    and not all packed) do not count yet.
    """
    state = _own(state)
    weights = policy.weights_at(state)
    units = state.get("units", state["draws"])
    total, denominator = sum(units), sum(weights)
    gone = {source for source, *_ in state.get("gone", ())}
    reports = {}
    for i, name in enumerate(policy.names):
        target = weights[i] / denominator if denominator else 0.0
        share = units[i] / total if total else target
        debt = state["debts"][i] / denominator if denominator else 0.0
        epoch = state["lanes"][i][0]
        draws = state["draws"][i]
        reports[name] = SourceReport(target, draws, units[i], share, share - target, debt, epoch, i in gone)
    return reports


@dataclass(frozen=True)
class Finding:
    """A source that deviates more than it may. ``window``: [first, end) of draws; ``score`` > ``allowed``:
    standard deviations of independent draws, units of debt for quotas."""

    source: str
    window: tuple[int, int]
    expected: float
    observed: int
    score: float
    allowed: float

    def __str__(self) -> str:
        return (
            f"source {self.source!r} had {self.observed} in draws {self.window[0]} to {self.window[1]}, and "
            f"{self.expected:.1f} were due: off by {self.score:.2f}, where {self.allowed:.2f} is allowed"
        )


def check_window(
    policy: Policy, weights: Weights, counts: Sequence[int], window: tuple[int, int]
) -> list[Finding]:
    """Sources whose ``counts``, draws per source in ``window``, deviate from ``weights``.

    Independent draws: z = (N_i - H w_i) / sqrt(H w_i (1 - w_i)) beyond 4. Quotas: N_i - H w_i beyond the
    bound on debt for a window from draw 0, twice that for a later one: it is the difference of the debts at
    its two ends. Raises ``UnsupportedError`` for units of tokens, where draws are in no declared ratio.
    """
    if policy.counts_tokens:
        raise UnsupportedError(
            f"the draws of a mixture weighed by {policy.unit} are in no declared ratio",
            hint="compare the debts of its states with their limit: check_debts",
        )
    total, draws = sum(weights), sum(counts)
    bound = limit([0] * len(weights), weights) / total
    findings = []
    for name, weight, count in zip(policy.names, weights, counts, strict=True):
        score, allowed = abs(count * total - draws * weight) / total, bound if window[0] == 0 else 2 * bound
        if policy.schedule == "categorical":
            spread = math.sqrt(draws * weight * (total - weight)) / total
            score, allowed = (score / spread if spread else math.inf if score else 0.0), Z_LIMIT
        if score > allowed:
            findings.append(Finding(name, window, draws * weight / total, count, score, allowed))
    return findings


def check_draws(
    policy: Policy, sources: Ids, *, first: int = 0, weights: Weights | None = None
) -> list[Finding]:
    """``check_window`` over each whole window of ``policy.window`` draws.

    ``sources``: the source of each draw, in order, int64 [draws], while ``weights`` (else the first of the
    policy) held; ``first``: the number of draws before them.
    """
    findings, span = [], policy.window
    for begin in range(0, len(sources) - span + 1, span):
        counts = np.bincount(sources[begin : begin + span], minlength=len(policy.sources)).tolist()
        window = (first + begin, first + begin + span)
        findings += check_window(policy, weights or policy.weights, counts, window)
    return findings


def check_debts(policy: Policy, state: Mapping[str, Any]) -> list[Finding]:
    """Sources whose debt in a state of the mixture's sequence is beyond its limit: a fault, never chance."""
    state = _own(state)
    total, end = sum(policy.weights_at(state)), sum(state["draws"])
    if "limit" not in state or not total:
        return []
    units = state.get("units", state["draws"])
    return [
        Finding(name, (0, end), count + debt / total, count, abs(debt) / total, state["limit"] / total)
        for name, count, debt in zip(policy.names, units, state["debts"], strict=True)
        if abs(debt) > state["limit"]
    ]


def _own(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The mixture's state inside what stands around it."""
    while "debts" not in state:
        inner = state.get("sequence", state.get("inner"))
        if not isinstance(inner, Mapping):
            raise FormatError("mixture", f"no state of a mixture: {sorted(state)}")
        state = inner
    return state
