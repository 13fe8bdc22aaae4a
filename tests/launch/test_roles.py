"""Starting one role anew: what the spec allows, nothing else touched, every step at most once."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from durable_core.errors import UnsupportedError, UsageError
from durable_core.launch.roles import Act, Step, carry_out, plan
from durable_core.spec import Membership, RepairableRole

ROLES = ("actor", "reward", "critic")
REWARD = RepairableRole("reward", ("actor-reward", "critic-reward"), ("reward/weights",))
MEMBERSHIP = Membership(role_repair=(REWARD,))


class Killed(Exception):
    pass


@dataclass
class Simulated:
    """Roles as pids, communicators as epochs; an effect is applied once for an op_id."""

    pids: dict[str, int] = field(default_factory=lambda: {role: n for n, role in enumerate(ROLES)})
    epochs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REWARD.communicators, 0))
    loaded: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    acts: list[Act] = field(default_factory=list)
    dies_after: int = 1 << 30

    def carry_out(self, step: Step) -> None:
        if step.op_id not in self.seen:
            self.seen.add(step.op_id)
            self.acts.append(step.act)
            if step.act is Act.START:
                self.pids[step.on] += 100
            elif step.act is Act.REBUILD:
                self.epochs[step.on] += 1
            elif step.act is Act.LOAD:
                self.loaded.append(step.on)
        self.dies_after -= 1
        if self.dies_after == 0:
            raise Killed


def test_a_listed_role_is_started_anew_and_the_others_are_not_touched() -> None:
    world = Simulated()
    repair = plan(MEMBERSHIP, "reward", ROLES, incident="f17")
    carry_out(repair, world)
    assert world.pids == {"actor": 0, "reward": 101, "critic": 2}
    assert world.epochs == dict.fromkeys(REWARD.communicators, 1) and world.loaded == ["reward/weights"]
    assert {step.on for step in repair.steps}.isdisjoint(repair.untouched)
    order = [Act.STOP, Act.ABORT, Act.ABORT, Act.START, Act.REBUILD, Act.REBUILD, Act.LOAD]
    assert world.acts == order, "nobody is left waiting in a communicator when the new members come"


def test_a_role_that_is_not_listed_means_the_whole_group() -> None:
    with pytest.raises(UnsupportedError, match=r"'actor'.*repairable: reward"):
        plan(MEMBERSHIP, "actor", ROLES, incident="f17")
    with pytest.raises(UnsupportedError, match="none"):
        plan(Membership(fixed=3), "reward", ROLES, incident="f17")
    with pytest.raises(UsageError, match="nobody"):
        plan(MEMBERSHIP, "nobody", ROLES, incident="f17")


@pytest.mark.parametrize("after", range(1, 8))
def test_a_repair_that_dies_after_any_step_is_finished_by_the_next_one(after: int) -> None:
    world = Simulated(dies_after=after)
    repair = plan(MEMBERSHIP, "reward", ROLES, incident="f17")
    with pytest.raises(Killed):
        carry_out(repair, world)
    carry_out(repair, world)  # knows nothing: does everything again
    assert world.pids["reward"] == 101 and set(world.epochs.values()) == {1} and len(world.loaded) == 1
    carry_out(plan(MEMBERSHIP, "reward", ROLES, incident="f18"), world)
    assert world.pids["reward"] == 201, "another incident is another repair"


def test_what_is_known_to_be_done_is_not_done_again() -> None:
    world = Simulated()
    repair = plan(MEMBERSHIP, "reward", ROLES, incident="f17")
    carry_out(repair, world, lambda op_id: op_id != repair.steps[-1].op_id)
    assert world.acts == [Act.LOAD]
