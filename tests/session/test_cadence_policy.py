"""How long to wait between two saves, and that every member saves the same steps. No clock anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.errors import OrderError, UsageError
from durable_core.session.cadence import (
    Cadence,
    Figures,
    Limits,
    Meter,
    Pacer,
    Rate,
    Schedule,
    Timetable,
    decide,
    model,
    timetable,
)
from durable_core.session.cadence.history import History, Interruption
from durable_core.session.cadence.policy import MEASURING_STEPS, TierNeed, decide_tiers

WIDE = Cadence(max_seconds=1e9)
FIGURES = Figures(step=1.0, stall=3.0)


def rate(mtbf: float, exponential: bool | None = None) -> Rate:
    return Rate(mtbf, 3, 0.0, {}, exponential)


def test_steps_are_steps() -> None:
    found = decide(Cadence(50), Figures())
    assert (found.steps, found.reason) == (50, "every 50 steps")


def test_auto_measures_first() -> None:
    assert decide(Cadence(), Figures(step=1.0)).steps == MEASURING_STEPS
    assert decide(Cadence(every_seconds=7200.0), Figures()).steps == MEASURING_STEPS
    assert decide(Cadence(1, every_seconds=7200.0), Figures()).steps == 1
    assert decide(Cadence(), Figures()).provisional and not decide(Cadence(), FIGURES).provisional
    assert decide(Cadence(), Figures(stall=1.0)).reason == "still measuring"


@pytest.mark.parametrize("method", ["exact", "young", "daly"])
def test_auto_takes_the_optimum_of_the_method(method: model.Method) -> None:
    found = decide(replace(WIDE, method=method), Figures(step=2.0, stall=30.0), rate=rate(21600.0))
    assert found.steps == round(model.METHODS[method](30.0, 21600.0) / 2.0)
    assert method in found.reason and "C=30 s" in found.reason
    assert set(found.optima) == {"exact", "young", "daly"}


def test_time_becomes_steps() -> None:
    assert decide(Cadence(every_seconds=7200.0), Figures(step=2.5)).steps == 2880
    assert decide(Cadence(100, every_seconds=60.0), Figures(step=2.0)).steps == 30
    assert decide(Cadence(10, every_seconds=60.0), Figures(step=2.0)).steps == 10


# --- bounds ----------------------------------------------------------------------------------


def test_the_drain_of_the_buffers() -> None:
    quick = Figures(step=1.0, stall=0.001, persist=100.0)
    assert decide(WIDE, quick, limits=Limits(slots=2), rate=rate(10.0)).steps == 50
    assert "2 buffers" in decide(WIDE, quick, limits=Limits(slots=2), rate=rate(10.0)).reason


def test_the_overhead_budget() -> None:
    found = decide(replace(WIDE, overhead_budget=0.01), FIGURES, rate=rate(100.0))
    assert found.steps == 297 and 3.0 / (3.0 + 297) <= 0.01


def test_the_recovery_point_prevails_over_drain_and_budget() -> None:
    figures = Figures(step=1.0, stall=3.0, persist=400.0, lag_p99=20.0)
    limits = Limits(slots=2, rpo_seconds={"host": 100.0})
    found = decide(replace(WIDE, overhead_budget=0.01), figures, limits=limits)
    assert found.steps == 79  # 79 + 20 + 1 = 100
    assert "RPO of host" in found.reason
    broken = [each for each in found.warnings if each.startswith("cannot keep")]
    assert len(broken) == 2 and "2 buffers" in broken[0] and "0.01 of the time" in broken[1]


def test_the_recovery_point_in_steps() -> None:
    figures = Figures(step=1.0, stall=30.0, lag_p99=2.5)
    assert decide(WIDE, figures, limits=Limits(rpo_steps={"process": 10})).steps == 8


def test_an_impossible_recovery_point_is_said_aloud() -> None:
    found = decide(WIDE, replace(FIGURES, lag_p99=50.0), limits=Limits(rpo_seconds={"rack": 10.0}))
    assert found.steps == 1 and any("RPO of rack" in each for each in found.warnings)


def test_the_users_bounds_come_last() -> None:
    assert decide(Cadence(max_seconds=10.0), FIGURES).steps == 10
    assert decide(replace(WIDE, min_seconds=900.0), FIGURES, rate=rate(100.0)).steps == 900
    assert decide(Cadence(max_seconds=0.1), FIGURES).steps == 1


@given(
    st.floats(0.01, 100.0),
    st.floats(0.001, 1e3),
    st.floats(10.0, 1e7),
    st.floats(1.0, 1e5),
    st.floats(0, 100),
)
def test_the_recovery_point_is_kept_or_complained_of(
    step: float, stall: float, mtbf: float, rpo: float, lag: float
) -> None:
    limits = Limits(rpo_seconds={"process": rpo})
    found = decide(WIDE, Figures(step=step, stall=stall, lag_p99=lag), rate=rate(mtbf), limits=limits)
    kept = found.steps * step + lag + step <= rpo * (1 + 1e-9)
    assert kept or any("RPO of process" in each for each in found.warnings)


@given(
    st.sampled_from(["stall", "persist", "mtbf", "slots", "lag", "budget"]),
    st.floats(0.1, 50.0), st.floats(60.0, 1e6), st.floats(0.1, 500.0), st.floats(1.01, 5.0),
)  # fmt: skip
def test_each_input_pushes_the_interval_one_way(
    what: str, stall: float, mtbf: float, persist: float, factor: float
) -> None:
    def interval(change: str | None) -> int:
        def grown(name: str, value: float) -> float:
            return value * (factor if name == change else 1.0)

        figures = Figures(1.0, grown("stall", stall), 0.0, grown("persist", persist), 1.0, grown("lag", 20.0))
        limits = Limits(slots=2 * (2 if change == "slots" else 1), rpo_seconds={"host": 300.0})
        budget = grown("budget", 0.05)
        cadence = replace(WIDE, overhead_budget=budget)
        return decide(cadence, figures, rate=rate(grown("mtbf", mtbf)), limits=limits).steps

    if what in ("slots", "lag", "budget"):
        assert interval(what) <= interval(None)
    else:
        assert interval(what) >= interval(None)


def test_failing_saves_are_tried_closer_together_but_not_in_proportion() -> None:
    half = decide(WIDE, replace(FIGURES, completed=0.5), rate=rate(1e5))
    whole = decide(WIDE, FIGURES, rate=rate(1e5))
    assert half.steps == pytest.approx(whole.steps * math.sqrt(0.5), rel=0.02)
    assert any("50%" in each for each in half.warnings)


# --- staying, and assumptions ----------------------------------------------------------------


def test_a_slightly_better_interval_changes_nothing() -> None:
    best = decide(WIDE, FIGURES, rate=rate(1e5)).steps
    near = round(best * 1.15)
    kept = decide(WIDE, FIGURES, rate=rate(1e5), in_force=near)
    assert kept.steps == near and "kept" in kept.reason
    assert decide(WIDE, FIGURES, rate=rate(1e5), in_force=best * 2).steps == best


def test_what_a_bound_forbids_is_left_at_once() -> None:
    limits = Limits(rpo_steps={"process": 100})
    assert decide(WIDE, FIGURES, rate=rate(1e5), limits=limits, in_force=105).steps == 100


@pytest.mark.parametrize(
    ("figures", "believed", "words"),
    [
        (Figures(step=1.0, stall=400.0), rate(600.0), "model invalid"),
        (Figures(step=1.0, stall=30.0), rate(600.0), "C << T"),
        (Figures(step=1.0, stall=30.0), rate(600.0), "T << M"),
        (FIGURES, rate(1e5, exponential=False), "not exponential"),
    ],
)
def test_assumptions_that_fail_are_reported(figures: Figures, believed: Rate, words: str) -> None:
    assert any(words in each for each in decide(WIDE, figures, rate=believed).warnings)


def test_assumptions_that_hold_are_not() -> None:
    assert decide(WIDE, Figures(step=1.0, stall=0.1), rate=rate(1e5, exponential=True)).warnings == ()


@pytest.mark.parametrize(
    "bad",
    [
        {"every_n_steps": 0}, {"every_n_steps": True}, {"every_n_steps": "often"}, {"every_seconds": 0.0},
        {"mtbf_seconds": 0.0}, {"max_seconds": -1.0}, {"min_seconds": 301.0}, {"method": "guess"},
        {"overhead_budget": 1.0}, {"hysteresis": 1.0},
    ],
)  # fmt: skip
def test_a_cadence_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Cadence(**bad)


def test_tiers_nest_and_keep_their_recovery_points() -> None:
    needs = {
        "memory": TierNeed(Figures(step=1.0, stall=0.05), 1 / 7200.0, Limits(rpo_steps={"process": 7})),
        "disk": TierNeed(Figures(step=1.0, stall=1.0), 1 / 36000.0, Limits(rpo_seconds={"host": 160.0})),
        "remote": TierNeed(Figures(step=1.0, stall=2.0), 0.0),
    }
    found = decide_tiers(WIDE, needs)
    memory, disk, remote = (found[name].steps for name in needs)
    assert memory == 7
    assert disk % memory == 0 and memory < disk and disk + 1 <= 160
    assert remote % disk == 0 and remote > 1000 * disk
    assert "multiple" in found["disk"].reason


# --- timetable -------------------------------------------------------------------------------


def test_tiers_get_their_share_of_the_saves() -> None:
    schedule = Schedule(10, 5, since=3, multiples={"remote": 3})
    assert [schedule.next_after(s) for s in (0, 9, 10, 14, 15)] == [10, 10, 15, 15, 20]
    assert [schedule.next_after(s, "remote") for s in (0, 10, 24, 25)] == [10, 25, 25, 40]
    assert schedule.next_after(10, "disk") == 15
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_a_change_takes_over_where_it_begins() -> None:
    table = Timetable(Schedule(0, 10)).announced(20, Schedule(37, 4, since=25))
    saves, step = [], 20
    while step < 45:  # not 30: from 25 on the old one is out of force
        step = table.next_after(step)
        saves.append(step)
    assert saves == [37, 41, 45]
    assert table.at(24).coming is not None and table.at(25) == Timetable(Schedule(37, 4, since=25))


def test_until_a_change_begins_the_old_schedule_stands() -> None:
    table = Timetable(Schedule(0, 2)).announced(20, Schedule(27, 7, since=24))
    assert [table.next_after(step) for step in (20, 21, 22, 23, 26, 27)] == [22, 22, 27, 27, 27, 34]
    assert timetable.change(Timetable(Schedule(0, 50)), 50, decide(Cadence(1), Figures())) == Schedule(
        52, 1, "every 1 steps", since=52
    )
    assert timetable.change(table, 22, decide(Cadence(9), Figures())) is None  # one at a time


def test_an_announcement_that_comes_late_is_refused() -> None:
    with pytest.raises(OrderError):
        Timetable(Schedule(0, 10)).announced(20, Schedule(30, 4, since=21))


def test_boundaries_that_were_passed_over_are_not_forgotten() -> None:
    table = Timetable(Schedule(0, 10))
    assert table.due(18, 23) and not table.due(20, 29)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), max_size=20), st.integers(1, 30))
def test_members_that_hear_a_change_at_different_boundaries_save_the_same_steps(
    changes: list[tuple[int, int]], first: int
) -> None:
    """Each announcement reaches a member at any boundary before it begins: the steps are the same."""
    early = late = Timetable(Schedule(first, first))
    saves: tuple[list[int], list[int]] = ([], [])
    pending, coming = list(changes), None
    for step in range(1, 400):
        if early.due(step - 1, step):
            saves[0].append(step)
            if pending and step >= pending[0][0]:
                schedule = timetable.change(early, step, decide(Cadence(pending.pop(0)[1]), Figures()))
                if schedule is not None:
                    early, coming = early.announced(step, schedule), schedule
        if coming is not None and step == coming.since - timetable.AHEAD:  # as late as may be
            late, coming = late.announced(step, coming), None
        if late.due(step - 1, step):
            saves[1].append(step)
    assert saves[0] == saves[1]


# --- four members ----------------------------------------------------------------------------


class Ranks:
    """Four members whose clocks run at different speeds; only the coordinator's figures decide."""

    SPEED = (1.0, 0.5, 3.0, 1.7)

    def __init__(self, cadence: Cadence) -> None:
        self._word: Any = None
        self.broadcasts = 0
        self.meters = [Meter() for _ in self.SPEED]
        self.pacers = [
            Pacer(cadence, meter, self._say if rank == 0 else lambda decision: self._word)
            for rank, meter in enumerate(self.meters)
        ]

    def _say(self, decision: Callable[[], Any]) -> Any:
        self._word, self.broadcasts = json.loads(json.dumps(decision())), self.broadcasts + 1
        return self._word

    def train(self, steps: int, step_seconds: float, first: int = 1, commit_every: int = 1) -> list[int]:
        saves: list[int] = []
        stall = 0.0
        for step in range(first, first + steps):
            for meter, speed in zip(self.meters, self.SPEED, strict=True):
                meter.stepped((step_seconds + stall) * speed)
            stall = 0.0
            due = {pacer.due(step) for pacer in self.pacers}
            assert len(due) == 1, f"the members disagree at step {step}"
            if due == {True}:
                saves.append(step)
                stall = 0.5
                for meter, speed in zip(self.meters, self.SPEED, strict=True):
                    meter.staged(stall * speed)
                    meter.persisted(1.0)
                committed = len(saves) // commit_every or None
                for pacer in self.pacers:
                    pacer.saved(step, committed)
        return saves


