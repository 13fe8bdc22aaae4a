"""Scheduled chaos with a clock of the test's own."""

from __future__ import annotations

import pytest

from durable_core.errors import UsageError
from durable_core.launch.chaos import Chaos

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
