"""The simulated cluster: its books balance, it agrees with the model where there is one, and what it says
of ten thousand cards follows from what is put in."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.errors import UsageError
from durable_core.session.cadence import model as cadence
from durable_core.testing.cluster import Job, Machine, Tier, expectation, run, scenarios
from durable_core.testing.cluster.__main__ import main, tables
from durable_core.testing.cluster.expected import renewal, simulated
from durable_core.testing.cluster.model import MIX, shares
from durable_core.testing.cluster.simulate import _Run

ONE = frozenset({"process"})


def single(every: float, cost: float, mtbf: float, restart: float, lag: float = 0.0, **more: object) -> Job:
    machine = Machine(mtbf, {"process": 1.0}, restart, 0.0, 0.0, 0.0, **more)  # type: ignore[arg-type]
    return Job(machine, (Tier("only", ONE, every, cost, lag),))


# --- the books -------------------------------------------------------------------------------

TIMES = st.floats(1.0, 500.0)


@settings(max_examples=60, deadline=None)
@given(
    TIMES, st.floats(0, 50), st.floats(200.0, 5000.0), st.floats(0, 100), st.floats(0, 800), st.integers(0, 9)
)
def test_every_instant_is_in_exactly_one_account(
    every: float, cost: float, mtbf: float, restart: float, lag: float, seed: int
) -> None:
    state = _Run(single(every, cost, mtbf, restart, lag), random.Random(seed))
    while state.at < 2000.0 and state.now < 1e5:
        state.train(2000.0)
        assert state.now == pytest.approx(state.at + state.saving + state.lost + state.down)


def test_without_failures_only_saving_costs() -> None:
    found = run(single(100.0, 10.0, 1e15, 60.0), 10_000.0, 1)
    assert (found.lost, found.down, found.interruptions) == (0.0, 0.0, 0)
    assert found.waste == pytest.approx(10 / 110) and found.wall == pytest.approx(11_000.0)


def test_the_same_seed_is_the_same_run_and_another_is_another() -> None:
    job = scenarios.tiered(scenarios.Plant(), Machine())
    assert run(job, 1e5, 3) == run(job, 1e5, 3) != run(job, 1e5, 4)


def test_no_interruption_loses_more_than_an_interval_and_its_lag() -> None:
    for seed in range(20):
        found = run(single(100.0, 2.0, 900.0, 20.0, 60.0), 50_000.0, seed)
        assert found.interruptions > 20
        assert 100.0 < found.worst <= 162.0


def test_a_tier_that_is_still_writing_leaves_the_next_copy_out() -> None:
    found = run(single(10.0, 0.0, 1e15, 0.0, lag=25.0), 1000.0, 1)
    assert found.skipped == pytest.approx(66, abs=1)


def test_what_a_lost_host_had_is_gone_and_planned_stops_lose_nothing() -> None:
    tiers = (
        Tier("memory", ONE, 10.0, 0.0),
        Tier("remote", frozenset({"process", "host", "planned"}), 100.0, 0.0, 5.0, 50.0),
    )
    hosts = run(Job(Machine(500.0, {"host": 1.0}, 1, 1, 1, 1), tiers), 20_000.0, 1)
    assert "memory" not in hosts.by_tier and hosts.by_tier["remote"] > 20 and hosts.worst > 10.0
    planned = run(Job(Machine(500.0, {"planned": 1.0}, 1, 1, 1, 1), tiers), 20_000.0, 1)
    assert planned.lost == 0.0 and planned.down > 0
    crashes = run(Job(Machine(500.0, {"process": 1.0}, 1, 1, 1, 1), tiers), 20_000.0, 1)
    assert crashes.by_tier.get("remote", 0) < crashes.by_tier["memory"] and crashes.worst <= 10.0


def test_silent_corruption_goes_back_behind_its_onset() -> None:
    machine = Machine(5000.0, {"numbers": 1.0}, 1, 1, 1, 1)
    found = run(Job(machine, (Tier("remote", frozenset({"numbers"}), 100.0, 0.0),), onset=350.0), 50_000.0, 2)
    assert found.worst > 350.0 and found.lost / found.interruptions > 350.0


def test_standbys_shorten_what_a_host_costs_and_are_paid_for() -> None:
    job = scenarios.asynchronous(scenarios.Plant(), Machine())
    cold, warm = (fmean(run(replace(job, standby=s), 5e5, i).down for i in range(5)) for s in (False, True))
    assert cold > 3 * warm
    assert run(replace(job, spares=0.02), 1e5, 1).idle == pytest.approx(run(job, 1e5, 1).wall * 0.02)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Machine(mtbf=0.0), lambda: Machine(shares={"host": 0.5}), lambda: Tier("x", ONE, 0.0, 0.0),
        lambda: Tier("x", ONE, 1.0, -1.0), lambda: Job(Machine(), (Tier("x", ONE, 1.0, 0.0),)),
        lambda: simulated(single(1.0, 0.0, 1.0, 0.0), 1.0, 1),
        lambda: renewal(1.0, interval=1e9, cost=0, mtbf=1, restart=0),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(UsageError):
        make()  # type: ignore[operator]


# --- against the model -----------------------------------------------------------------------

CASES = [
    (100.0, 5.0, 900.0, 30.0),
    (300.0, 60.0, 600.0, 60.0),
    (20.0, 0.5, 60.0, 4.0),
    (30.0, 0.0, 3600.0, 180.0),
]


@pytest.mark.parametrize(("every", "cost", "mtbf", "restart"), CASES)
def test_measured_waste_is_an_unbiased_estimate_of_w(
    every: float, cost: float, mtbf: float, restart: float
) -> None:
    """Of a long run, against Daly's exact W; of a short one, against the mean of runs of that length."""
    exact = cadence.exact_waste(every, cost, mtbf, restart=restart)
    useful = every * 2000
    assert renewal(useful, interval=every, cost=cost, mtbf=mtbf, restart=restart).waste == pytest.approx(
        exact, abs=2e-3
    )
    short = every * 40
    expected = renewal(short, interval=every, cost=cost, mtbf=mtbf, restart=restart)
    found = simulated(single(every, cost, mtbf, restart), short, 600)
    assert abs(found.waste - expected.waste) < 3.5 * found.error + 0.002, (found, expected)
    assert found.sigma == pytest.approx(expected.sigma, rel=0.15)