def test_members_with_skewed_clocks_save_the_same_steps() -> None:
    ranks = Ranks(Cadence(max_seconds=1e6, mtbf_seconds=1e4))
    saves = ranks.train(2000, 1.0)
    assert saves[0] == 2
    steady = model.exact(0.5, 1e4)
    assert saves[-1] - saves[-2] == pytest.approx(steady, rel=0.25)


def test_hours_are_the_coordinators_hours() -> None:
    ranks = Ranks(Cadence(every_seconds=100.0))
    saves = ranks.train(1000, 2.0)
    assert saves[-1] - saves[-2] == 50
    slower = ranks.train(1000, 10.0, first=1001)
    assert slower[-1] - slower[-2] == 10


def test_steps_need_no_word() -> None:
    ranks = Ranks(Cadence(7))
    assert ranks.train(30, 1.0) == [7, 14, 21, 28]
    assert ranks.broadcasts == 0


def test_after_the_measuring_nothing_changes_without_a_commit() -> None:
    ranks = Ranks(Cadence(every_seconds=100.0))
    assert ranks.train(200, 2.0, commit_every=1000) == [50, 100, 150, 200]
    assert ranks.train(200, 10.0, first=201, commit_every=1000) == [250, 300, 350, 400]
    assert ranks.train(90, 10.0, first=401) == [450, 460, 470, 480, 490]


