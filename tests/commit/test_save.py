"""Saving: one, two and three writers; killed anywhere; every answer lost; every check failing."""

from __future__ import annotations

import pytest
from commit_harness import Store, lost_ack, model_at, new_run, request, start

from durable_core.commit import effects as fx
from durable_core.commit.ending import cancel
from durable_core.commit.journal import AppendInDoubt, replay, settle
from durable_core.commit.request import Deadlines, SaveAborted, SaveOutcome
from durable_core.commit.save import save_coordinator, save_writer
from durable_core.errors import Fenced, InDoubt, RunEnded, TierFull, TierUnavailable
from durable_core.format import manifest as manifests
from durable_core.format.record import Kind
from durable_core.testing.invariants import read_checkpoint
from durable_core.testing.sim.content import Model, describe, slices_of
from durable_core.types import CheckpointState, CrashPoint

ROLES = ("dp0", "dp1", "dp2")


@pytest.fixture
def store() -> Store:
    store = Store()
    new_run(store)
    return store


def save(store, claim, view, model, **changes):
    asked = request(claim.token, model, **changes)
    return store.run(save_coordinator(view, asked), slices_of(model, "dp0"))


def save_all(store, claim, views, model, roles, **changes):
    programs = []
    for role, view in zip(roles, views, strict=True):
        program = save_coordinator if role == roles[0] else save_writer
        asked = request(claim.token, model, role, roles, **changes)
        programs.append((program(view, asked), slices_of(model, role), role))
    return store.together(*programs)


def restored(store) -> Model | None:
    """What a reader gets now: the newest committed checkpoint, complete."""
    state = store.run(replay()).state
    if state.head is None:
        return None
    info = state.checkpoints[state.head]
    return read_checkpoint(store.objects.get, info.manifest, info.manifest_digest)


@pytest.mark.parametrize("known", [True, False], ids=["slices given", "slices asked for"])
def test_one_writer_commits(store, known):
    claim = start(store)
    model = model_at(3)
    slices = tuple(info.slice for info in describe(slices_of(model, "dp0"))) if known else None
    outcome = save(store, claim, claim.view, model, slices=slices)
    assert (outcome.c, outcome.step, outcome.generation) == (0, 3, 1)
    assert restored(store) == model
    info = outcome.view.state.checkpoints[0]
    assert info.manifest_digest == outcome.manifest_digest and info.ledger is not None
    assert outcome.bytes < outcome.bytes_written == info.bytes_written


def test_one_writer_hashes_after_it_has_sent_its_shard(store):
    claim = start(store)
    model = model_at(1)
    slices = tuple(info.slice for info in describe(slices_of(model, "dp0")))
    save(store, claim, claim.view, model, slices=slices)
    kinds = [type(effect) for effect in store.log]
    assert kinds.index(fx.WriteShard) < kinds.index(fx.Describe)
    assert not any("/offer-" in getattr(effect, "key", "") for effect in store.log)


@pytest.mark.parametrize("roles", [ROLES[:2], ROLES], ids=len)
def test_several_writers_commit_one_checkpoint(store, roles):
    claim = start(store, roles=roles)
    views = [claim.view] * len(roles)
    for step in (1, 2):
        outcomes = save_all(store, claim, views, model_at(step), roles)
        assert all(isinstance(outcome, SaveOutcome) for outcome in outcomes), outcomes
        assert len({(o.c, o.manifest_digest) for o in outcomes}) == 1
        views = [outcome.view for outcome in outcomes]
    assert restored(store) == model_at(2)
    key = outcomes[0].manifest_key
    manifest = manifests.decode(store.objects[key], key=key)
    assert {"roles/dp1/state/n", "state/w", "roles/dp1/rng"} <= set(manifest.tensors)
    assert "state/n" not in manifest.tensors


