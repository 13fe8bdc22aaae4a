"""A few hundred schedules, zombies, and bugs planted to see whether they are found.

The full figures come from ``python -m durable_core.testing.simulate``; this is the short version.
"""

from __future__ import annotations

import pytest

from durable_core.testing.planted import PLANTS
from durable_core.testing.sim.world import World
from durable_core.testing.sim.zombies import ZombieWorld
from durable_core.testing.simulate import main
from durable_core.testing.simulator import run_seed, search

#: Plants that need hundreds of seeds are left to the command.
QUICK = [plant for plant in PLANTS if plant.seeds <= 100]


@pytest.mark.parametrize("block", range(5))
def test_no_schedule_violates_an_invariant(block):
    finding = search(range(40 * block, 40 * block + 40))
    assert finding is None, finding


def test_schedules_contain_what_they_are_for():
    total: dict[str, int] = {}
    for seed in range(1000, 1030):
        for name, count in run_seed(seed).counts().items():
            total[name] = total.get(name, 0) + count
    assert total["generations"] > 45 and total["committed"] > 80
    assert total["killed"] > 20 and total["refused"] > 10 and total["retired"] > 20


def test_one_seed_is_one_schedule():
    first, second = run_seed(3, trace=True), run_seed(3, trace=True)
    assert first.log == second.log and len(first.log) > 50
    assert run_seed(4, trace=True).log != first.log


def test_no_zombie_is_believed():
    worlds = [ZombieWorld(seed).run() for seed in range(100)]
    assert sum(world.accepted for world in worlds) == 0
    assert [world.violations for world in worlds if world.violations] == []
    assert sum(world.refused_zombies for world in worlds) > 50


@pytest.mark.parametrize("plant", QUICK, ids=lambda plant: plant.subject.name)
def test_planted_bugs_are_found(plant):
    assert search(range(plant.seeds), plant.subject, plant.sign) is not None


def test_the_command_tells_one_schedule(capsys):
    assert main(["--seed", "3", "--trace"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("job 0 starts as launch-0")


def test_a_violation_ends_the_command_with_one(capsys, monkeypatch):
    monkeypatch.setattr(World, "violations", property(lambda world: ["something is lost"]))
    assert main(["--seeds", "1"]) == 1
    assert "seed 0: something is lost" in capsys.readouterr().out
