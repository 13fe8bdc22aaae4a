"""L1. What a restart may change: one table of rules, one pure decision that gives its reasons."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from durable_core.errors import SpecMismatchError
from durable_core.spec.canonical import flatten
from durable_core.spec.codec import later_fields
from durable_core.spec.model import RunSpec
from durable_core.types import Promise


class Rule(str, enum.Enum):
    """What a difference in a field means when a run is resumed."""

    IDENTITY = "is the run: a difference needs a fork"
    NUMERIC = "changes the numbers, not the order: a difference needs a fork while the promise is bitwise"
    PROMISE = "may be asked for weaker, never stronger"
    EXTENDS = "an end may move on or be dropped, and may be set where there was none"
    JOURNAL = "the journal's value wins; another one in the script is only warned about"
    FREE = "may change at any restart"


_LATER = later_fields()
_STEPS = "target.max_steps"

#: the longest matching prefix decides; a field without a rule is identity
FIELD_RULES: Mapping[str, Rule] = {
    "v": Rule.FREE,
    "run_key": Rule.IDENTITY,
    "promise": Rule.PROMISE,
    "seed": Rule.JOURNAL,
    "model": Rule.IDENTITY,
    "optimizer": Rule.IDENTITY,
    "data": Rule.IDENTITY,
    "data.num_workers": Rule.FREE,
    "precision": Rule.IDENTITY,
    "roles": Rule.NUMERIC,
    "accumulation": Rule.NUMERIC,
    "target": Rule.EXTENDS,
    "checkpoint": Rule.FREE,
    "cancel_authority": Rule.JOURNAL,
    "algorithms": Rule.IDENTITY,
    "provenance": Rule.FREE,
    "accept_distribution": Rule.FREE,
    "reason": Rule.FREE,
    "parent_spec": Rule.FREE,
    "owner": Rule.FREE,
    "membership": Rule.NUMERIC,
    "parallel": Rule.NUMERIC,
    "parallel.placement": Rule.FREE,
    "batch": Rule.IDENTITY,
    "determinism": Rule.NUMERIC,
    "recovery": Rule.FREE,
    "failure": Rule.FREE,
    "budgets": Rule.FREE,
    "security": Rule.FREE,
    "observability": Rule.FREE,
    "output": Rule.FREE,
}


def rule_of(name: str) -> Rule:
    """The rule for a dotted field name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        rule = FIELD_RULES.get(".".join(parts[:length]))
        if rule is not None:
            return rule
    return Rule.IDENTITY


@dataclass(frozen=True)
class Comparison:
    """Dotted field names by what is to be done about them; ``reasons`` has a sentence for each."""

    refused: tuple[str, ...]
    extended: tuple[str, ...]
    warned: tuple[str, ...]
    lowered: Promise | None
    free: tuple[str, ...]
    reasons: Mapping[str, str]

    @property
    def same_run(self) -> bool:
        return not self.refused


def compare(run: RunSpec, script: RunSpec, *, at: int = 0) -> Comparison:
    """What it means that a script now derives ``script`` for a run that was created as ``run`` and is at
    step ``at``. Pure."""
    groups: dict[str, list[str]] = {"refused": [], "extended": [], "warned": [], "free": []}
    reasons: dict[str, str] = {}
    was, now = flatten(run.to_json()), flatten(script.to_json())
    weaker = min(run.promise, script.promise, key=lambda promise: promise.strength)
    for name in run.diff(script):
        rule = rule_of(name)
        old, new, why = was.get(name), now.get(name), rule.value
        if _section(name) and not (_says(was, name) and _says(now, name)):
            group = "free"
        elif rule is Rule.EXTENDS:
            group, why = _end(name, old, new, at)
        else:
            group = _group(rule, old, new, weaker)
        groups[group].append(name)
        reasons[name] = f"{name}: {old!r} -> {new!r} ({why})"
    return Comparison(
        refused=tuple(groups["refused"]),
        extended=tuple(groups["extended"]),
        warned=tuple(groups["warned"]),
        lowered=weaker if weaker is not run.promise else None,
        free=tuple(groups["free"]),
        reasons=reasons,
    )


def _section(name: str) -> str:
    """The later field (``codec.later_fields``) that a dotted name is or lies in; ``""``: none."""
    return next((each for each in _LATER if name == each or name.startswith(each + ".")), "")


def is_later(name: str) -> bool:
    """Whether a dotted name is of what only a run file declares."""
    return bool(_section(name))


def _says(flat: Mapping[str, Any], name: str) -> bool:
    """A run that was begun without a run file, or is resumed by hand, says nothing against one."""
    section = _section(name)
    return any(each == section or each.startswith(section + ".") for each in flat)


def _end(name: str, was: int | None, now: int | None, at: int) -> tuple[str, str]:
    """The group of another end, and why. Only steps can be compared with where the run is."""
    if now is None:
        return "extended", "it has no end any more"
    steps = name == _STEPS
    if steps and now < at:
        return "refused", f"the run is at step {at} already"
    if was is not None and now < was:
        return "refused", "may grow; a smaller one needs a fork"
    if steps:
        return ("free" if now == at else "extended"), f"the run goes on to there from step {at}"
    if was is None:
        return "refused", "an end in epochs where there was none needs a fork"
    return "extended", "it may grow"


def _group(rule: Rule, was: Any, now: Any, promise: Promise) -> str:
    if rule is Rule.FREE:
        return "free"
    if rule is Rule.JOURNAL:
        return "warned"
    if rule is Rule.NUMERIC:
        return "refused" if promise is Promise.BITWISE else "free"
    if rule is Rule.PROMISE:
        return "free" if Promise(was).implies(Promise(now)) else "refused"
    return "refused"


def check_resume(run: RunSpec, script: RunSpec, *, at: int = 0) -> Comparison:
    """``compare``, or ``SpecMismatchError`` listing every field that makes it another run."""
    comparison = compare(run, script, at=at)
    if not comparison.same_run:
        listed = "; ".join(comparison.reasons[name] for name in comparison.refused)
        raise SpecMismatchError(
            f"the script no longer describes this run: {listed}",
            fields=comparison.refused,
            hint=_way_out(comparison.refused, script, at),
        )
    return comparison


def _way_out(refused: tuple[str, ...], script: RunSpec, at: int) -> str:
    end = script.target.max_steps
    if refused == (_STEPS,) and end is not None and end < at:  # a fork would begin behind its end
        return f"say {at} or more, leave it as it was, or use another root"
    if all(rule_of(name) is Rule.NUMERIC for name in refused):
        return 'put it back, or go on with promise="exact-order": the same samples, sums may round otherwise'
    return 'put it back, use another root, or fork on purpose with resume="fork"'
