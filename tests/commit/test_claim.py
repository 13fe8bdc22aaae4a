"""Claims: which restore point, who may claim, and what a lost race means."""

from __future__ import annotations

import pytest
from commit_harness import DIGEST, Store, model_at, new_run, request, start

from durable_core.commit import ending
from durable_core.commit.adopt import Replaced
from durable_core.commit.claim import (
    Choice,
    choose_restore_point,
    claim_controller,
    claim_generation,
    maintain,
    mark_corrupt,
    taken,
)
from durable_core.commit.journal import EMPTY, replay
from durable_core.commit.save import save_coordinator
from durable_core.errors import (
    Fenced,
    LostSlot,
    NoUsableCheckpoint,
    RecordRefused,
    RunEnded,
    RunNotFoundError,
    Superseded,
)
from durable_core.format.record import Kind
from durable_core.testing.sim.content import slices_of
from durable_core.types import CheckpointState, Promise, Token


@pytest.fixture
def store() -> Store:
    store = Store()
    new_run(store)
    return store


def commits(store, claim, *steps):
    view = claim.view
    for step in steps:
        model = model_at(step)
        program = save_coordinator(view, request(claim.token, model))
        view = store.run(program, slices_of(model, "dp0")).view
    return view


def test_nothing_committed_is_a_cold_start(store):
    claim = start(store)
    assert claim.restore_point is None and claim.token == Token(1, "L1")
    assert "nothing has been committed" in claim.choice.reason


def test_no_run_is_not_found():
    with pytest.raises(RunNotFoundError):
        start(Store())


def test_the_newest_commit_is_the_restore_point(store):
    commits(store, start(store), 1, 2)
    claim = start(store)
    assert claim.restore_point.c == 1 and claim.token.generation == 2
    assert claim.view.state.restore_point == claim.view.state.head == 1


def test_corrupt_ones_are_passed_over_and_a_run_with_history_never_starts_over(store):
    commits(store, start(store), 1, 2, 3)
    for c, step in ((2, 2), (1, 1)):
        view = store.run(mark_corrupt(store.run(replay()), c, launch_id="L1", reason="bad", objects=("x",)))
        assert view.state.checkpoints[c].corrupt_objects == ("x",)
        assert start(store).restore_point.step == step
    store.run(mark_corrupt(store.run(replay()), 0, launch_id="L1", reason="bad"))
    with pytest.raises(NoUsableCheckpoint, match="c0 corrupt"):
        start(store)


def test_excluded_ones_are_passed_over_with_a_reason(store):
    state = commits(store, start(store), 1, 2).state
    choice = choose_restore_point(state, exclude={1})
    assert choice.c == 0 and "c1 excluded" in choice.reason


def test_those_in_quarantine_are_passed_over_as_long_as_there_is_another(store):
    state = commits(store, start(store), 1, 2).state
    keys = [info.manifest.rpartition("/")[0] + "/data/0" for info in state.checkpoints.values()]

    def put(key, **more):
        payload = {"unit": "checkpoint", "name": key, "reason": "F11", **more}
        return store.run(maintain(store.run(replay()), Kind.QUARANTINE, payload, "L1")).state

    choice = choose_restore_point(put(keys[1]))
    assert choice.c == 0 and "c1 in quarantine" in choice.reason
    none_left = choose_restore_point(put(keys[0]))
    assert none_left.c == 1 and "nothing else is left" in none_left.warning
    assert choose_restore_point(put(keys[1], lifted=True)).c == 1


def test_abandoned_ones_are_no_candidates(store):
    commits(store, start(store), 1, 2)
    second = start(store, choose=lambda state: choose_restore_point(state, exclude={1}))
    assert second.restore_point.c == 0
    assert start(store).restore_point.c == 0, "c1 is off the lineage now"
    assert second.view.state.status(1) is CheckpointState.ABANDONED


def test_a_restore_point_that_cannot_be_is_refused_not_raced(store):
    commits(store, start(store), 1)
    with pytest.raises(RecordRefused, match="restore point c7 is unknown"):
        start(store, choose=lambda state: Choice(0, "") if state.generation == 7 else Choice(7, "typo"))


