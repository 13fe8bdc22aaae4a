"""Retiring and sweeping: the journal first, bounded, killed anywhere, run twice."""

from __future__ import annotations

import pytest
from commit_harness import Store, model_at, new_run, request, start

from durable_core.commit import effects as fx
from durable_core.commit.claim import claim_controller, mark_corrupt
from durable_core.commit.collect import is_dead, retire, sweep
from durable_core.commit.ending import fail
from durable_core.commit.journal import EMPTY, replay
from durable_core.commit.request import SaveAborted
from durable_core.commit.retention import Retention
from durable_core.commit.save import save_coordinator
from durable_core.errors import Fenced, TierUnavailable
from durable_core.format import layout
from durable_core.testing.invariants import read_checkpoint
from durable_core.testing.sim.content import slices_of
from durable_core.types import CrashPoint


class Run:
    def __init__(self, *steps: int) -> None:
        self.store = Store()
        new_run(self.store)
        self.claim = start(self.store)
        self.view = self.claim.view
        for step in steps:
            self.save(step)

    def save(self, step, **changes):
        model = model_at(step)
        program = save_coordinator(self.view, request(self.claim.token, model, **changes))
        self.outcome = self.store.run(program, slices_of(model, "dp0"))
        self.view = self.outcome.view

    def retire(self, keep_last=1, **how):
        done = self.store.run(retire(self.view, Retention(keep_last), launch_id="C", **how))
        self.view = done.view
        return done

    def half(self, step):
        """A save that dies before its commit."""
        program = save_coordinator(self.view, request(self.claim.token, model_at(step)))
        for effect in self.store.steps(program, slices_of(model_at(step), "dp0")):
            if isinstance(effect, fx.Reached) and effect.point is CrashPoint.K12:
                break
        self.view = self.store.run(replay(self.view))

    def sweep(self, **how):
        return self.store.run(sweep(EMPTY, **how))

    def present(self):
        keys = [key for key in self.store.objects if key.startswith("checkpoints/")]
        return sorted({layout.parse_checkpoint_key(key).name.c for key in keys})

    def sound(self):
        """Every checkpoint the journal still holds restores."""
        for info in self.store.run(replay()).state.checkpoints.values():
            if info.usable:
                read_checkpoint(self.store.objects.get, info.manifest, info.manifest_digest)


def test_the_journal_says_so_before_a_byte_goes():
    run = Run(1, 2, 3)
    run.store.log.clear()
    done = run.retire()
    assert [each.c for each in done.retired] == [0, 1] and done.epoch == 1
    assert not any(isinstance(effect, fx.Delete) for effect in run.store.log)
    assert run.present() == [0, 1, 2]
    assert run.sweep().complete and run.present() == [0, 2], "the base lies in c0"
    run.sound()


def test_nothing_to_retire_writes_nothing():
    run = Run(1)
    before = run.view.next_seq
    assert run.retire().epoch is None and run.view.next_seq == before


def test_an_epoch_is_taken_once_and_lost_to_another_controller():
    run = Run(1, 2)
    epoch = run.retire().epoch
    run.save(3)
    assert run.retire(epoch=epoch).epoch == epoch == run.view.state.epoch
    run.save(4)
    run.view, _ = run.store.run(claim_controller(run.view, "D"))
    with pytest.raises(Fenced):
        run.retire(epoch=epoch)


def test_retirement_is_decided_at_the_tail_it_lands_on():
    """Two of three are found corrupt while the controller is about to retire the third."""
    run = Run(1, 2, 3)
    steps = run.store.steps(retire(run.view, Retention(2), launch_id="C"))
    while not (isinstance(effect := next(steps), fx.PutIfAbsent) and b"retired" in effect.data):
        pass
    for c in (2, 1):
        run.store.run(mark_corrupt(EMPTY, c, launch_id="S", reason="scrub"))
    with pytest.raises((StopIteration, Fenced)):
        while True:
            next(steps)
    assert run.store.run(replay()).state.checkpoints[0].usable