@pytest.mark.parametrize("roles", [ROLES[:1], ROLES[:2]], ids=len)
def test_killed_at_any_instant_a_reader_sees_the_old_or_the_new(roles):
    """The coordinator dies before its n-th effect, for every n; a new generation goes on."""
    seen = set()
    n = 0
    while True:
        store = Store()
        new_run(store)
        claim = start(store, roles=roles)
        outcomes = save_all(store, claim, [claim.view] * len(roles), model_at(1), roles)
        programs = [
            (save_coordinator(outcomes[0].view, request(claim.token, model_at(2), "dp0", roles)), "dp0"),
            *(
                (save_writer(outcomes[0].view, request(claim.token, model_at(2), role, roles)), role)
                for role in roles[1:]
            ),
        ]
        running = [store.steps(program, slices_of(model_at(2), role), role) for program, role in programs]
        finished = _run_killing(running, n)
        seen.add(restored(store).step)
        assert restored(store) in (model_at(1), model_at(2))
        again = start(store, roles=("dp0",))
        after = model_at(2) if again.restore_point.step == 2 else model_at(1)
        goes_on = Model(after.history, after.step)
        while goes_on.step < 3:
            goes_on = goes_on.trained(2)
        save(store, again, again.view, goes_on, ledger=None)
        assert restored(store) == goes_on
        if finished:
            break
        n += 1
    assert seen == {1, 2} and n > 10


def _run_killing(running, n):
    """One effect each in turn; the first dies before its n-th. ``True`` when it had ended by then."""
    coordinator, *others = running
    done = 0
    alive = True
    while others or alive:
        if alive:
            if done == n:
                alive = False
            try:
                next(coordinator)
                done += 1
            except StopIteration:
                return True
        for other in list(others):
            try:
                next(other)
            except (StopIteration, SaveAborted):
                others.remove(other)
    return False


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_any_one_lost_answer_is_survived(applied):
    for nth in range(8):
        store = Store()
        new_run(store)
        claim = start(store)
        lost_ack(store, nth, applied=applied)
        outcome = save(store, claim, claim.view, model_at(1))
        store.spoil = lambda effect: None
        assert outcome.c == 0 and restored(store) == model_at(1)
        assert len(store.run(replay()).state.checkpoints) == 1


def test_a_lost_answer_for_a_document_makes_its_name_durable_before_the_commit(store):
    claim = start(store)

    def spoil(effect):
        manifest = isinstance(effect, fx.PutIfAbsent) and effect.key.endswith("manifest.json")
        if manifest and store.put(effect.key, effect.data):
            raise InDoubt("linked, but the directory was not synced")

    store.spoil = spoil
    save(store, claim, claim.view, model_at(1))
    syncs = [i for i, e in enumerate(store.log) if isinstance(e, fx.SyncTail) and "checkpoints/" in e.prefix]
    commit = max(i for i, e in enumerate(store.log) if isinstance(e, fx.PutIfAbsent))
    assert syncs and syncs[0] < commit


def test_a_foreign_manifest_in_place_is_not_committed(store):
    claim = start(store)

    def spoil(effect):
        if isinstance(effect, fx.PutIfAbsent) and effect.key.endswith("manifest.json"):
            store.put(effect.key, b"something else")

    store.spoil = spoil
    with pytest.raises(SaveAborted, match="taken by something else"):
        save(store, claim, claim.view, model_at(1))
    assert restored(store) is None


def test_a_commit_in_doubt_is_neither_success_nor_failure(store):
    claim = start(store)
    late = []

    def spoil(effect):
        if isinstance(effect, fx.PutIfAbsent) and b"checkpoint.committed" in effect.data:
            late.append(effect)
            raise InDoubt("no answer")

    store.spoil = spoil
    with pytest.raises(AppendInDoubt) as caught:
        save(store, claim, claim.view, model_at(1))
    view = caught.value.view
    assert view.doubt.kind is Kind.CHECKPOINT_COMMITTED
    assert view.state.checkpoints[0].state is CheckpointState.ALLOCATED  # so nothing sweeps it
    store.spoil = lambda effect: None
    outcome = save(store, claim, view, model_at(2))
    assert outcome.view.state.checkpoints[0].usable, "the doubted commit was settled first, and counts"
    assert outcome.c == 1 and outcome.view.state.lineage() == (0, 1)
    assert not store.put(late[0].key, late[0].data)


def test_a_doubted_commit_may_be_given_up_by_occupying_its_slot(store):
    claim = start(store)

    def spoil(effect):
        if isinstance(effect, fx.PutIfAbsent) and b"checkpoint.committed" in effect.data:
            raise InDoubt("no answer")

    store.spoil = spoil
    with pytest.raises(AppendInDoubt) as caught:
        save(store, claim, claim.view, model_at(1))
    view = store.run(settle(caught.value.view, abandon=True))
    assert view.state.head is None and view.doubt is None


