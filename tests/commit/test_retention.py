"""What is kept and what is let go of, each with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.commit.retention import Retention, decide, keep_reasons
from durable_core.commit.state import CheckpointInfo, Checkpoints, RunState
from durable_core.errors import UsageError
from durable_core.types import CheckpointState

S = CheckpointState


def history(*rows, head=None, restore=None, active=True):
    """``rows``: dicts of what differs from a plain committed checkpoint on one lineage, ten steps apart."""
    table = Checkpoints()
    for c, row in enumerate(rows):
        info = CheckpointInfo(c, 10 * c, 1, c - 1 if c else None, "0" * 8, S.COMMITTED, seq=c)
        table = table.added(replace(info, **row))
    head = len(rows) - 1 if head is None else head
    return RunState("run", checkpoints=table, head=head, restore_point=restore, active=active, generation=1)


def gone(state, **policy):
    return [retire.c for retire in decide(state, Retention(**policy))]


@pytest.mark.parametrize(
    "bad",
    [
        {"keep_last": 0}, {"keep_last": -1}, {"keep_last": 1.5}, {"keep_last": True},
        {"keep_every_n_steps": 0}, {"keep_every_n_steps": "3"}, {"detection_window_steps": -1},
    ],
)  # fmt: skip
def test_settings_are_checked(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        Retention(**bad)


def test_the_newest_are_kept():
    assert gone(history({}, {}, {}, {}, {}), keep_last=3) == [0, 1]
    assert gone(history({}, {}), keep_last=3) == []


def test_every_n_steps_are_kept():
    assert gone(history(*[{}] * 7), keep_last=1, keep_every_n_steps=20) == [1, 3, 5]


def test_pins_restore_points_and_heads_are_kept():
    state = history({"pinned": True}, {}, {}, {}, restore=1)
    assert gone(state, keep_last=1) == [2]
    assert keep_reasons(state, Retention(1)) == {
        3: "the head", 1: "generation 1 restores from it", 0: "pinned",
    }  # fmt: skip
    assert gone(replace(state, active=False), keep_last=1) == [1, 2]


def test_the_newest_known_good_beyond_the_window_is_kept():
    good = {"known_good": True}
    state = history(good, good, {}, good, {}, {})
    assert gone(state, keep_last=1) == [0, 1, 2, 4]
    assert gone(state, keep_last=1, detection_window_steps=35) == [0, 2]


def test_what_a_kept_one_reuses_need_not_be_kept():
    state = history({}, {"reuses": (0,)}, {}, {"reuses": (1,)})
    assert gone(state, keep_last=1) == [0, 1, 2]


def test_abandoned_ones_go():
    state = history({}, {}, {"parent": 0}, head=2)
    (retire,) = decide(state, Retention(3))
    assert (retire.c, retire.reason) == (1, "off the lineage of the head")


def test_a_corrupt_one_goes_only_when_something_as_good_is_there():
    corrupt = {"state": S.CORRUPT}
    assert gone(history({}, {}, corrupt, head=1), keep_last=3) == []
    assert gone(history({}, corrupt, {}, {}), keep_last=3) == [1]


def test_residue_is_not_retired():
    state = history({}, {"state": S.ALLOCATED, "seq": -1}, {"state": S.ABORTED, "seq": -1}, head=0)
    assert gone(state, keep_last=1) == []


ROW = st.fixed_dictionaries(
    {
        "state": st.sampled_from([S.COMMITTED, S.COMMITTED, S.COMMITTED, S.CORRUPT, S.RETIRED, S.ABORTED]),
        "pinned": st.booleans(),
        "known_good": st.booleans(),
    }
)


@settings(max_examples=200, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12), st.integers(1, 4), st.data())
def test_after_any_history_enough_is_left(rows, keep_last, data):
    last = data.draw(st.integers(0, len(rows) - 1))
    rows[last] = {"state": S.COMMITTED}
    state = history(*rows, head=last, restore=data.draw(st.integers(0, last)))
    retired = {retire.c for retire in decide(state, Retention(keep_last))}
    left = [info for info in state.checkpoints.values() if info.usable and info.c not in retired]
    lineage = [info for info in left if info.c in state.lineage()]
    before = [c for c in state.lineage() if state.checkpoints[c].usable]
    assert last not in retired and state.restore_point not in retired
    assert len(lineage) >= min(keep_last, len(before))
    assert not any(state.checkpoints[c].pinned for c in retired)
    if any(state.checkpoints[c].known_good for c in before):
        assert any(info.known_good for info in lineage)
    assert all(state.checkpoints[c].state in (S.COMMITTED, S.CORRUPT) for c in retired)


def test_the_newest_in_each_tier_is_kept():
    """The root may lag behind the disk that stands in front of it by more than is kept."""
    disk, both = {"tiers": ("disk",)}, {"tiers": ("disk", "remote")}
    state = history(both, both, disk, disk, disk)
    assert gone(state, keep_last=2) == [0, 2]
    assert keep_reasons(state, Retention(2))[1] == "newest in tier remote"


def test_the_next_to_be_known_good_is_kept_until_the_window_has_passed_over_it():
    """Three are kept, and ten pass before one is vindicated: without a candidate none would ever be."""
    state = history(*[{}] * 6)
    assert gone(state, keep_last=2, detection_window_steps=100) == [1, 2, 3]
    assert gone(state, keep_last=2) == [0, 1, 2, 3]
    assert keep_reasons(state, Retention(2, detection_window_steps=100))[0] == "the next to be known good"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 60), st.data())
def test_what_was_known_good_a_window_ago_is_there_when_a_fault_is_found(every, keep_last, window, data):
    """SDC-06, over the life of a run: every ``every`` steps a checkpoint; the window passes; marks follow
    retirements. Whenever something is found, its onset at most a window ago, there is one before it."""
    policy = Retention(keep_last, detection_window_steps=window)
    state = history({"step": 0})
    first = None
    for c in range(1, data.draw(st.integers(2, 25))):
        step = every * c
        row = CheckpointInfo(c, step, 1, c - 1, "0" * 8, S.COMMITTED, seq=c)
        state = replace(state, checkpoints=state.checkpoints.added(row), head=c)
        old = (i for i in state.checkpoints.newest_first() if i.usable and i.step <= step - window)
        mark = next(old, None)
        if mark is not None:
            state = replace(state, checkpoints=state.checkpoints.updated(replace(mark, known_good=True)))
            first = step if first is None else first
        for each in decide(state, policy):
            info = replace(state.checkpoints[each.c], state=S.RETIRED)
            state = replace(state, checkpoints=state.checkpoints.updated(info))
        held = [info for info in state.checkpoints.values() if info.usable]
        assert any(info.step <= max(0, step - window) for info in held)
        if first is not None:
            assert any(info.known_good and info.step <= step - window for info in held)
        assert len(held) <= keep_last + 3
