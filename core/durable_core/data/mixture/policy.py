"""L3. What a mixture is told to do, in exact integers, and how debt is carried when it is told otherwise.

A weight is a ratio of integers over one denominator, never a float: 0.1 is one tenth. *Debt* is what a
source is still owed: target minus actual, in the unit that is weighed, as an integer over that denominator.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, cast, get_args

from durable_core.data.numbers import whole
from durable_core.errors import FormatError, UsageError

Schedule = Literal["quota", "categorical"]
Unit = Literal["sample", "document", "packed", "token", "loss_token"]
Exhaustion = Literal["repeat", "stop", "renormalize", "error"]
Weight = str | int | float | Fraction
Weights = tuple[int, ...]
"""One integer per source; the sum is the denominator."""

NAMES: Mapping[Schedule, str] = {"quota": "quota_v1", "categorical": "categorical_v1"}
RESOLUTION = 1 << 20  # no denominator is smaller: debt is carried to a millionth of a draw
MAX_DENOMINATOR = 1 << 64  # keeps states small
_FAR = re.compile(r"[eE][+-]?[0-9_]{5,}")  # exponents beyond any use


@dataclass(frozen=True)
class Source:
    """One source as a policy knows it. ``size``: records in it."""

    name: str
    dataset_id: str
    size: int
    replacement: bool = False


@dataclass(frozen=True)
class Policy:
    """A mixture without its data. ``changes``: (first global batch, weights), in order.

    ``window`` (draws) is what deviations are measured over; it, like ``loss_weights``, draws nothing.
    """

    sources: tuple[Source, ...]
    weights: Weights
    schedule: Schedule = "quota"
    unit: Unit = "sample"
    exhaustion: Exhaustion = "repeat"
    changes: tuple[tuple[int, Weights], ...] = ()
    epoch_size: int | None = None
    window: int = 1000
    loss_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _check_choice("schedule", self.schedule, get_args(Schedule))
        _check_choice("unit", self.unit, get_args(Unit))
        _check_choice("exhaustion", self.exhaustion, get_args(Exhaustion))
        if self.epoch_size is not None:
            object.__setattr__(self, "epoch_size", whole("epoch_size", self.epoch_size, 1))
        object.__setattr__(self, "window", whole("window", self.window, 1))  # draws to measure over
        changes = tuple((whole("weight_schedule", at), weights) for at, weights in self.changes)
        object.__setattr__(self, "changes", changes)
        if [at for at, _ in self.changes] != sorted({at for at, _ in self.changes if at > 0}):
            raise UsageError(
                f"weight_schedule begins at global batches {[at for at, _ in self.changes]}; they must rise",
                hint="the first weights hold from batch 0; list later ones once each, in order",
            )
        for index, source in enumerate(self.sources):
            if not any(weights[index] for weights in (self.weights, *(new for _, new in self.changes))):
                raise UsageError(
                    f"source {source.name!r} has weight 0 and would never be drawn",
                    hint="leave it out, or give it a weight in weight_schedule",
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(source.name for source in self.sources)

    def weights_at(self, state: Mapping[str, Any]) -> Weights:
        """The weights in force in a sequence's state; all zero when every source that has one is gone."""
        weights, stage = self.weights, state["stage"]
        if "weights" in state:
            weights = tuple(state["weights"])
        elif stage:
            weights = self.changes[stage - 1][1]
        gone = {source for source, *_ in state.get("gone", ())}
        return normalised(0 if i in gone else weight for i, weight in enumerate(weights)) if gone else weights

    @property
    def counts_tokens(self) -> bool:
        """Whether a draw weighs as much as it has tokens, rather than one."""
        return self.unit in ("token", "loss_token")

    @property
    def digest(self) -> str:
        """``sha256:<hex>`` of all that decides what is drawn and what a sample is."""
        content = {key: value for key, value in self.to_json().items() if key != "window"}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        sources = [
            {"name": s.name, "dataset_id": s.dataset_id, "size": s.size, "replacement": s.replacement}
            for s in self.sources
        ]
        return {
            "name": NAMES[self.schedule],
            "unit": self.unit,
            "exhaustion": self.exhaustion,
            "sources": sources,
            "weights": list(self.weights),
            "changes": [[at, list(weights)] for at, weights in self.changes],
            "epoch_size": self.epoch_size,
            "window": self.window,
            "loss_weights": None if self.loss_weights is None else list(self.loss_weights),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Policy:
        """Raises ``FormatError`` for what ``to_json`` did not write."""
        try:
            schedule = {name: schedule for schedule, name in NAMES.items()}[value["name"]]
            loss_weights = value["loss_weights"]
            return cls(
                sources=tuple(Source(**source) for source in value["sources"]),
                weights=tuple(value["weights"]),
                schedule=schedule,
                unit=cast("Unit", value["unit"]),
                exhaustion=cast("Exhaustion", value["exhaustion"]),
                changes=tuple((at, tuple(weights)) for at, weights in value["changes"]),
                epoch_size=value["epoch_size"],
                window=value["window"],
                loss_weights=None if loss_weights is None else tuple(loss_weights),
            )
        except (KeyError, TypeError, ValueError, UsageError) as error:
            raise FormatError("mixture", f"{error!r} in {value!r:.200}") from error


def exact_weights(names: Ordered[str], given: Mapping[str, Weight]) -> Weights:
    """The weights of ``given`` in the order of ``names``, as integers over one denominator.

    Zero is a weight: the source is not drawn while it holds. Raises ``UsageError`` naming source and value.
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"weights are given by the names of the sources, not as {given!r:.80}")
    unknown = sorted(set(given) - set(names), key=repr)
    missing = sorted(set(names) - set(given))
    if unknown or missing:
        what = "; ".join(
            f"{text} {', '.join(map(repr, found))}"
            for text, found in (("no source is called", unknown), ("no weight is given for", missing))
            if found
        )
        raise UsageError(f"the weights do not match the sources: {what}")
    weights = [_exact(name, given[name]) for name in names]
    if not any(weights):
        raise UsageError(f"all weights are zero: {', '.join(names)}", hint="at least one must be positive")
    return normalised(weights)


def normalised(weights: Iterable[Fraction | int]) -> Weights:
    """Integers in the same ratio whose sum is at least ``RESOLUTION``; all zero if all are zero."""
    fractions = [Fraction(weight) for weight in weights]
    common = math.lcm(*(weight.denominator for weight in fractions))
    whole = [int(weight * common) for weight in fractions]
    divisor = math.gcd(*whole)
    if not divisor:
        return tuple(whole)
    total = sum(whole) // divisor
    if total > MAX_DENOMINATOR:
        bits = total.bit_length()
        shown = f"more than 2^{bits - 1}" if bits > 256 else total
        raise UsageError(
            f"the weights need a common denominator of {shown}, above {MAX_DENOMINATOR}",
            hint="round them, for example to six places",
        )
    factor = -(-RESOLUTION // total)
    return tuple(weight // divisor * factor for weight in whole)


def carry(debts: Ordered[int], before: Weights, after: Weights) -> list[int]:
    """Debts over the denominator of other weights. They sum to zero before and after.

    A source keeps its debt. One whose weight becomes zero loses it, and what it lost is shared out
    among the rest by their new weights, which leaves their ratios to one another as they were due. The
    result is rounded to the new denominator by largest remainder, ties by index: a millionth of a draw.
    """
    old, new = sum(before), sum(after)
    if not old or not new:  # nothing was drawn, or nothing will be
        return [0] * len(debts)
    lost = sum(debt for debt, weight in zip(debts, after, strict=True) if not weight)
    exact = [debt * new + lost * weight if weight else 0 for debt, weight in zip(debts, after, strict=True)]
    rounded = [value // old for value in exact]
    missing = -sum(rounded)
    for i in sorted(range(len(exact)), key=lambda i: (-(exact[i] % old), i))[:missing]:
        rounded[i] += 1
    return rounded


def settle(debts: Ordered[int], weights: Weights, amounts: Ordered[int]) -> list[int]:
    """Debts after ``amounts`` units came from each source: each is owed its share of them all."""
    total, units = sum(weights), sum(amounts)
    return [
        debt + weight * units - total * amount
        for debt, weight, amount in zip(debts, weights, amounts, strict=True)
    ]


def _exact(name: str, value: Weight) -> Fraction:
    try:
        if isinstance(value, bool):
            raise ValueError("a truth value is not a weight")
        text = str(value)  # a float through its decimal text: 0.1 is one tenth
        if _FAR.search(text):
            raise ValueError("all of its zeros would be written out")
        weight = Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(
            f"the weight of source {name!r} is {value!r}, which is not a finite number",
            hint="give a number, a Fraction, or text such as '0.3' or '1/3'",
        ) from error
    if weight < 0:
        raise UsageError(f"the weight of source {name!r} is {value!r}, which is negative")
    return weight


def _check_choice(what: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{what} {value!r} is not one of {', '.join(known)}")