def test_single_runs_are_as_far_from_it_as_sigma_says() -> None:
    """What a chaos run is judged by: 15 minutes, a fault a minute."""
    expected = expectation(600.0, interval=2.0, cost=0.01, mtbf=60.0, restart=3.0)
    scores = [expected.z(run(single(2.0, 0.01, 60.0, 3.0), 600.0, seed).waste) for seed in range(400)]
    assert abs(fmean(scores)) < 0.2
    assert stdev(scores) == pytest.approx(1.0, abs=0.15)
    assert sum(abs(z) > 3 for z in scores) <= 6


def test_lag_costs_what_it_delays() -> None:
    plain = expectation(50_000.0, interval=100.0, cost=1.0, mtbf=2000.0, restart=20.0)
    late = expectation(50_000.0, interval=100.0, cost=1.0, mtbf=2000.0, restart=20.0, lag=60.0, seeds=60)
    assert late.waste - plain.waste == pytest.approx(
        60.0 / 2000.0 * (1 - late.waste), abs=4 * late.error + 0.003
    )


def test_recoveries_of_uneven_length_widen_the_bound() -> None:
    figures = {"interval": 2.0, "cost": 0.0, "mtbf": 60.0, "restart": 3.0}
    even, uneven = (expectation(600.0, **figures, restart_sigma=s) for s in (0.0, 3.0))
    assert uneven.waste == even.waste and uneven.sigma > even.sigma


