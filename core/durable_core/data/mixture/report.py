"""L3. What a mixture was to draw and what it drew: reports from a state, alarms from counts. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from durable_core.data.mixture.policy import NAMES, Policy, Weights
from durable_core.data.mixture.quota import limit
from durable_core.data.mixture.state import check_state
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
    check_state(policy, state)
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


def check_between(policy: Policy, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Finding]:
    """Sources that strayed between two states of the mixture's sequence, and debts beyond their limit.

    The counts themselves are compared with the weights, so a fault in keeping debts does not hide one in
    drawing. Independent draws as in ``check_window``; quotas, of tokens as of draws: units - share beyond
    twice the limit in force, as debts at both ends are within it. Nothing can be said over a change of
    weights, nor of independent draws that are weighed by tokens.
    """
    before, after = _own(before), _own(after)
    findings = check_debts(policy, after)
    weights = policy.weights_at(after)
    if before["version"] != after["version"] or not any(weights):
        return findings
    window = sum(before["draws"]), sum(after["draws"])
    if "limit" in after:
        findings += _strayed(policy, weights, before, after, window)
    elif not policy.counts_tokens:
        draws = [b - a for a, b in zip(before["draws"], after["draws"], strict=True)]
        findings += check_window(policy, weights, draws, window)
    return findings


def _strayed(
    policy: Policy,
    weights: Weights,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    window: tuple[int, int],
) -> list[Finding]:
    """Quotas: the units of the window against the weights."""
    name = "units" if "units" in after else "draws"
    units = [b - a for a, b in zip(before[name], after[name], strict=True)]
    total, drawn = sum(weights), sum(units)
    allowed = 2 * after["limit"] / total
    scores = [abs(count - drawn * weight / total) for count, weight in zip(units, weights, strict=True)]
    return [
        Finding(source, window, drawn * weight / total, count, score, allowed)
        for source, weight, count, score in zip(policy.names, weights, units, scores, strict=True)
        if score > allowed
    ]


def mixture_in(position: Mapping[str, Any]) -> tuple[Policy, Mapping[str, Any]] | None:
    """The policy and the state of the mixture in a loader's ``state_dict()``, or in the cursor of a
    checkpoint's manifest, which is the same; None where none is read, or nothing was acknowledged yet.

    Raises ``FormatError`` for a mixture that is not one.
    """
    plan, source = position.get("plan"), position.get("source")
    while isinstance(plan, Mapping) and isinstance(plan.get("inner"), Mapping):
        plan = plan["inner"]
    if not isinstance(plan, Mapping) or plan.get("name") not in NAMES.values():
        return None
    state = source.get("state") if isinstance(source, Mapping) else None
    return None if state is None else (Policy.from_json(plan), _own(state))


def gone(policy: Policy, state: Mapping[str, Any]) -> dict[str, int]:
    """Sources that ran out and whose weight went to the others, by the draws each had had."""
    own = _own(state)
    return {policy.names[source]: own["draws"][source] for source, *_ in own.get("gone", ())}


def _own(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The mixture's state inside what stands around it."""
    while "debts" not in state:
        inner = state.get("sequence", state.get("inner"))
        if not isinstance(inner, Mapping):
            raise FormatError("mixture", f"no state of a mixture: {sorted(state)}")
        state = inner
    return state
