"""L5. What a run spec declares, in the terms of those who decide. Pure."""

from __future__ import annotations

from dataclasses import replace

from durable_core.launch.classes import F, Unit
from durable_core.launch.invariants import Terms
from durable_core.launch.retry import Policy
from durable_core.spec import Budgets, RunSpec

_DEFAULT = Policy()


def policy(spec: RunSpec) -> Policy:
    """How often and how quickly the run is started again. What the spec leaves open is the launcher's own."""
    failure = spec.failure
    return Policy(
        restarts=_DEFAULT.restarts if failure.max_restarts is None else failure.max_restarts,
        budgets={F(name): int(value or 0) for name, value in failure.retries},
        backoff_s=failure.backoff_seconds,
        backoff_max_s=failure.backoff_max_seconds,
        repeats_elsewhere=failure.repeat_threshold,
        limits=limits(spec.budgets),
        declared=failure.max_restarts is not None,
        quarantine=permitted(spec),
    )


def permitted(spec: RunSpec) -> frozenset[Unit]:
    """What may be left out without asking. A domain is its nodes, and which checkpoint is restored is never
    asked."""
    named = {Unit(name) for name in spec.failure.quarantine}
    return frozenset(named | {Unit.CHECKPOINT} | ({Unit.DOMAIN} if Unit.NODE in named else set()))


def terms(spec: RunSpec, given: Terms) -> Terms:
    """What the controller holds a run to; ``given`` for what the spec leaves open.

    Of goals for several domains the loosest counts, and none for ``process``: what its memory keeps is seen
    by the workers alone, and they watch every single goal themselves.
    """
    goals = [goal for goal in spec.recovery.goals if goal.domain != "process"]
    steps = [goal.rpo_steps for goal in goals if goal.rpo_steps is not None]
    seconds = [goal.rpo_seconds for goal in goals if goal.rpo_seconds is not None]
    return replace(
        given,
        probation_steps=max(given.probation_steps, spec.recovery.probation_steps),
        rpo_steps=max(steps, default=None),
        rpo_s=max(seconds, default=None),
        quarantine=permitted(spec),
    )


def limits(budgets: Budgets) -> dict[str, float]:
    """The budgets that are declared, by the names that ``spent`` uses."""
    declared = {
        "device_hours": budgets.device_hours,
        "wall_s": budgets.wall_seconds,
        "cost": budgets.cost,
        "failures": budgets.failures,
        "lost_steps": budgets.lost_steps,
    }
    return {name: float(value) for name, value in declared.items() if value is not None}


def spent(
    budgets: Budgets, *, device_hours: float, wall_seconds: float, failures: int, lost_steps: int
) -> dict[str, float]:
    """What is held against the limits. ``device_hours``: devices held times hours, idle ones too;
    ``wall_seconds``: that it had workers; ``failures``: charged ones in the life of the run;
    ``lost_steps``: trained and then lost to a restart, over all of them."""
    return {
        "device_hours": device_hours,
        "wall_s": wall_seconds,
        "cost": device_hours * (budgets.device_hour_price or 0.0),
        "failures": float(failures),
        "lost_steps": float(lost_steps),
    }
