"""durable plan as a calculator: failure rates, sizes, waste by interval, and whether goals can be met."""

from __future__ import annotations

import pytest
from cli_runs import Durable

BASE = ("plan", "--json", "--parameters", "700e9", "--bandwidth", "20e9", "--hosts", 1250)


def test_the_figure_of_the_sources(durable: Durable) -> None:
    found = durable(*BASE, "--unit-mtbf-years", 5, "--units", 10_000).document
    assert found["state_bytes"] == 9_800 * 10**9
    assert found["interruptions"]["mtbf"] == pytest.approx(4.38 * 3600)
    assert found["parts"]["bf16 parameters"] == 1_400 * 10**9
    rows = {row["name"]: row for row in found["strategies"]}
    assert rows["sync full"]["cost"] == 490.0 and rows["async full"]["risk"]


def test_the_probability_of_a_quiet_week(durable: Durable) -> None:
    found = durable(*BASE, "--annual-rate", 0.02, "--units", 10_000).document["interruptions"]
    assert found["at_least_one"] == pytest.approx(0.978, abs=0.0005)
    assert found["expected"] == pytest.approx(3.836, abs=0.001)


def test_the_waste_table_of_the_sources(durable: Durable) -> None:
    found = durable(*BASE, "--mtbf", 6 * 3600, "--cost", 30).document["waste"]
    assert [round(100 * row["first_order"], 2) for row in found] == [11.53, 7.22, 6.11, 7.64, 12.57]
    assert all(row["exact"] < row["first_order"] for row in found)


def test_other_intervals(durable: Durable) -> None:
    found = durable(*BASE, "--every", 100, "--every", 200).document["waste"]
    assert [row["seconds"] for row in found] == [100, 200]


TIERS = ("--tier", "memory", "--tier", "peer:25e12", "--tier", "remote:20e9:10")


def test_goals_that_can_be_met(durable: Durable) -> None:
    goals = ("--goal", "host:200:300", "--goal", "cluster:2000:700", "--goal", "process:150")
    found = durable(*BASE, *TIERS, "--every", 100, *goals)
    assert found.code == 0 and found.document["feasible"]
    assert [one["tier"] for one in found.document["goals"]] == ["peer", "remote", "memory"]


@pytest.mark.parametrize("goal", ["cluster:900", "cluster:-:500", "region:1e9"])
def test_goals_that_cannot(durable: Durable, goal: str) -> None:
    found = durable(*BASE, *TIERS, "--every", 100, "--goal", goal)
    assert found.code == 1 and not found.document["feasible"]
    assert found.document["goals"][0]["tier"] is None and found.document["goals"][0]["arithmetic"]


def test_for_people_the_arithmetic_of_a_goal_is_told(durable: Durable) -> None:
    out = durable(*[w for w in BASE if w != "--json"], *TIERS, "--goal", "cluster:900").out
    assert "NOT MET" in out and "lag" in out and "interruptions" in out


@pytest.mark.parametrize(
    "bad",
    [
        ("--state-bytes", 8), ("--mtbf", 60, "--annual-rate", 0.02), ("--recipe", "none"),
        ("--goal", "host:5"),
        (*TIERS, "--goal", "host"), (*TIERS, "--goal", "moon:5"), (*TIERS, "--goal", "host:soon"),
        ("--tier", "cloud", "--goal", "host:5"), ("--tier", "peer:1:2:3", "--goal", "host:5"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_usage(durable: Durable, bad: tuple[object, ...]) -> None:
    assert durable(*BASE, *bad).code == 2


def test_a_size_is_needed(durable: Durable) -> None:
    assert durable("plan", "--bandwidth", "1e9").code == 2