def test_a_budget_is_kept_within_twenty_steps() -> None:
    """Saving at first costs a third of the time; the budget is 2 %."""
    ranks = Ranks(Cadence(max_seconds=1e6, mtbf_seconds=50.0, overhead_budget=0.02))
    saves = ranks.train(600, 1.0)
    after = [step for step in saves if step > 20]
    assert all(b - a >= 25 for a, b in pairwise(after))
    assert 0.5 * len(after) <= 0.02 * 600


def test_a_run_that_goes_on_keeps_to_the_multiples() -> None:
    pacer = Pacer(Cadence(10), Meter(), lambda decision: pytest.fail("asked"))
    assert [step for step in range(34, 52) if pacer.due(step) and pacer.saved(step, None) is None] == [40, 50]


def test_what_was_lived_through_before_and_now_is_believed() -> None:
    """A run that was interrupted often saves often; one that goes on untroubled saves less and less."""

    def last_gap(history: History | None, steps: int) -> int:
        meter = Meter()
        pacer = Pacer(Cadence(max_seconds=1e6), meter, lambda decision: decision(), history=history)
        saves, stall = [0, 0], 0.0
        for step in range(1, steps):
            meter.stepped(1.0 + stall)
            stall = 0.0
            if pacer.due(step):
                saves, stall = [saves[1], step], 1.0
                meter.staged(stall)
                meter.persisted(1.0)
                pacer.saved(step, step)
        return saves[1] - saves[0]

    troubled = History(3600.0, tuple(Interruption(float(i)) for i in range(20)))
    assert last_gap(troubled, 500) < last_gap(None, 500) / 3
    assert last_gap(None, 100_000) > 2 * last_gap(None, 500)


def test_the_coordinator_tells_why() -> None:
    meter = Meter()
    pacer = Pacer(Cadence(max_seconds=1e6), meter, lambda decision: decision())
    meter.stepped(1.0)
    assert pacer.due(2) is False and pacer.due(3) is True
    meter.staged(2.0)
    announced = pacer.saved(3, None)
    assert announced is not None and announced.since == 5
    assert pacer.decided is not None and announced.reason == pacer.decided.reason
    assert "exact optimum for C=2 s" in announced.reason