def test_a_missing_writer_costs_one_save(store):
    claim = start(store, roles=ROLES[:2])
    asked = request(claim.token, model_at(1), "dp0", ROLES[:2])
    with pytest.raises(SaveAborted, match="no offer of dp1") as caught:
        store.run(save_coordinator(claim.view, asked), slices_of(model_at(1), "dp0"))
    view = caught.value.view
    assert caught.value.c == 0 and view.state.checkpoints[0].state is CheckpointState.ABORTED
    outcomes = save_all(store, claim, [view, view], model_at(2), ROLES[:2])
    assert outcomes[0].c == 1 and restored(store) == model_at(2)


@pytest.mark.parametrize("failing", ROLES[:2])
@pytest.mark.parametrize("what", ["offer-", "shard-", "receipt-"])
def test_a_writer_that_fails_tells_the_others_at_once(store, failing, what):
    roles = ROLES[:2]
    claim = start(store, roles=roles)

    def spoil(effect):
        if isinstance(effect, (fx.PutIfAbsent, fx.WriteShard)) and f"{what}{failing}" in effect.key:
            raise TierFull(f"no space for {failing}")

    store.spoil = spoil
    patient = Deadlines(500.0, 500.0, 500.0, 500.0)
    outcomes = save_all(store, claim, [claim.view] * 2, model_at(1), roles, deadlines=patient)
    assert all(isinstance(outcome, SaveAborted) for outcome in outcomes)
    assert all(f"no space for {failing}" in str(outcome) for outcome in outcomes)
    assert store.clock < 5.0
    store.spoil = lambda effect: None
    views = [outcome.view for outcome in outcomes]
    assert save_all(store, claim, views, model_at(2), roles)[0].step == 2


def test_a_stranger_that_fails_has_nothing_to_say(store):
    claim = start(store, roles=ROLES[:1])
    view = save(store, claim, claim.view, model_at(1)).view
    steps = store.steps(
        save_coordinator(view, request(claim.token, model_at(2))), slices_of(model_at(2), "dp0")
    )
    while not isinstance(next(steps), fx.WriteShard):
        pass
    asked = request(claim.token, model_at(2), "dp9", ("dp0", "dp9"))
    with pytest.raises(SaveAborted, match="no offer of dp0"):
        store.run(save_writer(view, asked), slices_of(model_at(2), "dp9"), "dp9")
    assert store.run(replay()).state.checkpoints[1].state is CheckpointState.ALLOCATED


def test_a_writer_without_a_coordinator_gives_up(store):
    claim = start(store, roles=ROLES[:2])
    asked = request(claim.token, model_at(1), "dp1", ROLES[:2])
    with pytest.raises(SaveAborted, match="has not allocated step 1"):
        store.run(save_writer(claim.view, asked), slices_of(model_at(1), "dp1"), "dp1")


def test_a_writer_left_behind_gives_up_at_once(store):
    claim = start(store)
    save(store, claim, claim.view, model_at(2))
    behind = request(claim.token, model_at(1), "dp1", ROLES[:2])
    before = store.clock
    with pytest.raises(SaveAborted, match="gone on to step 2"):
        store.run(save_writer(claim.view, behind), slices_of(model_at(1), "dp1"), "dp1")
    assert store.clock == before


def test_a_writer_of_another_step_is_not_mixed_in(store):
    roles = ROLES[:2]
    claim = start(store, roles=roles)

    def spoil(effect):
        """dp1 signs, under the key of step 2, for step 1."""
        if isinstance(effect, fx.PutIfAbsent) and effect.key.endswith("offer-dp1.json"):
            object.__setattr__(effect, "data", effect.data.replace(b'"step":2', b'"step":1'))

    store.spoil = spoil
    outcomes = save_all(store, claim, [claim.view] * 2, model_at(2), roles)
    assert all(isinstance(outcome, SaveAborted) for outcome in outcomes)
    assert restored(store) is None


