"""Group cadences: the published schedule, and who is refused."""

from __future__ import annotations

import pytest

from durable_core.commit.groups import (
    Cadences,
    Group,
    allow,
    due,
    is_consistent,
    published,
    steps_after,
)
from durable_core.errors import UsageError
from durable_core.types import Promise

POLICY = published(["*emb*", "*norm*"], ["*layer.1?.*"], ["*layer.?.*"])


def simulated(until, seconds_per_step=0.1):
    """(step, decision) of every save, and the last full one at each."""
    last, saves = None, []
    for step in range(0, until + 1, 500):
        since = 0.0 if last is None else (step - last) * seconds_per_step
        decision = due(POLICY, step, last_full=last, full_seconds=since)
        if decision.full:
            last = step
        saves.append((step, decision))
    return saves


def test_the_published_schedule_over_twenty_thousand_steps():
    saves = simulated(20_000)
    steps = {name: [step for step, d in saves if name in d.groups] for name in ("high", "mid", "low")}
    assert steps["high"] == list(range(0, 20_001, 500))
    assert steps["mid"] == list(range(0, 20_001, 1_000))
    assert steps["low"] == list(range(0, 20_001, 2_000))
    assert [step for step, d in saves if d.full] == [0, 10_000, 20_000]


def test_two_hours_come_first_when_steps_are_slow():
    assert [step for step, d in simulated(10_000, 2.0) if d.full] == [0, 4_000, 8_000]


def test_the_step_of_each_group_is_known():
    steps, consistent = {}, []
    for step, decision in simulated(4_000):
        steps = steps_after(steps, decision, step)
        consistent.append(is_consistent(steps, step))
    assert steps == {"high": 4_000, "mid": 4_000, "low": 4_000}
    assert consistent == [True, False, False, False, True, False, False, False, True]


def test_a_key_belongs_to_the_first_group_that_matches():
    assert POLICY.group_of("state/model/emb.weight") == "high"
    assert POLICY.group_of("state/model/layer.11.w") == "mid"
    assert POLICY.group_of("state/model/layer.3.norm.w") == "high"
    assert POLICY.group_of("state/model/layer.3.w") == "low"
    assert POLICY.group_of("roles/dp0/rng") is None


@pytest.mark.parametrize("promise", [p for p in Promise if p is not Promise.DISTRIBUTION])
def test_no_stronger_promise_allows_a_composite(promise):
    with pytest.raises(UsageError, match=promise.value):
        allow(POLICY, promise, opted_in=True)
    allow(None, promise, opted_in=False)


def test_nobody_gets_one_unasked():
    with pytest.raises(UsageError, match="ever in"):
        allow(POLICY, Promise.DISTRIBUTION, opted_in=False)
    allow(POLICY, Promise.DISTRIBUTION, opted_in=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Group("full", 1, ()),
        lambda: Group("", 1, ()),
        lambda: Group("a", 0, ()),
        lambda: Cadences(()),
        lambda: Cadences((Group("a", 1, ()), Group("a", 2, ()))),
        lambda: Cadences((Group("a", 1, ()),), full_steps=0),
        lambda: Cadences((Group("a", 1, ()),), full_seconds=0),
    ],
)
def test_settings_are_checked(make):
    with pytest.raises(UsageError):
        make()
