"""What numeric findings say of checkpoints: taint, marks, and where to go back to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from commit_harness import Store, model_at, new_run, request, start
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.commit import marks, trust
from durable_core.commit.claim import choose_before, choose_restore_point, claim_generation
from durable_core.commit.save import save_coordinator
from durable_core.commit.state import CheckpointInfo, Checkpoints, Failure, RunState
from durable_core.commit.vector import Vector
from durable_core.errors import NoUsableCheckpoint, UsageError
from durable_core.testing.sim.content import slices_of
from durable_core.types import CheckpointState

S = CheckpointState


def history(*rows, failures=(), generation=1):
    """``rows``: what differs from a committed checkpoint ten steps after the one before, of generation 1.
    ``failures``: (class, onset, generation, evidence)."""
    table, lines = Checkpoints(), Vector()
    for c, row in enumerate(rows):
        info = CheckpointInfo(c, 10 * c, 1, c - 1 if c else None, "0" * 8, S.COMMITTED, seq=c)
        table = table.added(replace(info, **row))
    for seq, (kind, onset, of, evidence) in enumerate(failures):
        payload = {"class": kind, "signature": "s", "evidence": evidence, "step": onset}
        lines = lines.append(Failure(seq, of, "0" * 32, payload, 0.0))
    return RunState("run", checkpoints=table, head=len(rows) - 1, generation=generation, failures=lines)


GOOD = {"known_good": True}


def test_silent_corruption_taints_everything_from_its_onset():
    state = history({}, {}, {}, {}, failures=[("F13", 15, 1, None)])
    assert set(trust.tainted(state)) == {2, 3}
    assert set(trust.tainted(history({}, {}, failures=[("F13", 15, 1, None)]))) == set()


def test_what_was_trained_from_it_is_tainted_too():
    later = {"generation": 2}
    state = history({}, {}, {}, later, later, failures=[("F13", 15, 1, None)], generation=2)
    assert set(trust.tainted(state)) == {2, 3, 4}


def test_what_was_trained_anew_from_before_the_onset_is_clean():
    later = {"generation": 2}
    state = history({}, {}, later, later, failures=[("F13", 15, 1, None)], generation=2)
    assert set(trust.tainted(state)) == set()


def test_a_spike_taints_up_to_where_it_was_found():
    state = history({}, {}, {}, {}, {}, failures=[("F12", 15, 1, {"found": 30})])
    assert set(trust.tainted(state)) == {2, 3}


def test_other_failures_taint_nothing():
    assert not trust.tainted(history({}, {}, failures=[("F10", 1, 1, None), ("F13", None, 1, None)]))


@pytest.mark.parametrize(
    ("rows", "onset", "c", "warns"),
    [
        ([{}, GOOD, GOOD, {}], 25, 2, False),
        ([{}, GOOD, GOOD, {}], 20, 1, False),  # strictly before
        ([GOOD, {}, {}, {}], 35, 0, False),  # a known-good one rather than a newer one
        ([{}, {}, {}, {}], 25, 2, True),
        ([{}, GOOD, {"state": S.CORRUPT, **GOOD}, {}], 25, 1, False),
        ([{}, {}, {"state": S.RETIRED}, {}], 25, 1, True),
    ],
)
def test_the_way_back_leads_before_the_onset(rows, onset, c, warns):
    choice = choose_before(history(*rows), onset)
    assert choice.c == c
    assert bool(choice.warning) is warns
    assert f"before step {onset}" in choice.reason


def test_one_that_another_finding_speaks_against_is_passed_over():
    state = history({}, {}, {}, {}, failures=[("F13", 15, 1, None)])
    assert choose_before(state, 25).c == 1


@pytest.mark.parametrize(
    ("rows", "out", "c", "said"),
    [
        ([{}, GOOD, GOOD, {}], [2], 1, "passed over: c2 in quarantine"),
        ([{}, {}, {}, {}], [2], 1, "passed over: c2 in quarantine"),
        ([{}, {}, GOOD, {}], [2], 1, "no checkpoint before step 25 is known good and out of quarantine"),
        ([{}, {}, {}, {}], [0, 1, 2], 2, "what is left is in quarantine"),
        ([{}, GOOD, {}, {}], [0, 1, 2], 1, "what is left is in quarantine"),
    ],
)
def test_nor_is_one_in_quarantine_gone_back_to_while_another_is_left(rows, out, c, said):
    named = [{"manifest": f"checkpoints/g000001-c{c:08d}-00000000/manifest.json", **row}
             for c, row in enumerate(rows)]  # fmt: skip
    lines = tuple({"unit": "checkpoint", "name": named[at]["manifest"]} for at in out)
    choice = choose_before(replace(history(*named), quarantines=lines), 25)
    assert choice.c == c
    assert said in choice.reason + choice.warning


def test_without_any_before_the_onset_a_person_decides():
    gone = {"state": S.RETIRED}
    with pytest.raises(NoUsableCheckpoint, match="from step 20 on"):
        choose_before(history(gone, gone, {}, {}), 20)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({
            "state": st.sampled_from([S.COMMITTED, S.COMMITTED, S.CORRUPT, S.RETIRED]),
            "known_good": st.booleans(),
        }),
        min_size=1, max_size=8,
    ),
    st.integers(1, 90),
    st.lists(st.tuples(st.sampled_from(["F12", "F13"]), st.integers(1, 90)), max_size=3),
)  # fmt: skip
def test_nothing_at_or_after_the_onset_is_ever_chosen(rows, onset, found):
    failures = [(kind, step, 1, {"found": step + 5}) for kind, step in found]
    state = history(*rows, failures=failures)
    try:
        choice = choose_before(state, onset)
    except NoUsableCheckpoint:
        fit = (i for i in state.checkpoints.values() if i.usable and i.step < onset)
        assert all(info.c in trust.tainted(state) for info in fit)
        return
    info = state.checkpoints[choice.c]
    assert info.usable and info.step < onset and info.c not in trust.tainted(state)
    newer = [i for i in state.checkpoints.values() if i.usable and info.step < i.step < onset]
    assert all(i.c in trust.tainted(state) or (info.known_good and not i.known_good) for i in newer)


def test_whoever_starts_after_a_stop_goes_back():
    stop = {"action": "stop", "found": 30}
    state = history({}, GOOD, {}, {}, failures=[("F12", 25, 1, stop)])
    assert trust.stopped_for(state) == 25
    assert choose_restore_point(state).c == 1
    assert choose_restore_point(history({}, {}, failures=[("F12", 5, 1, {"action": "continue"})])).c == 1
    assert choose_restore_point(replace(state, generation=2)).c == 3  # told to the generation after it alone


def test_the_mark_that_is_due():
    state = history({}, {}, {}, {}, failures=[("F13", 25, 1, None)])
    assert trust.due(state, 15).c == 1
    assert trust.due(state, 35).c == 2  # not c3, which is tainted
    assert trust.due(history({}, GOOD, {}), 15) is None
    assert trust.due(history({}), -1) is None


def test_one_event_found_by_several_is_known():
    state = history({}, failures=[("F12", 12, 1, {"found": 13})])
    assert trust.is_known(state, "F12", "s", 12)
    assert trust.is_known(state, "F12", "s", 13)  # another role, a step later
    assert not trust.is_known(state, "F12", "s", 11)
    assert not trust.is_known(state, "F12", "s", 40)  # the next one
    assert not trust.is_known(state, "F13", "s", 12)
    assert not trust.is_known(replace(state, generation=2), "F12", "s", 12)


# --- as records ------------------------------------------------------------------------------


@pytest.fixture
def store() -> Store:
    store = Store()
    new_run(store)
    return store


def commits(store, claim, *steps):
    view = claim.view
    for step in steps:
        model = model_at(step)
        view = store.run(save_coordinator(view, request(claim.token, model)), slices_of(model, "dp0")).view
    return view


def found(store, view, token, failure="F13", onset=3, signature="replica-divergence", step=4):
    program = marks.record_finding(
        view, token, failure_class=failure, signature=signature, onset=onset, evidence={"found": step}
    )
    return store.run(program)


def good(state):
    return [info.c for info in state.checkpoints.values() if info.known_good]


def test_marks_are_records_with_their_evidence_and_a_finding_revokes_them(store):
    claim = start(store)
    view = commits(store, claim, 0, 2, 4)
    view, info = store.run(marks.mark_due(view, "L1", 2, {"detectors": ["non-finite"]}))
    assert info.c == 1 and view.state.checkpoints[1].evidence == {"detectors": ["non-finite"]}
    length = view.next_seq
    view, info = store.run(marks.mark_due(view, "L1", 3, "more"))
    assert info is None and view.next_seq == length, "it is marked already"
    view, _ = store.run(marks.mark_due(view, "L1", 4, "e"))
    assert good(view.state) == [1, 2]
    view = store.run(marks.revoke_tainted(found(store, view, claim.token), "L1"))
    assert good(view.state) == [1], "c2, of step 4, is at or after step 3"
    length = view.next_seq
    assert store.run(marks.revoke_tainted(view, "L1")).next_seq == length
    assert choose_before(view.state, 3).c == 1


def test_a_revoked_one_is_not_gone_back_to(store):
    claim = start(store)
    view = store.run(marks.mark(commits(store, claim, 0, 2), 1, "L1", "by hand"))
    view = store.run(marks.mark(view, 0, "L1", "by hand"))
    assert choose_before(view.state, 9).c == 1
    assert choose_before(store.run(marks.revoke(view, 1, "L1", "doubted")).state, 9).c == 0
    with pytest.raises(UsageError, match="no evidence"):
        store.run(marks.mark(view, 0, "L1", ""))


def test_the_same_finding_of_many_roles_is_one_record(store):
    claim = start(store)
    view = commits(store, claim, 0)
    found(store, view, claim.token)
    after = found(store, view, claim.token, onset=4, step=5)  # from a view that has not seen it
    assert len(after.state.failures) == 1
    after = found(store, after, claim.token, onset=30, step=31)
    assert [line.payload["step"] for line in after.state.failures] == [3, 30]


def test_a_restart_after_a_numeric_fault_leaves_what_was_gone_back_from_for_good(store):
    """The abandoned ones are committed, newer and whole; no later start may choose them."""
    claim = start(store)
    view = commits(store, claim, 0, 2, 4, 6)
    view = store.run(marks.mark(view, 1, "L1", "e"))
    view = found(store, view, claim.token)
    back = store.run(
        claim_generation(view, launch_id="L1", members=("dp0",), choose=lambda state: choose_before(state, 3))
    )
    assert back.restore_point.c == 1
    again = start(store)  # it died before it had committed anything
    assert again.restore_point.c == 1
    view = commits(store, again, 4)
    assert not trust.tainted(view.state)
    last = start(store)
    assert (last.restore_point.step, last.restore_point.generation) == (4, again.token.generation)
    assert [c for c in range(4) if view.state.status(c) is S.ABANDONED] == [2, 3]
