"""Scheduled chaos with a clock of the test's own."""

from __future__ import annotations

import signal

import pytest
from controller_world import FakeClock

from durable_core.errors import UsageError
from durable_core.launch.chaos import Chaos, Scheduled

WEEK = 7 * 86400.0


def injections(chaos: Chaos, begin: float, end: float, tick: float) -> list[int]:
    """The periods in which faults happen under a launcher that looks every ``tick`` seconds."""
    found, last = [], begin
    while last < end:
        now = min(last + tick, end)
        if (period := chaos.due(last, now)) is not None:
            found.append(period)
        last = now
    return found


@pytest.mark.parametrize("seed", range(5))
def test_every_week_has_exactly_one_fault(seed: int) -> None:
    chaos = Chaos(WEEK, "run", seed)
    begin = 2900 * WEEK
    found = injections(chaos, begin, begin + 20 * WEEK, 3600.0)
    assert found == list(range(2900, 2920))


def test_the_instant_is_drawn_anew_each_week_and_the_same_when_replayed() -> None:
    chaos = Chaos(WEEK, "run")
    places = [chaos.instant(period) / WEEK - period for period in range(2000)]
    assert all(0 <= place < 1 for place in places)
    assert abs(sum(places) / 2000 - 0.5) < 0.03
    assert places == [Chaos(WEEK, "run").instant(period) / WEEK - period for period in range(2000)]
    assert places[:20] != [Chaos(WEEK, "other").instant(period) / WEEK - period for period in range(20)]


def test_a_restarted_launcher_neither_repeats_nor_forgets_the_fault_of_the_week() -> None:
    chaos = Chaos(WEEK, "run")
    at = chaos.instant(2900)
    assert chaos.due(at - 10, at - 1) is None
    assert chaos.due(at - 1, at + 1) == 2900
    assert chaos.due(at + 1, at + 10) is None


def test_what_was_missed_while_nothing_ran_is_not_made_up_for() -> None:
    chaos = Chaos(WEEK, "run")
    found = injections(chaos, 2900 * WEEK, 2910 * WEEK, 5 * WEEK)
    assert len(found) <= 2


def test_every_worker_may_be_hit() -> None:
    chaos = Chaos(WEEK, "run")
    assert {chaos.victim(period, 4) for period in range(100)} == {0, 1, 2, 3}


def test_no_period_is_refused() -> None:
    with pytest.raises(UsageError, match="week"):
        Chaos(0.0, "run")


WORKERS = {0: 100, 1: 101, 2: 102}


def kept(clock: FakeClock) -> tuple[Scheduled, list[tuple[int, int]], list[str]]:
    killed: list[tuple[int, int]] = []
    said: list[str] = []
    return Scheduled(Chaos(WEEK, "run"), clock, said.append, lambda *one: killed.append(one)), killed, said


def test_an_agent_that_looks_every_minute_kills_one_worker_a_week() -> None:
    clock = FakeClock(wall=2900 * WEEK)
    scheduled, killed, said = kept(clock)
    done = []
    while clock.now() < 2910 * WEEK:
        clock.sleep(60.0)
        done += filter(None, [scheduled.tend(WORKERS)])
    assert done == said and len(killed) == 10
    assert {number for _, number in killed} == {signal.SIGKILL}
    assert {pid for pid, _ in killed} <= set(WORKERS.values()) and len(set(killed)) > 1
    assert [f"period {period}" in line for period, line in zip(range(2900, 2910), said, strict=True)] == [
        True
    ] * 10


def test_a_fault_that_finds_nobody_is_over() -> None:
    clock = FakeClock(wall=2900 * WEEK)
    scheduled, killed, said = kept(clock)
    clock.wall = Chaos(WEEK, "run").instant(2900) + 1
    assert scheduled.tend({}) == ""
    clock.sleep(1.0)
    assert scheduled.tend(WORKERS) == "" and killed == [] and said == []


def test_what_is_gone_already_cannot_be_killed() -> None:
    clock = FakeClock(wall=2900 * WEEK)

    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError(pid)

    scheduled = Scheduled(Chaos(WEEK, "run"), clock, lambda line: None, gone)
    clock.wall = Chaos(WEEK, "run").instant(2900) + 1
    assert "kills rank" in scheduled.tend(WORKERS)
