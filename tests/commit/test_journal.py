"""Appending: one identity over all retries, doubt settled only in its slot, authority at the tail."""

from __future__ import annotations

import pytest
from commit_harness import Store, lost_ack, new_run, start

from durable_core.commit import effects as fx
from durable_core.commit.claim import claim_generation
from durable_core.commit.journal import EMPTY, AppendInDoubt, Draft, View, append, replay, settle
from durable_core.errors import (
    Fenced,
    FormatError,
    InDoubt,
    JournalBrokenError,
    LostSlot,
    RecordRefused,
    RunEnded,
    Superseded,
    TierFull,
    TierUnavailable,
)
from durable_core.format.layout import journal_key
from durable_core.format.record import Kind, decode

FAILURE = {"class": "F1", "signature": "s", "evidence": None, "step": 1}


def draft(claim, payload=FAILURE, kind=Kind.FAILURE):
    return Draft.by(claim.token, kind, payload)


def records(store: Store) -> list:
    keys = sorted(key for key in store.objects if key.startswith("journal/"))
    return [decode(store.objects[key], key=key) for key in keys]


@pytest.fixture
def store() -> Store:
    store = Store()
    new_run(store)
    return store


def test_append_and_replay_agree(store):
    claim = start(store)
    view = store.run(append(claim.view, draft(claim)))
    assert store.run(replay()) == view
    assert view.next_seq == 3 and view.voids == () and len(view.state.failures) == 1


def test_a_lost_acknowledgement_is_recognised_by_its_op_id(store):
    claim = start(store)
    lost_ack(store, 0, applied=True)
    view = store.run(append(claim.view, draft(claim)))
    assert view.doubt is None and len(view.state.failures) == 1
    assert len(records(store)) == 3


def test_a_put_that_did_not_arrive_is_sent_again_with_the_same_identity(store):
    claim = start(store)
    lost_ack(store, 0, applied=False)
    store.log.clear()
    view = store.run(append(claim.view, draft(claim)))
    puts = [effect for effect in store.log if isinstance(effect, fx.PutIfAbsent)]
    assert len(puts) == 2 and puts[0] == puts[1]
    assert len(view.state.failures) == 1


def test_a_slot_that_cannot_be_settled_stays_in_doubt_and_nothing_goes_past_it(store):
    claim = start(store)

    def silent(effect):
        if isinstance(effect, fx.PutIfAbsent):
            raise InDoubt("no answer")

    store.spoil = silent
    with pytest.raises(AppendInDoubt) as caught:
        store.run(append(claim.view, draft(claim), attempts=3))
    view = caught.value.view
    assert view.doubt is not None and view.next_seq == 2
    with pytest.raises(AppendInDoubt):
        store.run(append(view, draft(claim), attempts=2))
    assert {e.key for e in store.log if isinstance(e, fx.PutIfAbsent)} == {journal_key(n) for n in range(3)}
    store.spoil = lambda effect: None
    after = store.run(append(view, draft(claim)))
    assert [record.op_id for record in records(store)][2] == view.doubt.op_id
    assert after.next_seq == 4 and len(after.state.failures) == 2


def test_a_late_arrival_is_found_by_replay(store):
    claim = start(store)
    view = _in_doubt(store, claim)
    assert store.run(replay(view)).doubt is view.doubt  # an empty slot proves nothing
    store.put(_late[0].key, _late[0].data)
    settled = store.run(replay(view))
    assert settled.doubt is None and len(settled.state.failures) == 1


def test_a_doubt_can_be_abandoned_by_occupying_its_slot(store):
    claim = start(store)
    view = store.run(settle(_in_doubt(store, claim), abandon=True))
    assert view.doubt is None and len(view.state.failures) == 0
    assert not store.put(_late[0].key, _late[0].data), "the late request finds its slot taken"
    assert records(store)[2].kind is Kind.NOOP


def test_a_doubt_lost_to_a_newer_generation_fences(store):
    claim = start(store)
    view = _in_doubt(store, claim)
    start(store)
    with pytest.raises(Fenced):
        store.run(append(view, draft(claim)))
    assert len(store.run(replay()).state.failures) == 0


_late: list[fx.PutIfAbsent] = []


def _in_doubt(store: Store, claim) -> View:
    """A failure record sent, never answered, still under way (in ``_late``)."""
    _late.clear()

    def silent(effect):
        if isinstance(effect, fx.PutIfAbsent):
            _late.append(effect)
            raise InDoubt("no answer")

    store.spoil = silent
    with pytest.raises(AppendInDoubt) as caught:
        store.run(append(claim.view, draft(claim), attempts=1))
    store.spoil = lambda effect: None
    return caught.value.view


