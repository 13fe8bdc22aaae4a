"""A plain loop as people write it: what is asked for wrongly is refused, and nothing happens in silence."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path

import pytest
import torch
from attack_runs import Parts

from durable_core import DurableSession, errors
from durable_core.engine.audit import audit
from durable_core.engine.inspect import open_run
from durable_core.session import Drained, Run, World
from durable_core.spec import RunSpec
from durable_core.tier.posix import PosixTier


def session(root: Path, parts: Parts, **settings: object) -> DurableSession:
    settings.setdefault("every_n_steps", 100)
    return DurableSession.open(root, state=parts.state, **settings)  # type: ignore[arg-type]


# --- the data position -------------------------------------------------------------------------


def test_a_resume_without_the_loader_is_refused(tmp_path: Path) -> None:
    """It began the data again from its start, with the weights of step 4."""
    parts = Parts()
    with session(tmp_path, parts) as run:
        parts.train(run, 4)
    fresh = Parts()
    before = fresh.weights()
    state = {"model": fresh.model, "optimizer": fresh.optimizer}
    with pytest.raises(errors.SpecMismatchError, match="holds a data position"):
        DurableSession.open(tmp_path, state=state)
    assert all(torch.equal(a, b) for a, b in zip(before, fresh.weights(), strict=True))


def test_a_loader_that_the_checkpoint_knows_nothing_of_is_refused(tmp_path: Path) -> None:
    parts = Parts()
    DurableSession.open(tmp_path, state={"model": parts.model, "optimizer": parts.optimizer}).close()
    with pytest.raises(errors.SpecMismatchError, match="holds no data position"):
        session(tmp_path, Parts())


def test_the_seed_of_a_start_that_died_before_its_first_commit_is_the_runs(tmp_path: Path) -> None:
    Run.open(tmp_path, spec=RunSpec(seed=11)).close()
    parts = Parts(seed=22)
    with pytest.warns(UserWarning, match="seed: 11 -> 22"):
        run = session(tmp_path, parts)
    assert (run.run.seed, parts.loader.seed) == (11, 11)
    run.close()


def test_two_writers_do_not_both_train_on_everything(tmp_path: Path) -> None:
    world = World("dp1", ("dp0", "dp1"), lambda value: value, lambda value: [value, value])
    with pytest.raises(errors.UsageError, match=r"share 0 of 1.*replica=1, replicas=2"):
        session(tmp_path, Parts(), world=world)
    assert not tmp_path.joinpath("journal").exists()


def test_a_state_that_is_refused_leaves_no_owner_behind(tmp_path: Path) -> None:
    parts, other = Parts(), Parts()
    for state in ({**parts.state, "second": other.loader}, {**parts.state, "x": object()}):
        with pytest.raises(errors.UsageError):
            DurableSession.open(tmp_path, state=state)
    session(tmp_path, parts).close()


# --- boundaries --------------------------------------------------------------------------------


def test_a_save_between_the_update_and_its_boundary_is_refused(tmp_path: Path) -> None:
    """The model had trained on the batch and the cursor had not: a restart trained on it twice."""
    parts = Parts()
    with session(tmp_path, parts) as run:
        for batch in parts.loader:
            parts.update(batch)
            with pytest.raises(errors.UsageError, match="since the boundary of step 0"):
                run.save()
            run.step()
            assert run.save(wait=True)
            break
    assert open_run(tmp_path).newest_usable().step == 1


def test_leaving_the_block_makes_the_last_step_durable(tmp_path: Path) -> None:
    parts = Parts()
    with session(tmp_path, parts) as run:
        parts.train(run, 5)
    assert open_run(tmp_path).newest_usable().step == 5
    again = Parts()
    with session(tmp_path, again) as run:
        assert run.restored == (1, 5)
        again.train(run, 7)
    reference = Parts()
    with session(tmp_path / "reference", reference) as run:
        reference.train(run, 12)
    assert all(torch.equal(a, b) for a, b in zip(again.weights(), reference.weights(), strict=True))
    assert audit(open_run(tmp_path)).sound


def test_a_loop_that_breaks_at_its_top_keeps_all_of_its_steps(tmp_path: Path) -> None:
    """What followed the last cadence save was lost, with a warning, though nothing was trained since."""

    def lives(root: Path, *ends: int) -> Parts:
        for end in ends:
            parts = Parts()
            with session(root, parts) as run:
                for batch in parts.loader:
                    if run.steps >= end:
                        break
                    parts.update(batch)
                    run.step()
            assert open_run(root).newest_usable().step == end
        return parts

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        once, often = lives(tmp_path / "once", 9), lives(tmp_path / "often", 3, 3, 4, 9)
    assert all(torch.equal(a, b) for a, b in zip(once.weights(), often.weights(), strict=True))
    assert audit(open_run(tmp_path / "often")).sound


@pytest.mark.parametrize("begun", ["forward", "update"])
def test_leaving_the_block_within_a_step_saves_no_half_of_it(tmp_path: Path, begun: str) -> None:
    parts = Parts()
    told = "a batch was taken after step 3, and training had begun on it.*What follows step 0 is done again"
    with pytest.warns(UserWarning, match=told), session(tmp_path, parts) as run:
        for batch in parts.loader:
            if run.steps == 3:
                if begun == "update":
                    parts.update(batch)
                else:
                    parts.model(batch)
                break
            parts.update(batch)
            run.step()
    assert open_run(tmp_path).newest_usable().step == 0
    assert len(parts.loader.before_next) == 0


def test_a_loop_that_never_calls_step_is_told(tmp_path: Path) -> None:
    parts = Parts()
    told = r"12 batches were taken, and run.step\(\) was never called .*the run is still at step 0"
    with pytest.warns(UserWarning, match=told), session(tmp_path, parts):
        for batch in parts.loader:
            parts.update(batch)


def test_all_writers_save_at_the_end_or_none_does(tmp_path: Path) -> None:
    """Another one had begun a step: saving takes all of them."""
    other = "a forward pass was computed"
    world = World(
        "dp0", ("dp0",), lambda value: value, lambda value: [value, other] if value == "" else [value]
    )
    parts = Parts()
    with (
        pytest.warns(UserWarning, match=f"training went on .{other}"),
        session(tmp_path, parts, world=world) as run,
    ):
        parts.train(run, 3)
    assert open_run(tmp_path).newest_usable().step == 0


def test_an_error_in_the_block_saves_nothing_and_is_not_replaced(tmp_path: Path) -> None:
    parts = Parts()
    with pytest.raises(ZeroDivisionError), session(tmp_path, parts) as run:
        parts.train(run, 2)
        os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError
    assert open_run(tmp_path).newest_usable().step == 0


# --- SIGTERM -----------------------------------------------------------------------------------


def test_a_sigterm_after_the_last_boundary_is_honoured(tmp_path: Path) -> None:
    parts = Parts()
    with pytest.raises(Drained) as caught, session(tmp_path, parts) as run:
        parts.train(run, 3)
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 75
    assert open_run(tmp_path).newest_usable().step == 3


def test_sigterm_ends_with_75_also_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts()
    run = session(tmp_path, parts)
    parts.train(run, 2)

    def full(*_: object) -> int:
        raise errors.TierFull("no space")

    monkeypatch.setattr(PosixTier, "write_object", full)
    for number in (signal.SIGTERM, signal.SIGTERM):  # twice is once
        os.kill(os.getpid(), number)
    try:
        with pytest.warns(UserWarning, match="no space"), pytest.raises(Drained):
            parts.train(run, 1)
        os.kill(os.getpid(), signal.SIGTERM)  # nor does a later one change how it ends
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_forked_child_can_be_terminated(tmp_path: Path) -> None:
    """It inherited the handler, which waits for a boundary that a child never comes to."""
    run = session(tmp_path, Parts())
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends the child, wrongly, should the test fail
        os.write(tell, b"!")  # a signal that comes before the interpreter is set up again is lost
        while True:
            pass
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
    run.close()


# --- trouble is told ---------------------------------------------------------------------------


def test_a_failed_save_is_told_without_being_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts()
    run = session(tmp_path, parts, every_n_steps=2)

    def full(*_: object) -> int:
        raise errors.TierFull("no space")

    with monkeypatch.context() as filled:
        filled.setattr(PosixTier, "write_object", full)
        with pytest.warns(UserWarning, match=r"save of step 2 failed.*durable: step 0.*no space"):
            parts.train(run, 2)
    parts.train(run, 2)
    run.close()
    assert open_run(tmp_path).newest_usable().step == 4
    assert audit(open_run(tmp_path)).sound


def test_a_step_down_is_told(tmp_path: Path) -> None:
    parts = Parts()
    with session(tmp_path, parts) as run:
        parts.train(run, 2)
    for path in tmp_path.glob("checkpoints/*c00000001*/shard-*"):
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="checkpoint 1 is damaged"):
        session(tmp_path, Parts()).close()