def test_marking_corrupt_twice_writes_once(store):
    commits(store, start(store), 1)
    view = store.run(mark_corrupt(store.run(replay()), 0, launch_id="L1", reason="bad"))
    assert store.run(mark_corrupt(view, 0, launch_id="L2", reason="bad")).next_seq == view.next_seq


def test_a_launch_that_was_superseded_hears_it(store):
    start(store)
    start(store, "L2")
    with pytest.raises(Superseded, match="L2"):
        start(store, "L1")
    assert start(store, "L1", takeover=True).token.generation == 3
    with pytest.raises(Superseded):
        start(store, "L2")


def test_a_launch_that_was_superseded_maintains_nothing(store):
    """A worker that wakes up in the middle of its upkeep, beside those who have gone on."""
    view = commits(store, start(store), 0, 1)
    upkeep = store.run(maintain(view, Kind.CHECKPOINT_PINNED, {"c": 0}, "L1"))
    assert upkeep.state.controller == "L1"  # its epoch is still the newest
    start(store, "L2")
    before = store.run(replay()).next_seq
    for act in (
        maintain(upkeep, Kind.CHECKPOINT_UNPINNED, {"c": 0}, "L1"),
        maintain(view, Kind.CHECKPOINT_RETIRED, {"c": 0}, "L1"),
        claim_controller(view, "L1"),
    ):
        with pytest.raises(Superseded):
            store.run(act)
    after = store.run(replay())
    assert after.next_seq == before and after.state.checkpoints[0].pinned
    assert store.run(maintain(view, Kind.CHECKPOINT_UNPINNED, {"c": 0}, "C")).state.controller == "C"


def test_two_claims_at_once_are_two_generations(store):
    results = store.together(
        *((claim_generation(EMPTY, launch_id=launch, members=("dp0",)), {}, "dp0") for launch in ("A", "B"))
    )
    assert sorted(claim.token.generation for claim in results) == [1, 2]


def test_an_ended_run_is_not_claimed_until_it_is_extended(store):
    claim = start(store)
    view = commits(store, claim, 1)
    store.run(ending.succeed(view, claim.token, c=0, target=1))
    with pytest.raises(RunEnded):
        start(store)
    view = store.run(ending.extend(view, launch_id="L1", target=9))
    assert view.state.target == 9 and view.state.terminal is None
    assert store.run(ending.extend(view, launch_id="L1", target=9)).next_seq == view.next_seq
    assert start(store).token.generation == 2


def test_only_success_is_extended(store):
    claim = start(store)
    store.run(ending.fail(claim.view, claim.token, reason="x"))
    with pytest.raises(RunEnded):
        store.run(ending.extend(claim.view, launch_id="L1", target=9))


def test_only_named_principals_cancel(store):
    claim = start(store)
    with pytest.raises(RecordRefused, match="eve"):
        store.run(ending.cancel(claim.view, launch_id="O", principal="eve", reason=""))
    view = store.run(ending.cancel(claim.view, launch_id="O", principal="operator", reason=""))
    assert view.state.terminal.outcome == "cancelled" and not view.state.active


def test_controllers_replace_each_other_without_disturbing_workers(store):
    claim = start(store)
    view, first = store.run(claim_controller(claim.view, "C1"))
    view, second = store.run(claim_controller(view, "C2"))
    assert (first, second) == (1, 2) and view.state.generation == 1
    commits(store, claim, 1)


def test_maintenance_takes_an_epoch_only_when_it_has_none(store):
    view = commits(store, start(store), 1)
    view = store.run(maintain(view, Kind.CHECKPOINT_PINNED, {"c": 0}, "C"))
    view = store.run(maintain(view, Kind.CHECKPOINT_KNOWN_GOOD, {"c": 0, "evidence": "e"}, "C"))
    assert view.state.epoch == 1
    info = view.state.checkpoints[0]
    assert info.pinned and info.known_good and info.evidence == "e"