def test_a_measured_value_far_off_is_seen() -> None:
    expected = expectation(600.0, interval=2.0, cost=0.01, mtbf=60.0, restart=3.0)
    assert abs(expected.z(expected.waste + 5 * expected.sigma)) == pytest.approx(5.0)
    wrong = fmean(run(single(20.0, 0.01, 60.0, 3.0), 600.0, seed).waste for seed in range(20))
    assert expected.z(wrong) > 3, "a run that saves ten times as rarely is not taken for it"


# --- ten thousand cards ----------------------------------------------------------------------


def test_the_published_mix() -> None:
    assert sum(sum(causes.values()) for causes in MIX.values()) == 466
    assert MIX["host"]["faulty GPU"] / 466 == pytest.approx(0.318, abs=0.0005), "not the 30.1 % of the table"
    assert sum(shares().values()) == pytest.approx(1.0)


def test_the_figure_by_policy() -> None:
    rows = {row["policy"]: row for row in scenarios.by_policy(6)}
    order = ["sync, no standby", "sync, standby", "async, standby", "tiers, standby"]
    ettrs = [rows[name]["ettr"] for name in order]
    assert ettrs == sorted(ettrs) and ettrs[0] < 0.75 and ettrs[-1] > 0.96
    for row in rows.values():
        parts = row["ettr"] + row["saving"] + row["lost"] + row["down"] + row["idle"]
        assert parts == pytest.approx(1.0, abs=1e-9)
        assert 1 - row["waste"] == pytest.approx(1 - row["predicted_waste"], abs=0.03)
    assert rows["tiers, standby"]["skipped"] == 0


def test_the_tiers_are_no_more_frequent_than_they_drain() -> None:
    for tier in scenarios.tiered(scenarios.Plant(), Machine()).tiers:
        assert tier.every >= tier.lag


def test_each_thing_moves_it_the_right_way() -> None:
    rows = {row["what"]: [row[f"x{f:g}"] for f in scenarios.FACTORS] for row in scenarios.sensitivity(3)}
    for name, values in rows.items():
        rising = name in ("M, time between interruptions", "network of a host", "remote store")
        tolerance = 0.0015
        ordered = values if rising else values[::-1]
        assert all(b >= a - tolerance for a, b in pairwise(ordered)), (name, values)


def test_what_is_said_to_reach_98_percent_reaches_it() -> None:
    found = {row["what"]: row["factor"] for row in scenarios.needed(0.98)}
    assert found["M, time between interruptions"] is not None
    plant, machine = scenarios.KNOBS["M, time between interruptions"](
        scenarios.Plant(), Machine(), found["M, time between interruptions"]
    )
    measured = scenarios.measure(scenarios.tiered(plant, machine), 10)
    assert measured["ettr"] == pytest.approx(0.98, abs=0.003)
    assert {row["what"]: row["factor"] for row in scenarios.needed(0.5)}["state"] == 1.0
    assert all(
        row["factor"] is None
        for row in scenarios.needed(0.9999)
        if row["what"].startswith(("network", "remote"))
    )


def test_interference_is_lost_time_too() -> None:
    rows = scenarios.interference(3)
    assert [row["slower"] for row in rows] == list(scenarios.INTERFERENCE)
    assert rows[0]["async"] > rows[-1]["async"] and rows[0]["tiers"] > rows[-1]["tiers"]
    assert rows[0]["async"] - rows[-1]["async"] == pytest.approx(0.045, abs=0.015), (
        "a write is always on its way"
    )


def test_the_reference_incident_loses_at_most_one_interval() -> None:
    found = scenarios.incident(12)
    assert found["as_it_was"] == {"lost_s": 3 * 3600.0, "rto_s": 2.5 * 3600.0, "periods": 3}
    assert found["at_most_one_interval"] and found["rto_kept"]
    assert all(row["incidents"] > 20 for row in found["replays"])
    assert [row["tier"] for row in found["replays"]] == ["peer", "remote"]
    assert max(row["worst_lost_s"] for row in found["replays"]) < 1.2 * found["period_s"]


def test_at_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["policies"]) == 6 and math.isclose(found["target"], 0.98)
    out = tables(found)
    assert "tiers, standby" in out and "reference incident" in out and "for 98%" in out
