"""Hosts that remember: a hundred schedules, and bugs planted in the adoption of what they remember.

The full figures come from ``python -m durable_core.testing.simulate --adoption 10000 --plants``.
"""

from __future__ import annotations

from collections import Counter

import pytest

from durable_core.testing.planted_adoption import ADOPTION_PLANTS, unheard
from durable_core.testing.sim.harbour import MemoryWorld
from durable_core.testing.sim.memory import Memory, Pool, newest_common, reusable
from durable_core.testing.sim.subject import Subject
from durable_core.testing.simulate import main
from durable_core.testing.simulator import search

#: Plants that need many seeds are left to the command.
QUICK = [plant for plant in ADOPTION_PLANTS if plant.seeds <= 100]


def test_no_schedule_with_memory_violates_an_invariant():
    total: Counter[str] = Counter()
    for seed in range(60):
        world = MemoryWorld(seed).run()
        assert world.violations == [], (seed, world.violations)
        total.update(world.counts())
    assert total["adopted"] > 10 and total["snapshots sealed"] > 300 and total["killed"] > 50
    assert total["adoptions declined"] > 20 and total["snapshots skipped"] > 20


def test_one_seed_is_one_schedule():
    first, second = MemoryWorld(3, trace=True).run(), MemoryWorld(3, trace=True).run()
    assert first.log == second.log and any("has sealed step" in line for line in first.log)


def test_an_adoption_that_nothing_is_heard_of_ends_the_process():
    """Its commit may still arrive, so nobody may train as if it would not."""
    worlds = [MemoryWorld(seed, Subject(wrap=unheard)).run() for seed in range(30)]
    assert [world.violations for world in worlds if any("holds" in v for v in world.violations)] == []


@pytest.mark.parametrize("plant", QUICK, ids=lambda plant: plant.subject.name)
def test_planted_bugs_are_found(plant):
    assert search(range(plant.seeds), plant.subject, plant.sign, MemoryWorld) is not None


def test_a_slot_is_filled_anew_only_when_all_have_sealed_a_newer_step():
    pool = Pool(Memory(), "host", 1, 2)
    first, second = pool.acquire(None, reusable), pool.acquire(None, reusable)
    assert first is not None and second is not None and pool.acquire(9, reusable) is None
    assert newest_common([{3, 5}, {3, 4}]) == 3
    assert newest_common([{3, 5}, {4}]) is None and newest_common([{7}]) == 7


def test_the_command_runs_schedules_with_memory(capsys):
    assert main(["--adoption", "2"]) == 0
    assert "2 seeds, 0 with violations" in capsys.readouterr().out
    assert main(["--adoption", "1", "--seed", "3", "--trace"]) == 0
    assert "has sealed step" in capsys.readouterr().out