def test_a_fork_starts_where_it_says_under_the_new_spec(store):
    view = commits(store, start(store), 1, 2)
    fork = {"launch_id": "F", "spec": {"lr": 2}, "spec_digest": DIGEST, "diff": ["lr"]}
    store.run(ending.fork(view, origin=0, **fork))
    assert start(store, "O").restore_point.c == 1, "for another launch the fork does not exist"
    store.run(ending.fork(store.run(replay()), origin=0, **fork))
    claim = start(store, "F")
    assert claim.restore_point.c == 0 and claim.view.state.spec == {"lr": 2}
    assert [f.diff for f in claim.view.state.forks] == [["lr"]]


def test_failures_drains_and_promises_are_recorded(store):
    claim = start(store)
    token = claim.token
    view = store.run(
        ending.record_failure(
            claim.view, token, failure_class="F10", signature="s", evidence={"errno": 28}, step=4
        )
    )
    view = store.run(ending.drain(view, token, reason="SIGTERM", step=5))
    view = store.run(ending.lower_promise(view, token, to=Promise.COVERAGE, reason="torch"))
    assert store.run(ending.lower_promise(view, token, to=Promise.BITWISE, reason="")) is view
    (line,) = view.state.failures
    assert (line.generation, line.payload["class"]) == (1, "F10")
    assert view.state.draining["step"] == 5 and view.state.promise is Promise.COVERAGE


def test_a_claim_that_always_loses_gives_up(store):
    claim = start(store)
    taken = [0]

    def spoil(effect):
        if getattr(effect, "data", b"").find(b'"launch_id":"L2"') >= 0:
            store.spoil = lambda effect: None
            store.run(ending.drain(store.run(replay()), claim.token, reason="x", step=taken[0]))
            store.spoil = spoil
            taken[0] += 1

    store.spoil = spoil
    with pytest.raises(LostSlot, match="lost 16 races"):
        start(store, "L2")
    assert taken[0] == 16


def test_a_worker_of_an_older_attempt_never_fences_its_successor(store):
    start(store)
    second = start(store)  # another attempt of the same launch
    for _ in range(2):
        with pytest.raises(Fenced, match="run is at generation 2"):
            start(store, after=1)
    assert store.run(replay(EMPTY)).state.generation == 2
    assert start(store, after=2).token == Token(3, second.token.launch_id)


def test_a_claim_after_ones_own_loses_to_whoever_claims_first(store):
    """The other's record takes the slot between the look and the claim."""
    start(store)
    programs = [claim_generation(EMPTY, launch_id="L1", members=("dp0",), after=1) for _ in range(2)]
    outcomes = store.together(*((program, {}, "dp0") for program in programs))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Claim", "Fenced"]
    assert store.run(replay(EMPTY)).state.generation == 2


def test_after_another_launch_took_over_nothing_of_the_first_is_claimed(store):
    start(store)
    start(store, "L2")
    with pytest.raises(Superseded):
        start(store, after=1)
    with pytest.raises(Superseded):
        start(store, after=2)  # that generation is not of this launch


def test_a_claim_that_was_made_for_a_worker_is_as_if_it_had_made_it(store):
    first = start(store)
    commits(store, first, 1, 2)
    made = start(store)
    found = store.run(taken(EMPTY, made.token))
    assert (found.token, found.restore_point) == (made.token, made.restore_point)
    assert found.before == made.before and found.before.generation == 1
    assert Replaced.by(found) == Replaced.by(made)
    later = commits(store, found, 3)
    assert later.state.head_step == 3
    assert store.run(taken(EMPTY, made.token)).before == made.before


@pytest.mark.parametrize("token", [Token(1, "L1"), Token(3, "L1"), Token(2, "L2")])
def test_a_claim_that_is_not_the_newest_is_not_taken(store, token):
    start(store)
    start(store)
    with pytest.raises(Fenced):
        store.run(taken(EMPTY, token))


def test_the_claim_of_an_ended_run_is_not_taken(store):
    claim = start(store)
    store.run(ending.cancel(EMPTY, launch_id="op", principal="operator", reason="enough"))
    with pytest.raises(RunEnded):
        store.run(taken(EMPTY, claim.token))