def test_a_clean_failure_after_a_lost_answer_does_not_clear_the_doubt(store):
    claim = start(store)
    answers = iter([InDoubt("no answer"), TierFull("no space")])

    def spoil(effect):
        if isinstance(effect, fx.PutIfAbsent):
            raise next(answers)

    store.spoil = spoil
    with pytest.raises(AppendInDoubt) as caught:
        store.run(append(claim.view, draft(claim)))
    assert caught.value.view.doubt is not None


@pytest.mark.parametrize("error", [TierFull("no space"), TierUnavailable("EIO")])
def test_a_definite_failure_is_no_doubt(store, error):
    claim = start(store)

    def spoil(effect):
        if isinstance(effect, fx.PutIfAbsent):
            raise error

    store.spoil = spoil
    with pytest.raises(type(error)):
        store.run(append(claim.view, draft(claim), attempts=2))


def test_losing_the_slot_to_a_harmless_record_appends_at_the_next(store):
    claim = start(store)
    store.run(append(claim.view, Draft(Kind.CONTROLLER_CLAIMED, {}, 1, "C", epoch=1)))
    view = store.run(append(claim.view, draft(claim)))
    assert view.next_seq == 4 and len(view.state.failures) == 1


def test_losing_the_slot_to_a_newer_generation_fences(store):
    claim = start(store)
    start(store)
    with pytest.raises(Fenced) as caught:
        store.run(append(claim.view, draft(claim)))
    assert type(caught.value) is Fenced
    assert len(records(store)) == 3


def test_losing_it_to_another_launch_says_so(store):
    claim = start(store)
    start(store, "L2")
    with pytest.raises(Superseded):
        store.run(append(claim.view, draft(claim)))


def test_the_end_of_the_run_refuses_its_worker(store):
    claim = start(store)
    store.run(append(claim.view, draft(claim, {"reason": "x"}, Kind.RUN_FAILED)))
    with pytest.raises(RunEnded):
        store.run(append(claim.view, draft(claim)))


def test_claims_and_exact_records_hear_of_a_lost_slot(store):
    claim = start(store)
    store.run(append(claim.view, draft(claim)))
    with pytest.raises(LostSlot):
        store.run(append(claim.view, draft(claim), exact=True))
    controller = Draft(Kind.CONTROLLER_CLAIMED, {}, 1, "C", epoch=1)
    with pytest.raises(LostSlot):
        store.run(append(claim.view, controller))


def test_what_would_be_void_is_not_written(store):
    claim = start(store)
    before = dict(store.objects)
    payload = {"c": 3, "step": 1, "parent": None}
    with pytest.raises(RecordRefused, match="c3 is not the next number, 0"):
        store.run(append(claim.view, draft(claim, payload, Kind.CHECKPOINT_ALLOCATED)))
    assert store.objects == before


def test_the_tail_is_made_durable_before_it_is_acted_on(store):
    claim = start(store)
    start(store)
    store.log.clear()
    with pytest.raises(Fenced):
        store.run(append(claim.view, draft(claim)))
    kinds = [type(effect) for effect in store.log]
    assert kinds.index(fx.SyncTail) > kinds.index(fx.Get)
    store.log.clear()
    store.run(replay())
    assert isinstance(store.log[-1], fx.SyncTail)


def test_a_broken_chain_is_named(store):
    start(store)
    key = journal_key(1)
    store.objects[key] = store.objects[key].replace(b'"prev":"sha256:', b'"prev":"sha256:0')[:-1]
    with pytest.raises(FormatError, match=key):
        store.run(replay())
    other = Store()
    new_run(other, "another")
    start(other, "another")
    store.objects[key] = other.objects[key]
    with pytest.raises(JournalBrokenError, match=key):
        store.run(replay())


def test_a_noop_in_the_first_slot_does_not_stop_the_run_from_being_created():
    store = Store()
    store.run(append(EMPTY, Draft(Kind.NOOP, {"reason": "settles"}, 0, "L1")))
    assert new_run(store).state.run_id == "run"


def test_two_creators_agree_on_one_run():
    store = Store()
    first = new_run(store, "A")
    second = new_run(store, "B")
    assert first.state == second.state


def test_a_claim_chooses_again_when_it_loses_its_slot(store):
    claim = start(store)
    steps = store.steps(claim_generation(EMPTY, launch_id="L2", members=("dp0",)))
    while not isinstance(next(steps), fx.PutIfAbsent):
        pass
    store.run(append(claim.view, draft(claim)))  # takes the slot under its nose
    result = None
    while result is None:
        try:
            next(steps)
        except StopIteration as done:
            result = done.value
    assert result.token.generation == 2 and result.view.next_seq == 4