def test_a_shard_of_another_size_is_not_committed(store):
    claim = start(store)

    def spoil(effect):
        if isinstance(effect, fx.Size):
            store.objects[effect.key] += b"x"

    store.spoil = spoil
    with pytest.raises(SaveAborted, match="bytes instead of"):
        save(store, claim, claim.view, model_at(1))


@pytest.mark.parametrize("error", [TierFull("no space"), TierUnavailable("EIO"), InDoubt("?")])
@pytest.mark.parametrize("what", ["shard", "manifest", "receipt", "ledger/"])
def test_storage_failures_leave_the_previous_checkpoint(store, error, what):
    claim = start(store)
    first = save(store, claim, claim.view, model_at(1))

    def spoil(effect):
        if isinstance(effect, (fx.PutIfAbsent, fx.WriteShard)) and what in effect.key:
            raise error

    store.spoil = spoil
    with pytest.raises(SaveAborted) as caught:
        save(store, claim, first.view, model_at(2))
    assert caught.value.__cause__ is error or type(error).__name__ in repr(caught.value.__cause__)
    assert restored(store) == model_at(1)
    store.spoil = lambda effect: None
    assert save(store, claim, caught.value.view, model_at(3)).c == 2


def test_a_full_disk_does_not_even_take_the_abort(store):
    claim = start(store)
    first = save(store, claim, claim.view, model_at(1))

    def spoil(effect):
        if isinstance(effect, (fx.PutIfAbsent, fx.WriteShard)):
            raise TierFull("no space")

    store.spoil = spoil
    with pytest.raises(SaveAborted):
        save(store, claim, first.view, model_at(2))
    store.spoil = lambda effect: None
    assert save(store, claim, first.view, model_at(3)).step == 3


def test_a_fenced_writer_stops_and_commits_nothing(store):
    claim = start(store)
    first = save(store, claim, claim.view, model_at(1))
    asked = request(claim.token, model_at(2))
    steps = store.steps(save_coordinator(first.view, asked), slices_of(model_at(2), "dp0"))
    while True:  # up to the moment before the commit record is sent
        effect = next(steps)
        if isinstance(effect, fx.PutIfAbsent) and b"checkpoint.committed" in effect.data:
            break
    newer = start(store, "L2")
    saved = save(store, newer, newer.view, model_at(1).trained(2))
    with pytest.raises(Fenced):
        while True:
            next(steps)
    assert store.run(replay()).state.head == saved.c
    with pytest.raises(Fenced):
        save(store, claim, first.view, model_at(3))


def test_the_end_of_the_run_stops_a_save(store):
    claim = start(store)
    store.run(cancel(claim.view, launch_id="O", principal="operator", reason="x"))
    with pytest.raises(RunEnded):
        save(store, claim, claim.view, model_at(1))


def test_a_step_that_is_not_ahead_is_not_saved_again(store):
    claim = start(store)
    outcome = save(store, claim, claim.view, model_at(2))
    with pytest.raises(SaveAborted, match="at step 2 already"):
        save(store, claim, outcome.view, model_at(2))
    assert len(store.run(replay()).state.checkpoints) == 1


def test_reused_slices_are_referred_to_and_named(store):
    claim = start(store)
    first = save(store, claim, claim.view, model_at(1))
    second = save(store, claim, first.view, model_at(2))
    assert second.view.state.checkpoints[1].reuses == (0,) and restored(store) == model_at(2)
    assert second.bytes_written < first.bytes_written


def test_crash_points_come_in_order(store):
    claim = start(store, roles=ROLES[:2])
    store.log.clear()
    save_all(store, claim, [claim.view] * 2, model_at(1), ROLES[:2])
    points = [effect.point for effect in store.log if isinstance(effect, fx.Reached)]
    K = CrashPoint
    wanted = [K.K0, K.K1, K.K8, K.K20, K.K9, K.K10, K.K12, K.K13, K.K15]
    assert [point for i, point in enumerate(points) if point not in points[:i]] == wanted


def test_no_wait_is_longer_than_its_deadline(store):
    claim = start(store, roles=ROLES)
    before = store.clock
    with pytest.raises(SaveAborted):
        asked = request(claim.token, model_at(1), "dp0", ROLES)
        store.run(save_coordinator(claim.view, asked), slices_of(model_at(1), "dp0"))
    assert store.clock - before <= 1.0 + 1e-9
