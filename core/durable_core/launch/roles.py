"""L5. Starting one role anew while the others go on (SCHED-08): what may be rebuilt, in which order.

The spec lists, for each role that may be repaired, which communicators and which state are built again. The
plan touches nothing else; a role that is not listed means a restart of the whole group. Taking a rank out of
a live collective is not done here: whoever implements ``RoleRepairer`` has communicators that can be rebuilt
(a reward model behind a queue, an evaluator); for the others there is the group restart.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from durable_core.errors import UnsupportedError, UsageError
from durable_core.spec import Membership


class Act(str, enum.Enum):
    STOP = "stop"  # the members of the role; what is dead already stays so
    ABORT = "abort"  # a communicator: whoever waits in it comes out
    START = "start"  # new members
    REBUILD = "rebuild"  # the communicator, with the new members in it
    LOAD = "load"  # a part of the state, from the run's restore point


@dataclass(frozen=True)
class Step:
    """``op_id``: the same for the same step of the same repair, whoever carries it out."""

    op_id: str
    act: Act
    on: str


@dataclass(frozen=True)
class RepairPlan:
    """``untouched``: roles that must not notice more than a wait."""

    role: str
    steps: tuple[Step, ...]
    untouched: tuple[str, ...]


class RoleRepairer(Protocol):
    """Carries out one step. Each is idempotent: done twice under one ``op_id`` it has happened once."""

    def carry_out(self, step: Step) -> None: ...


def plan(membership: Membership, role: str, roles: tuple[str, ...], *, incident: str) -> RepairPlan:
    """How ``role`` is repaired. ``incident`` names the failure: it makes the op_ids.

    ``UnsupportedError`` when the membership does not allow it: the group is to be restarted as a whole.
    """
    if role not in roles:
        raise UsageError(f"{role!r} is none of the roles {', '.join(roles)}")
    allowed = next((each for each in membership.role_repair if each.role == role), None)
    if allowed is None:
        repairable = ", ".join(each.role for each in membership.role_repair) or "none"
        raise UnsupportedError(
            f"role {role!r} may not be started anew by itself (repairable: {repairable})",
            hint="restart the whole group",
        )
    acts = [
        (Act.STOP, role),
        *((Act.ABORT, name) for name in allowed.communicators),
        (Act.START, role),
        *((Act.REBUILD, name) for name in allowed.communicators),
        *((Act.LOAD, name) for name in allowed.state),
    ]
    steps = (Step(f"{incident}/{number}:{act.value}:{on}", act, on) for number, (act, on) in enumerate(acts))
    return RepairPlan(role, tuple(steps), tuple(each for each in roles if each != role))


def carry_out(
    plan: RepairPlan, repairer: RoleRepairer, done: Callable[[str], bool] = lambda _: False
) -> None:
    """Every step in order. ``done(op_id)``: what a predecessor is known to have finished; what it may have
    finished without anybody knowing is done again, under the same op_id."""
    for step in plan.steps:
        if not done(step.op_id):
            repairer.carry_out(step)
