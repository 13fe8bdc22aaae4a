"""What a long run under random faults is held to: the schedule, where its time went, what was to expect."""

from __future__ import annotations

import random

import pytest

from durable_core.testing.drills.chaos import FAULTS, Waste, predicted, schedule, wasted
from durable_core.testing.drills.orders import Mark


def lived(pid: int, first: int, last: int, begin: float, step_s: float = 0.1) -> list[Mark]:
    """Steps ``first`` to ``last`` of one process, the first of them done at ``begin``."""
    return [Mark(begin + step_s * (step - first), "step", 0, pid, 1, step) for step in range(first, last + 1)]


def test_one_seed_is_one_schedule() -> None:
    one = schedule(1, mean_s=60.0, total_s=900.0, ranks=2)
    assert one == schedule(1, mean_s=60.0, total_s=900.0, ranks=2)
    assert one != schedule(2, mean_s=60.0, total_s=900.0, ranks=2)
    assert {fault.kind for fault in schedule(1, mean_s=1.0, total_s=900.0, ranks=2)} == set(FAULTS)
    assert all(fault.at_s < 900.0 and fault.rank in (0, 1) for fault in one)


def test_faults_come_as_often_as_is_said() -> None:
    counts = [len(schedule(seed, mean_s=60.0, total_s=900.0, ranks=2)) for seed in range(400)]
    assert abs(sum(counts) / 400 - 15.0) < 4 * (15.0 / 400) ** 0.5


def test_time_is_trained_lost_or_spent_on_recovering() -> None:
    marks = [*lived(1, 1, 25, 0.0), *lived(2, 21, 40, 5.0)]  # 5 steps were undone
    found = wasted(marks)
    assert found.lost == pytest.approx(0.5) and found.down == pytest.approx(2.6)
    assert found.trained == pytest.approx(3.8) and found.downs == ((pytest.approx(2.4), pytest.approx(2.6)),)
    assert found.total == pytest.approx(found.trained + found.lost + found.down)


def test_a_recovery_into_which_a_second_fault_fell_says_nothing_of_recoveries() -> None:
    waste = Waste(100.0, 1.0, 9.0, 110.0, ((10.0, 2.0), (20.0, 3.0), (30.0, 4.0)))
    fell = [(10.1, "worker"), (20.1, "worker"), (30.1, "worker"), (31.0, "launcher"), (11.0, "controller")]
    _, model = predicted(waste, fell, mean_s=60.0, interval_s=2.0, lag_s=0.1)
    assert model["restart"] == pytest.approx(2.5)
    assert 0 < model["restart_sigma"] < 1


def test_a_run_as_the_model_has_it_is_within_its_bounds_and_one_that_loses_more_is_not() -> None:
    chance, far = random.Random(3), []
    for _ in range(40):
        good = drawn(chance, lost_to_s=2.0)
        found, _ = predicted(good, (), mean_s=60.0, interval_s=2.0, lag_s=0.0)
        far.append(abs(found.z(good.share)))
    assert sum(z > 3.0 for z in far) <= 2
    bad = drawn(chance, lost_to_s=100.0)
    found, _ = predicted(bad, (), mean_s=60.0, interval_s=2.0, lag_s=0.0)
    assert found.z(bad.share) > 3.0


def drawn(chance: random.Random, lost_to_s: float, useful: float = 700.0) -> Waste:
    """One run: each fault takes 3 to 5 seconds, and up to ``lost_to_s`` of work."""
    whole = sum(FAULTS.values())
    mean = 60.0 * whole / (whole - FAULTS["controller"])
    downs, lost, wall = [], 0.0, 0.0
    while (wall := wall + chance.expovariate(1 / mean)) < useful + lost + sum(spent for _, spent in downs):
        spent = chance.uniform(3.0, 5.0)
        downs.append((wall, spent))
        notice = chance.random() < FAULTS["notice"] / (whole - FAULTS["controller"])
        lost += 0.0 if notice else chance.uniform(0.0, lost_to_s)
    down = sum(spent for _, spent in downs)
    return Waste(useful, lost, down, useful + lost + down, tuple(downs))
