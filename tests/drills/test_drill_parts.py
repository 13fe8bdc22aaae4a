"""What drills are made of, without playing one: orders, marks, measures, the report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from durable_core.cli.drill import answer
from durable_core.errors import UsageError
from durable_core.launch.standby.environment import each
from durable_core.testing.drills.checks import Finding, Measured, measure
from durable_core.testing.drills.ground import MARK
from durable_core.testing.drills.orders import Injection, Mark, Orders, read_marks
from durable_core.testing.drills.play import Played, chosen
from durable_core.testing.drills.scenarios import SCENARIOS, SHORT


def mark(time: float, what: str, step: int, pid: int, rank: int = 0) -> Mark:
    return Mark(time, what, rank, pid, 1, step)


def test_orders_come_through_the_file_as_they_were(tmp_path: Path) -> None:
    orders = Orders(
        "r", "m", "d", steps=7, injections=(Injection("point", 3, 1, "K6"),), without=("fencing",)
    )
    assert Orders.read(orders.write(tmp_path / "orders.json")) == orders


def test_an_unknown_defence_is_named() -> None:
    with pytest.raises(UsageError, match="prayer"):
        Orders("r", "m", "d", without=("prayer",))


def test_what_a_standby_forks_is_known_as_the_drills_own() -> None:
    assert not each(MARK), "it would be seen by nobody from outside"


def test_a_torn_last_mark_does_not_count(tmp_path: Path) -> None:
    whole = json.dumps(asdict(mark(1.0, "step", 1, 5))) + "\n"
    (tmp_path / "0.marks").write_text(whole + whole[:20])
    (tmp_path / "1.marks").write_text(json.dumps(asdict(mark(0.5, "step", 1, 6, 1))) + "\n")
    assert [each.rank for each in read_marks(tmp_path)] == [1, 0]


def test_rpo_is_what_was_done_twice_rto_the_next_step_and_mtr_the_first_new_one() -> None:
    first = [mark(float(step), "step", step, 5) for step in range(1, 14)]
    second = [mark(20.0, "opened", 10, 6), *(mark(20.0 + n, "step", 10 + n, 6) for n in range(1, 6))]
    assert measure([*first, *second], began=13.5) == Measured(rpo_steps=3, rto_s=7.5, mtr_s=10.5)


def test_without_a_restart_nothing_is_measured() -> None:
    assert measure([mark(1.0, "opened", 0, 5), mark(2.0, "step", 1, 5)], 2.5) == Measured(None, None, None)


def test_a_drill_without_its_defence_passes_only_if_the_check_that_is_about_it_fails() -> None:
    holds, fails = (Finding("same run", ""),), (Finding("same run", "another one"),)
    assert Played("hang", True, 1.0, findings=holds).passed
    assert not Played("hang", True, 1.0, findings=fails).passed
    assert Played("hang", False, 1.0, ("same run",), fails).passed
    assert not Played("hang", False, 1.0, ("same run",), holds).passed
    assert not Played("hang", False, 1.0, ("bounded",), fails).passed
    assert not Played("hang", False, 1.0, ("same run",), error="the drill itself broke").passed
    assert not Played("hang", True, 1.0, error="the drill itself broke").passed


def test_the_report_names_what_was_found_and_fails_with_it() -> None:
    bad = Played("hang", True, 1.0, findings=(Finding("same run", "another one"),))
    found = answer([bad, Played("network", True, 0.0, skipped="no namespaces")], seed=3)
    assert found.exit_code == 1
    assert found.document["passed"] is False
    assert found.document["drills"][0]["checks"] == {"same run": "another one"}
    assert answer([Played("hang", True, 1.0)], seed=3).exit_code == 0


def test_every_scenario_says_what_its_negative_control_switches_off() -> None:
    assert all(row.without and row.title and row.by for row in SCENARIOS.values())
    assert set(SHORT) <= set(SCENARIOS)
    with pytest.raises(UsageError, match="kill-in-compute"):
        chosen("kill-in-compte")
