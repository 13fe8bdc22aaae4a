"""Whether the tiers can meet the goals: the arithmetic, and that more is never worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.errors import UsageError
from durable_core.session import goals
from durable_core.session.cadence import Limits
from durable_core.session.goals import Figures, feasible
from durable_core.spec.goals import Goal
from durable_core.types import Traits

GB = 10**9
MEMORY, PEER = goals.default_traits("memory"), goals.default_traits("peer")
DISK, REMOTE = goals.default_traits("disk"), goals.default_traits("remote")
TIERS = {
    "memory": replace(MEMORY, bytes_per_second=5e9),
    "peer": replace(PEER, bytes_per_second=2e9),
    "disk": replace(DISK, bytes_per_second=1e9),
    "remote": replace(REMOTE, bytes_per_second=1e8, every=5),
}
FIGURES = Figures(GB, 1.0, every_steps=10, steps_of={"memory": 1, "peer": 2})


def verdict(*asked: Goal, tiers: dict[str, Traits] | None = None, **changes: Any) -> goals.Verdict:
    home = changes.pop("home", None)
    return feasible(asked, TIERS if tiers is None else tiers, replace(FIGURES, **changes), home=home)


def test_each_domain_is_met_by_the_fastest_tier_that_outlives_it() -> None:
    found = verdict(
        Goal("process", rpo_steps=1), Goal("host", rpo_steps=2), Goal("rack", rpo_seconds=70),
        Goal("cluster", rpo_steps=60), home="remote",
    )  # fmt: skip
    assert [each.tier for each in found.findings] == ["memory", "peer", "remote", "remote"]
    found.require()
    assert [goals.serving(d, TIERS) for d in goals.DOMAINS] == ["memory", "peer", "remote", "remote", None]


def test_the_arithmetic_is_told() -> None:
    found = verdict(
        Goal("cluster", rpo_seconds=50.0, rto_seconds=15.0), detection_seconds=4.0, verify_seconds=3.0
    )
    assert not found.feasible
    text = found.explain()
    assert "NOT MET" in text
    assert "memory: survives process, not cluster" in text
    assert "RPO T 50 + L 10 + step 1 = 61 s > 50" in text
    assert "RTO detection 4 + requeue 0 + rendezvous 0 + load 10 + verify 3 = 17 s > 15" in text
    with pytest.raises(UsageError, match="61 s > 50"):
        found.require()


def test_every_part_of_the_recovery_time_counts() -> None:
    parts = dict.fromkeys(
        ("detection_seconds", "requeue_seconds", "rendezvous_seconds", "verify_seconds"), 2.0
    )
    assert verdict(Goal("cluster", rto_seconds=18.0), **parts).feasible
    for part in parts:
        assert not verdict(Goal("cluster", rto_seconds=18.0), **{**parts, part: 2.5}).feasible


def test_credentials_that_all_tiers_share_are_refused() -> None:
    shared = {name: replace(traits, shares_fate=frozenset({"credentials"})) for name, traits in TIERS.items()}
    found = verdict(Goal("credentials", rpo_steps=1000), tiers=shared)
    assert not found.feasible and "shares the fate of the credentials" in found.explain()
    apart = {**shared, "disk": TIERS["disk"]}
    assert verdict(Goal("credentials", rpo_steps=1000), tiers=apart).findings[0].tier == "disk"


def test_what_outlives_a_failure_is_of_no_use_without_the_journal() -> None:
    goal = Goal("host", rpo_steps=10)
    assert verdict(goal, home="remote").feasible
    found = verdict(goal, home="disk")
    assert not found.feasible and "the journal is in disk" in found.explain()


def test_a_tier_too_small_for_the_state_does_not_serve() -> None:
    small = {"peer": replace(TIERS["peer"], capacity_bytes=2 * GB, keep=2)}
    assert verdict(Goal("host", rpo_steps=2), tiers=small).feasible
    assert not verdict(Goal("host", rpo_steps=2), tiers=small, state_bytes=GB + 1).feasible


def test_an_undeclared_bandwidth_is_left_to_the_monitor_and_said() -> None:
    found = verdict(Goal("process", rpo_steps=1, rto_seconds=5), tiers={"memory": MEMORY})
    assert found.feasible and found.explain().count("bandwidth not declared") == 2


def test_a_measured_lag_counts_instead_of_the_bandwidth() -> None:
    goal = Goal("cluster", rpo_steps=60)
    assert verdict(goal, lag_seconds={"remote": 10.9}).feasible
    assert not verdict(goal, lag_seconds={"remote": 11.0}).feasible


def test_no_tier_no_goal_kept() -> None:
    assert not verdict(Goal("process", rpo_steps=1), tiers={}).feasible
    assert verdict().feasible


positive = st.floats(0.01, 1e4)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Goal, dict[str, Traits], Figures]:
    goal = Goal(
        draw(st.sampled_from(goals.DOMAINS + goals.FATES)),
        draw(st.none() | st.integers(1, 200)),
        draw(st.none() | positive),
        draw(positive),
    )
    tiers = {
        name: Traits(
            draw(st.frozensets(st.sampled_from(goals.DOMAINS))),
            draw(st.frozensets(st.sampled_from(goals.FATES))),
            draw(st.none() | st.integers(1, 10**6)),
            draw(st.floats(1.0, 1e6)),
            draw(st.integers(1, 5)),
        )
        for name in draw(st.permutations(["memory", "peer", "disk", "remote"]))[:2]
    }
    figures = Figures(
        draw(st.integers(0, 10**6)), draw(positive), draw(st.integers(1, 50)), verify_seconds=draw(positive)
    )
    return goal, tiers, figures


@given(situations(), st.data())
def test_more_is_never_worse(situation: tuple[Goal, dict[str, Traits], Figures], data: st.DataObject) -> None:
    goal, tiers, figures = situation
    if not feasible([goal], tiers, figures).feasible:
        return
    name = data.draw(st.sampled_from(sorted(tiers)))
    old = tiers[name]
    better = {
        "bandwidth": replace(old, bytes_per_second=(old.bytes_per_second or 1) * 2),
        "capacity": replace(old, capacity_bytes=None),
        "survives": replace(old, survives=frozenset(goals.DOMAINS)),
        "fate": replace(old, shares_fate=frozenset()),
        "every": replace(old, every=1),
    }
    for what, traits in better.items():
        assert feasible([goal], {**tiers, name: traits}, figures).feasible, what
    for changed in (
        replace(figures, state_bytes=figures.state_bytes // 2),
        replace(figures, every_steps=1),
        replace(figures, verify_seconds=figures.verify_seconds / 2),
    ):
        assert feasible([goal], tiers, changed).feasible
    wider = replace(
        goal,
        rpo_steps=None if goal.rpo_steps is None else goal.rpo_steps + 1,
        rto_seconds=(goal.rto_seconds or 0) * 2,
    )
    assert feasible([wider], tiers, figures).feasible
    assert feasible([goal], {"extra": Traits(frozenset()), **tiers}, figures).feasible


@given(situations())
def test_the_verdict_is_the_definition(situation: tuple[Goal, dict[str, Traits], Figures]) -> None:
    goal, tiers, f = situation

    def meets(traits: Traits) -> bool:
        if goal.domain in goals.FATES:
            outlives = goal.domain not in traits.shares_fate
        else:
            outlives = goal.domain in traits.survives
        load = f.state_bytes / (traits.bytes_per_second or 1)
        every = f.every_steps * traits.every
        return (
            outlives
            and (traits.capacity_bytes is None or f.state_bytes <= traits.capacity_bytes)
            and (goal.rpo_steps is None or every + load // f.step_seconds <= goal.rpo_steps)
            and (
                goal.rpo_seconds is None or every * f.step_seconds + load + f.step_seconds <= goal.rpo_seconds
            )
            and (goal.rto_seconds is None or load + f.verify_seconds <= goal.rto_seconds)
        )

    assert feasible([goal], tiers, f).feasible == any(map(meets, tiers.values()))


@pytest.mark.parametrize(
    "bad",
    [
        {"domain": "planet", "rpo_steps": 1}, {"domain": "host"}, {"domain": "host", "rpo_steps": 0},
        {"domain": "host", "rpo_seconds": 0.0}, {"domain": "host", "rto_seconds": -1.0},
    ],
)  # fmt: skip
def test_a_goal_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Goal(**bad)


@pytest.mark.parametrize(
    "traits",
    [Traits(frozenset({"planet"})), Traits(frozenset(), frozenset({"host"})), Traits(frozenset(), every=0)],
)
def test_traits_that_make_no_sense_are_refused(traits: Traits) -> None:
    with pytest.raises(UsageError, match="tier x"):
        verdict(tiers={"x": traits})


def test_names_without_traits_and_homes_that_are_no_tier_are_refused() -> None:
    with pytest.raises(UsageError, match="floppy"):
        goals.default_traits("floppy")
    with pytest.raises(UsageError, match="home"):
        verdict(home="floppy")
    with pytest.raises(UsageError):
        Figures(1, 0.0)


def test_failures_are_recovered_from_the_fastest_tier_that_is_left() -> None:
    rates = goals.failure_rates({"process": 4.0, "host": 2.0, "cluster": 0.5, "region": 9.0}, TIERS)
    assert rates == {"memory": 4.0, "peer": 2.0, "disk": 0.0, "remote": 0.5}


def test_a_tier_keeps_the_tightest_recovery_point_of_the_goals_it_meets() -> None:
    asked = (Goal("process", rpo_steps=3), Goal("process", rpo_steps=2), Goal("cluster", rpo_seconds=90.0))
    found = verdict(*asked)
    assert Limits.of(found.goals_of("memory"), slots=3) == Limits(3, {}, {"process": 2})
    assert Limits.of(found.goals_of("remote")) == Limits(2, {"cluster": 90.0}, {})
