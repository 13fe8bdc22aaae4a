"""The authority table, row by row, and what effective records do to the state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from commit_harness import DIGEST

from durable_core.commit.fold import AUTHORITY, Cause, RunState, apply
from durable_core.commit.vector import Vector
from durable_core.format.record import Kind, Record
from durable_core.types import CheckpointState, Promise

OP = "ab" * 16


def record(kind, payload=None, *, g=1, epoch=1, launch="L1", seq=9):
    return Record(seq, g, epoch, launch, OP, kind, payload or {}, DIGEST, 5.0)


def created(state=None):
    payload = {"run_id": "run", "spec": {}, "spec_digest": DIGEST, "seed": 1, "promise": "bitwise"}
    return apply(state or RunState(), record(Kind.RUN_CREATED, payload, g=0, seq=0))[0]


def started(state, c=None, *, g=1, launch="L1", takeover=False):
    payload = {
        "restore_point": c,
        "manifest_digest": None if c is None else DIGEST,
        "members": ["dp0"],
        "takeover": takeover,
    }
    return apply(state, record(Kind.GENERATION_STARTED, payload, g=g, launch=launch))


def allocated(state, step, /, *, g=1, launch="L1", **changes):
    payload = {"c": state.next_c, "step": step, "parent": state.head, **changes}
    return apply(state, record(Kind.CHECKPOINT_ALLOCATED, payload, g=g, launch=launch))


def committed(state, c, /, *, g=1, launch="L1", **changes):
    info = state.checkpoints[c]
    payload = {
        "c": c,
        "step": info.step,
        "parent": info.parent,
        "manifest": "checkpoints/m",
        "manifest_digest": DIGEST,
        "bytes": 1,
        "bytes_written": 1,
        "tiers": ["disk"],
        "cursor_digest": DIGEST,
        "reuses": [],
        "ledger": None,
        **changes,
    }
    return apply(state, record(Kind.CHECKPOINT_COMMITTED, payload, g=g, launch=launch, seq=20 + c))


def run(*steps, g=1):
    """A run whose generation 1 has committed at ``steps``; launch C holds controller epoch 1."""
    state, _ = started(created())
    for step in steps:
        state, _ = allocated(state, step)
        state, verdict = committed(state, state.next_c - 1)
        assert verdict.effective
    return apply(state, record(Kind.CONTROLLER_CLAIMED, epoch=1, launch="C"))[0]


def maintained(state, kind, c, *, epoch=1, launch="C"):
    return apply(state, record(kind, {"c": c}, epoch=epoch, launch=launch))


def refused(outcome, cause, words=""):
    _, verdict = outcome
    assert not verdict.effective and verdict.cause is cause and words in verdict.reason, verdict


def test_every_kind_has_a_row():
    assert set(AUTHORITY) == set(Kind)


def test_nothing_counts_before_the_run_is_created():
    for kind in Kind:
        if kind in (Kind.RUN_CREATED, Kind.NOOP):
            continue
        payload = {"c": 0, "takeover": False, "restore_point": None, "principal": "operator", "from": None}
        state, verdict = apply(RunState(), record(kind, {**payload, "external": None}))
        assert not verdict.effective and state == RunState(), kind


def test_a_second_creation_is_void():
    state = created()
    payload = {"run_id": "b", "spec": {}, "spec_digest": DIGEST, "seed": 2, "promise": "coverage"}
    refused(apply(state, record(Kind.RUN_CREATED, payload)), Cause.RACED)


def test_a_void_record_changes_nothing():
    state = run(0)
    after, verdict = allocated(state, 1, g=7)
    assert after is state and not verdict.effective


WORKER_RECORDS = {
    Kind.CHECKPOINT_ALLOCATED: {"c": 1, "step": 5, "parent": 0},
    Kind.CHECKPOINT_ABORTED: {"c": 0, "reason": ""},
    Kind.FAILURE: {"class": "F1", "signature": "", "evidence": None, "step": 1},
    Kind.PROMISE_LOWERED: {"from": "bitwise", "to": "coverage", "reason": ""},
    Kind.RUN_DRAINING: {"reason": "", "step": 1},
    Kind.RUN_SUCCEEDED: {"c": 0, "target": 1},
    Kind.RUN_FAILED: {"reason": ""},
}


@pytest.mark.parametrize("kind", WORKER_RECORDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("stale", [{"g": 0}, {"g": 2}, {"launch": "L2"}], ids=str)
def test_workers_need_the_current_generation_and_launch(kind, stale):
    refused(apply(run(0), record(kind, WORKER_RECORDS[kind], **stale)), Cause.STALE)


@pytest.mark.parametrize("kind", WORKER_RECORDS, ids=lambda kind: kind.value)
def test_workers_may_not_write_after_the_end(kind):
    ended, _ = apply(run(0), record(Kind.RUN_FAILED, {"reason": "x"}))
    refused(apply(ended, record(kind, WORKER_RECORDS[kind])), Cause.ENDED)


@pytest.mark.parametrize("g", [0, 1, 3])
def test_generations_rise_by_one(g):
    refused(started(run(0), 0, g=g), Cause.RACED)


def test_a_superseded_launch_needs_a_takeover():
    state, _ = started(run(0), 0, g=2, launch="L2")
    refused(started(state, 0, g=3, launch="L1"), Cause.SUPERSEDED)
    state, verdict = started(state, 0, g=3, launch="L1", takeover=True)
    assert verdict.effective and state.superseded == {"L2"}


def test_a_restart_of_the_owner_is_no_takeover():
    state, verdict = started(run(0), 0, g=2)
    assert verdict.effective and state.superseded == frozenset()


def test_a_restore_point_is_committed_and_sound():
    state = run(0, 5)
    refused(started(state, 7, g=2), Cause.RACED, "unknown")
    corrupt, _ = maintained(state, Kind.CHECKPOINT_CORRUPT, 1)
    refused(started(corrupt, 1, g=2), Cause.RACED, "corrupt")
    retired, _ = maintained(state, Kind.CHECKPOINT_RETIRED, 0)
    refused(started(retired, 0, g=2), Cause.RACED, "retired")
    refused(started(state, None, g=2), Cause.RACED, "must be named")
    open_only, _ = allocated(state, 9)
    refused(started(open_only, 2, g=2), Cause.RACED, "allocated")


def test_rolling_back_moves_the_head_and_abandons_what_came_after():
    state = run(0, 5, 9)
    state, _ = started(state, 1, g=2)
    assert state.head == 1 and state.head_step == 5 and state.lineage() == (0, 1)
    assert state.status(2) is CheckpointState.ABANDONED
    state, _ = allocated(state, 7, g=2)
    state, verdict = committed(state, 3, g=2)
    assert verdict.effective and state.lineage() == (0, 1, 3)


def test_numbers_are_taken_in_order_and_never_twice():
    state = run(0)
    refused(allocated(state, 5, c=0), Cause.UNFIT)
    refused(allocated(state, 5, c=2), Cause.UNFIT)
    state, _ = allocated(state, 5)
    state, _ = started(state, 0, g=2)
    assert allocated(state, 5, g=2)[0].next_c == 3, "an allocation of a dead generation burns its number"


def test_commits_need_their_own_open_allocation():
    state, _ = allocated(run(0), 5)
    refused(committed(state, 1, step=6), Cause.UNFIT)
    refused(committed(state, 1, c=0), Cause.UNFIT)
    refused(committed(state, 1, c=9), Cause.UNFIT)
    once, _ = committed(state, 1)
    refused(committed(once, 1), Cause.UNFIT)
    aborted, _ = apply(state, record(Kind.CHECKPOINT_ABORTED, {"c": 1, "reason": ""}))
    refused(committed(aborted, 1), Cause.UNFIT)
    newer, _ = started(state, 0, g=2)
    refused(committed(newer, 1, g=2), Cause.UNFIT)
    refused(committed(newer, 1), Cause.STALE)


def test_a_late_commit_is_void_unless_its_parent_is_the_head():
    state, _ = allocated(run(0), 5)
    state, _ = allocated(state, 7)
    state, verdict = committed(state, 2)
    assert verdict.effective
    refused(committed(state, 1), Cause.UNFIT, "not the head")


def test_steps_rise_along_the_lineage():
    state, _ = allocated(run(5), 5)
    refused(committed(state, 1), Cause.UNFIT, "does not exceed")


def test_only_what_the_parent_has_is_reused():
    state, _ = allocated(run(0, 5), 7)
    assert committed(state, 2, reuses=[1])[1].effective
    refused(committed(state, 2, reuses=[0]), Cause.UNFIT, "c0, which its parent, 1")


def test_what_is_retired_is_reused_through_the_parent():
    state, _ = allocated(run(0), 5)
    state, _ = committed(state, 1, reuses=[0])
    state, verdict = maintained(state, Kind.CHECKPOINT_RETIRED, 0)
    assert verdict.effective
    state, _ = allocated(state, 7)
    assert committed(state, 2, reuses=[0, 1])[1].effective


def test_reuse_planned_before_damage_was_found_is_void():
    state, _ = allocated(run(0, 5), 7)
    state, _ = maintained(state, Kind.CHECKPOINT_CORRUPT, 0)
    refused(committed(state, 2, reuses=[1]), Cause.UNFIT, "damage was found")
    assert committed(state, 2)[1].effective
    state, _ = allocated(state, 8)
    assert committed(state, 3, reuses=[1])[1].effective


def test_success_needs_the_head():
    state = run(0, 5)
    refused(apply(state, record(Kind.RUN_SUCCEEDED, {"c": 0, "target": 1})), Cause.UNFIT)
    state, verdict = apply(state, record(Kind.RUN_SUCCEEDED, {"c": 1, "target": 1}))
    assert verdict.effective and not state.active
    refused(started(state, 1, g=2), Cause.ENDED)


def test_extension_does_not_give_the_generation_back():
    state, _ = apply(run(0), record(Kind.RUN_SUCCEEDED, {"c": 0, "target": 1}))
    state, verdict = apply(state, record(Kind.RUN_EXTENDED, {"target": 9}))
    assert verdict.effective and state.target == 9
    refused(allocated(state, 5), Cause.STALE)
    assert started(state, 0, g=2)[1].effective


def test_only_success_is_extended():
    refused(apply(run(0), record(Kind.RUN_EXTENDED, {"target": 9})), Cause.UNFIT)
    failed, _ = apply(run(0), record(Kind.RUN_FAILED, {"reason": ""}))
    refused(apply(failed, record(Kind.RUN_EXTENDED, {"target": 9})), Cause.UNFIT)


def test_cancelling_needs_a_principal_and_revokes():
    state = run(0)
    refused(apply(state, record(Kind.RUN_CANCELLED, {"principal": "eve", "reason": ""})), Cause.UNFIT)
    named = replace(state, spec={"cancel_authority": ["eve"]})
    named, verdict = apply(named, record(Kind.RUN_CANCELLED, {"principal": "eve", "reason": ""}, g=0))
    assert verdict.effective and named.terminal.outcome == "cancelled"
    refused(allocated(named, 5), Cause.ENDED)


MAINTENANCE = (
    Kind.TIER_ADDED, Kind.CHECKPOINT_CORRUPT, Kind.CHECKPOINT_KNOWN_GOOD,
    Kind.CHECKPOINT_KNOWN_GOOD_REVOKED, Kind.CHECKPOINT_PINNED, Kind.CHECKPOINT_UNPINNED,
    Kind.CHECKPOINT_RETIRED, Kind.QUARANTINE, Kind.SCRUBBED,
)  # fmt: skip


@pytest.mark.parametrize("kind", MAINTENANCE, ids=lambda kind: kind.value)
def test_maintenance_needs_the_epoch_and_outlives_the_run(kind):
    state = run(0, 5)
    refused(maintained(state, kind, 0, epoch=0), Cause.STALE)
    refused(maintained(state, kind, 0, epoch=2), Cause.STALE)
    refused(maintained(state, kind, 0, launch="L1"), Cause.STALE)
    ended, _ = apply(state, record(Kind.RUN_FAILED, {"reason": ""}))
    assert maintained(ended, kind, 0)[1].effective


def test_epochs_rise_by_one_and_workers_are_undisturbed():
    state = run(0)
    refused(apply(state, record(Kind.CONTROLLER_CLAIMED, epoch=1)), Cause.RACED)
    refused(apply(state, record(Kind.CONTROLLER_CLAIMED, epoch=3)), Cause.RACED)
    state, verdict = apply(state, record(Kind.CONTROLLER_CLAIMED, epoch=2, launch="D"))
    assert verdict.effective and allocated(state, 5)[1].effective


def test_what_may_not_be_retired():
    state = run(0, 5, 9)
    refused(maintained(state, Kind.CHECKPOINT_RETIRED, 2), Cause.UNFIT, "head")
    pinned, _ = maintained(state, Kind.CHECKPOINT_PINNED, 0)
    refused(maintained(pinned, Kind.CHECKPOINT_RETIRED, 0), Cause.UNFIT, "pinned")
    live, _ = started(state, 1, g=2)
    live, _ = allocated(live, 7, g=2)
    live, _ = committed(live, 3, g=2)
    refused(maintained(live, Kind.CHECKPOINT_RETIRED, 1), Cause.UNFIT, "restores from")
    ended, _ = apply(live, record(Kind.RUN_FAILED, {"reason": ""}, g=2))
    assert maintained(ended, Kind.CHECKPOINT_RETIRED, 1)[1].effective
    once, _ = maintained(state, Kind.CHECKPOINT_RETIRED, 0)
    refused(maintained(once, Kind.CHECKPOINT_RETIRED, 0), Cause.UNFIT, "retired")


def test_known_good_falls_with_corruption():
    state, _ = maintained(run(0, 5), Kind.CHECKPOINT_KNOWN_GOOD, 0)
    assert state.checkpoints[0].known_good
    state, _ = maintained(state, Kind.CHECKPOINT_CORRUPT, 0)
    assert not state.checkpoints[0].known_good
    refused(maintained(state, Kind.CHECKPOINT_KNOWN_GOOD, 0), Cause.UNFIT)


def test_a_fork_takes_effect_with_the_generation_of_its_launch():
    payload = {
        "parent_spec": DIGEST,
        "spec": {"lr": 2, "promise": "coverage"},
        "spec_digest": "sha256:" + "1" * 64,
        "diff": ["lr"],
        "from": 0,
        "external": None,
    }
    state, verdict = apply(run(0, 5), record(Kind.RUN_FORKED, payload, g=2, launch="F"))
    assert verdict.effective and state.spec == {}
    refused(maintained(state, Kind.CHECKPOINT_RETIRED, 0), Cause.UNFIT, "fork")
    refused(started(state, 1, g=2, launch="F"), Cause.UNFIT, "c0")
    forked, verdict = started(state, 0, g=2, launch="F")
    assert verdict.effective and forked.spec["lr"] == 2 and forked.promise is Promise.COVERAGE
    other, verdict = started(state, 1, g=2, launch="O")
    assert verdict.effective and other.spec == {} and other.pending_fork is None


def test_an_external_fork_starts_without_a_restore_point():
    payload = {
        "parent_spec": DIGEST, "spec": {}, "spec_digest": DIGEST, "diff": [], "from": None,
        "external": "file:x",
    }  # fmt: skip
    state, verdict = apply(run(0), record(Kind.RUN_FORKED, payload, g=2))
    assert verdict.effective
    state, verdict = started(state, None, g=2)
    assert verdict.effective and state.head is None
    refused(apply(run(0), record(Kind.RUN_FORKED, {**payload, "from": 0}, g=2)), Cause.UNFIT)


def test_promises_only_fall():
    lower = {"from": "bitwise", "to": "coverage", "reason": ""}
    state, verdict = apply(run(0), record(Kind.PROMISE_LOWERED, lower))
    assert verdict.effective and state.promise is Promise.COVERAGE
    refused(apply(state, record(Kind.PROMISE_LOWERED, lower)), Cause.UNFIT)
    rise = {"from": "coverage", "to": "bitwise", "reason": ""}
    refused(apply(state, record(Kind.PROMISE_LOWERED, rise)), Cause.UNFIT)


def test_old_states_stay_as_they_were():
    before = run(0, 5)
    kept = (before.checkpoints[0], before.head, before.lineage())
    after, _ = maintained(before, Kind.CHECKPOINT_RETIRED, 0)
    assert after.checkpoints[0].state is CheckpointState.RETIRED
    assert (before.checkpoints[0], before.head, before.lineage()) == kept


def test_the_vector_is_a_list():
    vector, plain = Vector(), []
    for n in range(700):
        vector = vector.append(n)
        plain.append(n)
        if n % 7 == 0:
            old, was = vector, plain[n // 2]
            vector, plain[n // 2] = vector.replace(n // 2, -n), -n
            assert old[n // 2] == was
    assert list(vector) == plain and list(reversed(vector)) == plain[::-1] and len(vector) == 700
    assert all(vector[i] == plain[i] for i in range(700))
    for bad in (-1, 700):
        with pytest.raises(IndexError):
            vector[bad]
        with pytest.raises(IndexError):
            vector.replace(bad, 0)


def reconciling(state, epoch, launch="C"):
    state, verdict = apply(
        state, record(Kind.CONTROLLER_CLAIMED, {"reconciles": True}, epoch=epoch, launch=launch)
    )
    assert verdict.effective
    return state


def said(state, *, epoch, g=1, launch="C", seq=9):
    payload = {"state": "suspect", "reason": "", "evidence": {}}
    return apply(state, record(Kind.RUN_STATE, payload, epoch=epoch, g=g, launch=launch, seq=seq))


def test_where_the_run_stands_is_said_by_the_newest_controller_that_reconciles():
    state = run(0)
    refused(said(state, epoch=1), Cause.STALE)
    state = reconciling(state, 2)
    maintained_since, _ = apply(state, record(Kind.CONTROLLER_CLAIMED, epoch=3, launch="D"))
    state, verdict = said(maintained_since, epoch=2, seq=12)
    assert verdict.effective and state.phase.payload["state"] == "suspect" and state.phase.seq == 12
    refused(said(state, epoch=3), Cause.STALE)
    refused(said(reconciling(state, 4, "E"), epoch=2), Cause.STALE)


def test_where_the_run_stands_is_said_of_the_live_generation():
    state, _ = said(reconciling(run(0), 2), epoch=2)
    refused(said(state, epoch=2, g=2), Cause.STALE)
    begun, _ = started(state, 0, g=2)
    assert begun.phase is None
    refused(said(begun, epoch=2, g=1), Cause.STALE)
    ended, _ = apply(state, record(Kind.RUN_FAILED, {"reason": "x"}))
    assert ended.phase is None
    refused(said(ended, epoch=2), Cause.ENDED)


SUMMARY = {"key": "summaries/x.json", "digest": "sha256:" + "0" * 64}


def test_the_end_of_a_run_is_summed_up_once():
    state = run(0)
    controller, _ = apply(state, record(Kind.CONTROLLER_CLAIMED, epoch=1, launch="C"))
    refused(summed_up(controller, 9), Cause.UNFIT)
    ended, _ = apply(controller, record(Kind.RUN_FAILED, {"reason": "x"}, seq=9))
    refused(summed_up(ended, 8), Cause.UNFIT)
    refused(summed_up(ended, 9, epoch=2), Cause.STALE)
    over, verdict = summed_up(ended, 9)
    assert verdict.effective and over.summary.key == SUMMARY["key"]
    refused(summed_up(over, 9), Cause.UNFIT)


def test_an_extended_run_is_summed_up_anew():
    state, _ = apply(run(0), record(Kind.CONTROLLER_CLAIMED, epoch=1, launch="C"))
    payload = {"c": state.head, "target": None}
    ended, verdict = apply(state, record(Kind.RUN_SUCCEEDED, payload, seq=9))
    assert verdict.effective
    over, _ = summed_up(ended, 9)
    extended, _ = apply(over, record(Kind.RUN_EXTENDED, {"target": 9}, seq=11))
    assert extended.summary is None
    refused(summed_up(extended, 9), Cause.UNFIT)


def summed_up(state, end, *, epoch=1):
    return apply(state, record(Kind.RUN_SUMMARIZED, {"end": end, **SUMMARY}, epoch=epoch, launch="C"))