def test_a_sweep_is_bounded_and_the_manifest_goes_last():
    run = Run(1, 2)
    run.retire()
    deleted = []
    while True:
        swept = run.sweep(budget=1)
        deleted += swept.deleted
        assert len(swept.deleted) <= 1
        if swept.complete:
            break
    assert deleted[-1].endswith("manifest.json") and len(deleted) == 2


def test_a_sweep_may_be_killed_anywhere_and_run_twice():
    n = 0
    while True:
        run = Run(1, 2, 3)
        run.retire()
        steps = run.store.steps(sweep(EMPTY))
        finished = False
        try:
            for _ in range(n):
                next(steps)
        except StopIteration:
            finished = True
        run.sound()
        assert run.sweep().complete and run.sweep().deleted == ()
        assert run.present() == [0, 2]
        run.sound()
        if finished:
            break
        n += 1
    assert n > 10


def test_two_sweeps_at_once():
    run = Run(1, 2, 3)
    run.retire()
    run.store.together((sweep(EMPTY), {}, ""), (sweep(EMPTY), {}, ""))
    assert run.present() == [0, 2]
    run.sound()


def test_residue_of_a_dead_generation_goes_at_once_and_of_the_live_one_stays():
    run = Run(1)
    run.half(2)
    assert run.sweep().deleted == () and run.present() == [0, 1]
    start(run.store)
    assert run.sweep().complete and run.present() == [0]
    run.sound()


def test_what_was_aborted_goes_even_in_the_live_generation():
    run = Run(1)

    def spoil(effect):
        if isinstance(effect, fx.Size):
            raise TierUnavailable("EIO")

    run.store.spoil = spoil
    with pytest.raises(SaveAborted):
        run.save(2)
    run.store.spoil = lambda effect: None
    assert run.sweep().complete and run.present() == [0]


def test_the_end_of_the_run_makes_all_residue_dead():
    run = Run(1)
    run.half(2)
    run.store.run(fail(run.view, run.claim.token, reason="x"))
    assert run.sweep().complete and run.present() == [0]


def test_orphans_of_a_writer_back_from_the_dead_are_swept():
    run = Run(1)
    run.half(2)
    start(run.store)
    run.sweep()
    name = layout.CheckpointName(1, 1, run.view.state.checkpoints[1].nonce)
    run.store.objects[name.shard("dp0")] = b"late"
    run.store.objects[layout.CheckpointName(1, 7, "f" * 8).shard("dp0")] = b"never heard of"
    assert run.sweep().complete and run.present() == [0]


def test_allocations_newer_than_the_view_are_left_alone():
    state = Run(1).view.state
    assert not is_dead(state, layout.CheckpointName(1, 5, "a" * 8))
    assert not is_dead(state, layout.CheckpointName(2, 5, "a" * 8))
    assert not is_dead(state, layout.CheckpointName(1, 0, "b" * 8))
    assert is_dead(state, layout.CheckpointName(0, 5, "a" * 8))


def test_objects_that_are_reused_outlive_their_checkpoint():
    run = Run(1, 2, 3)
    assert [retire.c for retire in run.retire().retired] == [0, 1]
    swept = run.sweep()
    shards = [layout.parse_checkpoint_key(key).name.c for key in swept.deleted if "shard" in key]
    assert swept.complete and shards == [1], "of c0 the frozen base is in use"
    run.sound()
    run.save(4)
    assert run.view.state.checkpoints[3].reuses == (0,), "through the parent, though c0 is retired"
    run.sound()
    run.store.objects.pop(run.outcome.manifest_key)
    assert run.sweep().kept_unread == (0,), "without the manifest nothing is known, so nothing goes"


def test_the_ledger_outlives_everything():
    run = Run(1, 2, 3)
    before = {key for key in run.store.objects if key.startswith("ledger/")}
    run.retire()
    run.sweep()
    assert {key for key in run.store.objects if key.startswith("ledger/")} == before
    assert len(before) == 6
