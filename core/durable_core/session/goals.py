"""L5. Whether the tiers can do what the goals (``spec.goals``) ask for, with the arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from durable_core.errors import UsageError
from durable_core.spec.goals import DOMAINS, FATES, Goal
from durable_core.types import Traits

_SURVIVES: Mapping[str, frozenset[str]] = {
    "memory": frozenset({"process"}),
    "peer": frozenset({"process", "host"}),
    "disk": frozenset({"process"}),
    "remote": frozenset({"process", "host", "rack", "cluster"}),
}


def default_traits(name: str) -> Traits:
    """What a tier of that name is good for unless it is declared.

    A peer stands on another host, though perhaps in the same rack. A disk is this host's own: a file system
    of the cluster has to be declared. No shared fate is assumed. ``UsageError`` for another name.
    """
    if name not in _SURVIVES:
        raise UsageError(
            f"tier {name!r} has no traits", hint="declare them, or name it " + ", ".join(_SURVIVES)
        )
    return Traits(_SURVIVES[name])


def check_traits(name: str, traits: Traits) -> None:
    """``UsageError`` when ``traits`` name a domain or a fate that is none."""
    for field_name, given, known in (
        ("survives", traits.survives, DOMAINS),
        ("shares_fate", traits.shares_fate, FATES),
    ):
        if unknown := sorted(given - set(known)):
            raise UsageError(f"tier {name}: {field_name} {unknown}", hint="known: " + ", ".join(known))
    if traits.every < 1 or (traits.keep is not None and traits.keep < 1):
        raise UsageError(f"tier {name}: every={traits.every}, keep={traits.keep}", hint="at least 1")


def outlives(traits: Traits, domain: str) -> bool:
    """Whether what lies in a tier can still be read when ``domain`` is lost.

    Losing a fate destroys no bytes: every tier that does not share it is still there.
    """
    return domain not in traits.shares_fate if domain in FATES else domain in traits.survives


def serving(domain: str, tiers: Mapping[str, Traits]) -> str | None:
    """The first of ``tiers``, in their order of speed, that outlives ``domain``: failures of that domain
    are recovered from it."""
    return next((name for name, traits in tiers.items() if outlives(traits, domain)), None)


def failure_rates(by_domain: Mapping[str, float], tiers: Mapping[str, Traits]) -> dict[str, float]:
    """``Lambda_i``: the rate of the failures that each tier recovers, from the rate of each domain."""
    rates = dict.fromkeys(tiers, 0.0)
    for domain, rate in by_domain.items():
        name = serving(domain, tiers)
        if name is not None:
            rates[name] += rate
    return rates


# --- feasibility -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """What the arithmetic rests on: measured, or assumed at the start of a run.

    ``state_bytes``: of one complete checkpoint (a host's part of it, for a tier of that host).
    ``every_steps``: between two checkpoints; ``steps_of``: for a tier with a cadence of its own.
    ``lag_seconds``: p99 from the boundary to recoverable, by tier; where it is not given, the time its
    bandwidth takes; where that is not declared, nothing: the check refuses what cannot work, the monitor
    watches what might not. The rest are the parts of the RTO that do not depend on the tier.
    """

    state_bytes: int
    step_seconds: float
    every_steps: int = 1
    steps_of: Mapping[str, int] = field(default_factory=dict)
    lag_seconds: Mapping[str, float] = field(default_factory=dict)
    detection_seconds: float = 0.0
    requeue_seconds: float = 0.0
    rendezvous_seconds: float = 0.0
    verify_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.state_bytes < 0 or not self.step_seconds > 0 or self.every_steps < 1:
            raise UsageError(
                f"state_bytes={self.state_bytes}, step_seconds={self.step_seconds}, "
                f"every_steps={self.every_steps}",
                hint="sizes must not be negative, times positive, intervals at least one step",
            )


@dataclass(frozen=True)
class Finding:
    """One goal: the ``tier`` that meets it (``None``: none does) and the arithmetic, a line for each tier."""

    goal: Goal
    tier: str | None
    arithmetic: tuple[str, ...]

    @property
    def met(self) -> bool:
        return self.tier is not None


@dataclass(frozen=True)
class Verdict:
    findings: tuple[Finding, ...]

    @property
    def feasible(self) -> bool:
        return all(finding.met for finding in self.findings)

    def goals_of(self, tier: str) -> tuple[Goal, ...]:
        """The goals that ``tier`` meets: its cadence has to keep their recovery points."""
        return tuple(finding.goal for finding in self.findings if finding.tier == tier)

    def explain(self) -> str:
        """A paragraph for each goal, the unmet ones first."""
        ordered = sorted(self.findings, key=lambda finding: finding.met)
        return "\n".join(
            f"{finding.goal.domain}: " + (f"met by {finding.tier}" if finding.met else "NOT MET")
            + "".join(f"\n  {line}" for line in finding.arithmetic)
            for finding in ordered
        )  # fmt: skip

    def require(self) -> None:
        """``UsageError`` with the arithmetic of what cannot be met."""
        if not self.feasible:
            unmet = Verdict(tuple(finding for finding in self.findings if not finding.met))
            raise UsageError(
                "the tiers cannot meet these goals:\n" + unmet.explain(),
                hint="save more often, add a tier that survives it, or relax the goal",
            )


def feasible(
    goals: Iterable[Goal], tiers: Mapping[str, Traits], figures: Figures, *, home: str | None = None
) -> Verdict:
    """Whether each goal is met by some tier (TIER-05), fastest first in ``tiers``.

    A tier meets a goal when it outlives the domain, holds the state, ``T + L <= RPO`` and
    ``detection + requeue + rendezvous + bytes / bandwidth + verify <= RTO``. ``home``: the tier in which the
    journal and the documents lie; nothing is restored without them, so it must outlive the domain too.
    """
    for name, traits in tiers.items():
        check_traits(name, traits)
    if home is not None and home not in tiers:
        raise UsageError(f"home={home!r}", hint="one of " + ", ".join(tiers))
    return Verdict(tuple(_find(goal, tiers, figures, home) for goal in goals))


def _find(goal: Goal, tiers: Mapping[str, Traits], figures: Figures, home: str | None) -> Finding:
    if home is not None and not outlives(tiers[home], goal.domain):
        return Finding(goal, None, (f"the journal is in {home}, which {_fate(tiers[home], goal.domain)}",))
    lines: list[str] = []
    for name, traits in tiers.items():
        failed, line = _weigh(goal, name, traits, figures)
        lines.append(f"{name}: {line}")
        if not failed:
            return Finding(goal, name, tuple(lines))
    return Finding(goal, None, tuple(lines) or ("there is no tier",))


def _fate(traits: Traits, domain: str) -> str:
    if domain in traits.shares_fate:
        return f"shares the fate of the {domain}"
    return f"survives {', '.join(sorted(traits.survives)) or 'nothing'}, not {domain}"


def _weigh(goal: Goal, name: str, traits: Traits, figures: Figures) -> tuple[bool, str]:
    """Whether the tier fails the goal, and the arithmetic."""
    if not outlives(traits, goal.domain):
        return True, _fate(traits, goal.domain)
    held = figures.state_bytes * (traits.keep or 1)
    if traits.capacity_bytes is not None and held > traits.capacity_bytes:
        return True, f"{held} bytes do not fit in {traits.capacity_bytes}"
    verdicts = [
        *([_weigh_rpo(goal, name, traits, figures)] if goal.rpo_steps or goal.rpo_seconds else []),
        *([_weigh_rto(goal.rto_seconds, traits, figures)] if goal.rto_seconds else []),
    ]
    return any(failed for failed, _ in verdicts), "; ".join(line for _, line in verdicts)


def _weigh_rpo(goal: Goal, name: str, traits: Traits, figures: Figures) -> tuple[bool, str]:
    """Just before the next copy is whole, the newest is one interval and the lag old. In seconds the step
    under way is lost as well; in steps it never counted."""
    lag = figures.lag_seconds.get(name, _load_seconds(traits, figures))
    note = "" if name in figures.lag_seconds or traits.bytes_per_second else ", bandwidth not declared"
    every = figures.steps_of.get(name, figures.every_steps * traits.every)
    lines, failed = [], False
    if goal.rpo_steps is not None:
        worst = every + math.floor(lag / figures.step_seconds)
        failed |= worst > goal.rpo_steps
        lines.append(
            f"RPO {every} + {worst - every} (lag {lag:.3g} s{note}) = {worst} steps"
            f"{_sign(worst, goal.rpo_steps)}"
        )
    if goal.rpo_seconds is not None:
        step = figures.step_seconds
        seconds = every * step + lag + step
        failed |= seconds > goal.rpo_seconds
        lines.append(
            f"RPO T {every * step:.4g} + L {lag:.3g}{note} + step {step:.3g} = "
            f"{seconds:.4g} s{_sign(seconds, goal.rpo_seconds)}"
        )
    return failed, ", ".join(lines)


def _weigh_rto(goal: float, traits: Traits, figures: Figures) -> tuple[bool, str]:
    parts = {
        "detection": figures.detection_seconds,
        "requeue": figures.requeue_seconds,
        "rendezvous": figures.rendezvous_seconds,
        "load": _load_seconds(traits, figures),
        "verify": figures.verify_seconds,
    }
    total = sum(parts.values())
    terms = " + ".join(f"{name} {seconds:.3g}" for name, seconds in parts.items())
    terms += "" if traits.bytes_per_second else " (bandwidth not declared)"
    return total > goal, f"RTO {terms} = {total:.4g} s{_sign(total, goal)}"


def _load_seconds(traits: Traits, figures: Figures) -> float:
    """Unknown counts as nothing: what cannot be shown to fail is left to the monitor."""
    return figures.state_bytes / traits.bytes_per_second if traits.bytes_per_second else 0.0


def _sign(value: float, bound: float) -> str:
    return f" > {bound:g}" if value > bound else f" <= {bound:g}"
