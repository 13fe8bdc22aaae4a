"""Group cadences: the published schedule, and who is refused."""

from __future__ import annotations

import pytest
from commit_harness import Store, model_at, new_run, request, start

from durable_core.commit.groups import (
    Cadences,
    Group,
    allow,
    due,
    held,
    is_consistent,
    published,
    steps_after,
)
from durable_core.commit.save import save_coordinator
from durable_core.errors import UsageError
from durable_core.testing.sim import content
from durable_core.types import Promise, Token

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


def test_a_composite_holds_what_is_not_due_and_says_so():
    store = Store()
    new_run(store)
    claim = start(store)
    policy = Cadences((Group("slow", 4, ("state/w",)),))
    view, last_full, seen = claim.view, None, []
    for step in range(1, 10):
        model = model_at(step)
        decision = due(policy, step, last_full=last_full)
        last_full = step if decision.full else last_full
        keys = content.slices_of(model, "dp0")
        asked = request(claim.token, model, promise=Promise.DISTRIBUTION, held=held(policy, decision, keys))
        outcome = store.run(save_coordinator(view, asked), keys)
        view = outcome.view
        manifest = outcome.known.manifest
        (piece,) = manifest.tensors["state/w"].slices
        of = manifest.topology.get("groups", {}).get("slow", step)
        data = store.objects[piece.object][piece.begin : piece.begin + piece.info.nbytes]
        assert data == content.slices_of(model_at(of), "dp0")["state/w"]
        assert manifest.consistent == (of == step)
        (piece,) = manifest.tensors["state/b"].slices
        data = store.objects[piece.object][piece.begin : piece.begin + piece.info.nbytes]
        assert data == keys["state/b"]
        seen.append(of)
    assert seen == [1, 1, 1, 4, 4, 4, 4, 8, 8]


def test_a_request_with_held_groups_keeps_no_stronger_promise():
    with pytest.raises(UsageError, match="bitwise"):
        request(Token(1, "L"), model_at(1), held={"state/w": "slow"})
