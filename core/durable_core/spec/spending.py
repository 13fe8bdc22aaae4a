"""L1. What a run has used up against what it may (SPEC-05). Pure: the figures come from whoever counts."""

from __future__ import annotations

from dataclasses import dataclass

from durable_core.spec.sections import Budgets


@dataclass(frozen=True)
class Spent:
    """``device_hours``: devices held times hours, idle ones too. ``wall_seconds``: since the run was created.
    ``failures``: charged ones; ``lost_steps``: trained and then lost to a restart, over all of them."""

    device_hours: float = 0.0
    wall_seconds: float = 0.0
    failures: int = 0
    lost_steps: int = 0


@dataclass(frozen=True)
class Excess:
    """``reason``: ``budget_exceeded:<name>``, as a terminal record has it."""

    name: str
    spent: float
    budget: float

    @property
    def reason(self) -> str:
        return f"budget_exceeded:{self.name}"

    def __str__(self) -> str:
        return f"{self.reason}: {self.spent:g} of {self.budget:g}"


def exceeded(budgets: Budgets, spent: Spent) -> tuple[Excess, ...]:
    """Every budget that is used up beyond what was declared; exactly used up is not beyond."""
    cost = None if budgets.device_hour_price is None else spent.device_hours * budgets.device_hour_price
    pairs = (
        ("device_hours", spent.device_hours, budgets.device_hours),
        ("wall_seconds", spent.wall_seconds, budgets.wall_seconds),
        ("cost", cost, budgets.cost),
        ("failures", spent.failures, budgets.failures),
        ("lost_steps", spent.lost_steps, budgets.lost_steps),
    )
    return tuple(
        Excess(name, used, budget)
        for name, used, budget in pairs
        if used is not None and budget is not None and used > budget
    )
