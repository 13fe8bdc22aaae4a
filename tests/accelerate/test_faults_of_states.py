"""Scripts that were started again and became another run by what they did around ``save_state`` and
``load_state``."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from states import Training, begin, end_all, named, pinned, pointer, run

from accelerate_durable import making, saving
from tests.lives import ended, kill_self, life, start

EPOCHS = 3


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    end_all()


# --- the best state, after the last pass --------------------------------------------------------------------


def best(home: Path, *, stops: bool = False, ends: bool = True, named: bool = True) -> Any:
    """Train, then take the best state and make something of it. ``stops``: killed before that."""
    training = begin(home)
    for _ in range(EPOCHS):
        training.epoch()
        training.accelerator.save_state()
    if stops:
        training.stop()
        return None
    training.accelerator.load_state(home / "checkpoints" / "checkpoint_0" if named else None)
    place = training.accelerator.save_state()
    if ends:
        training.accelerator.end_training()
    else:
        training.stop()
    return training.everything(), training.counts.epochs, place.name


@pytest.mark.parametrize("named", [True, False], ids=["named", "the newest"])
@pytest.mark.parametrize("ends", [True, False], ids=["ended", "killed at its end"])
def test_a_script_started_again_gets_the_state_it_asks_for_at_its_end(
    tmp_path: Path, ends: bool, named: bool
) -> None:
    expected = best(tmp_path / "whole", named=named)
    home = tmp_path / "parts"
    best(home, stops=True)
    for end in (ends, True, True):  # the last ones are of a run that has succeeded
        found = best(home, ends=end, named=named)
        assert found[:2] == expected[:2]
    reader = run(home)
    assert reader.newest_usable().step == EPOCHS * 5 and reader.state.generation <= 4


def test_what_was_put_in_place_to_be_read_is_taken_back_where_training_goes_on(tmp_path: Path) -> None:
    whole = begin(tmp_path / "whole")
    losses = [whole.epoch() for _ in range(EPOCHS + 1)]
    best(tmp_path, stops=True)
    again = begin(tmp_path)
    for _ in range(EPOCHS):
        assert again.epoch() == []
        again.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
        assert again.counts.epochs == 1
    assert again.epoch() == losses[-1]
    assert again.weights() == whole.weights()


# --- between save_state and the next batch ------------------------------------------------------------------


def halve(training: Training, _: int) -> None:
    for group in training.optimizer.param_groups:
        group["lr"] *= 0.5


def adjust(training: Training, epoch: int) -> None:
    for group in training.optimizer.param_groups:
        group["lr"] = 0.01 / (2 + epoch)
        group["weight_decay"] = 0.1 * epoch


def shrink(training: Training, _: int) -> None:
    with torch.no_grad():
        training.model[0].weight.mul_(0.9)


def draw(training: Training, _: int) -> None:
    torch.rand(3)
    training.counts.epochs += 10
    training.scheduler.step()


def still(training: Training, _: int) -> None:
    training.model.eval(), training.model.train()


def train(home: Path, change: Callable[[Training, int], None], stops: int | None = None) -> Any:
    """``change`` comes after ``save_state``. ``stops``: killed right after that of this epoch."""
    training = begin(home, naming=False)
    for epoch in range(4):
        losses = training.epoch()
        training.accelerator.save_state(home / "out" / str(epoch))
        if epoch == stops:
            training.stop()
            return None
        change(training, epoch)
    return losses, training.everything()


@pytest.mark.parametrize("stops", [0, 2])
@pytest.mark.parametrize("change", [halve, adjust, shrink, draw], ids=lambda change: change.__name__)
def test_what_the_script_does_after_save_state_is_done_anew(
    tmp_path: Path, change: Callable[[Training, int], None], stops: int
) -> None:
    expected = train(tmp_path / "whole", change)
    train(tmp_path / "parts", change, stops)
    assert train(tmp_path / "parts", change) == expected


@pytest.mark.parametrize(
    ("change", "what"), [(halve, "optimizer 0 is set to"), (shrink, "weights of model 0"), (still, "")]
)
def test_what_is_changed_in_the_middle_of_an_epoch_is_told(
    tmp_path: Path, change: Callable[[Training, int], None], what: str
) -> None:
    """There the script does not come by again."""
    training = begin(tmp_path)
    batches = training.batches()
    next(batches), next(batches)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training.accelerator.save_state()
        change(training, 0)
        next(batches), next(batches)
    told = [str(one.message) for one in caught if "after save_state" in str(one.message)]
    assert what in "".join(told) and len(told) == bool(what)


def test_an_optimizer_set_after_save_state_is_lost_to_a_loop_that_begins_later(
    tmp_path: Path,
) -> None:
    """In an earlier process it is nothing to be told: most loops come by there again."""
    training = begin(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(3):
            training.epoch()
            training.accelerator.save_state()
            if epoch < 2:
                halve(training, epoch)
    training.stop()
    again = begin(tmp_path)
    with pytest.warns(UserWarning, match="sets an optimizer .* after save_state"):
        again.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_2")
    again.epoch()
    again.accelerator.save_state()
    halve(again, 3)
    with pytest.warns(UserWarning, match="what optimizer 0 is set to"):
        again.epoch()


# --- what dead processes leave, and those that should be dead ----------------------------------------------


def into_one(home: Path, kill: Callable[[int], None] = lambda epoch: None, epochs: int = 5) -> None:
    """A script that saves to one place."""
    training = begin(home, naming=False)
    for epoch in range(epochs):
        training.epoch()
        kill(epoch)
        training.accelerator.save_state(home / "out" / "last")
    training.accelerator.end_training()


@pytest.mark.parametrize("effect", ["begin", "complete", "mark"])
def test_pins_of_dead_processes_are_let_go(tmp_path: Path, effect: str) -> None:
    """Killed while the second directory is made in a life; the one before has left its own pin."""

    def dies(at: int) -> Callable[[int], None]:
        def kill(epoch: int) -> None:
            if epoch == at:
                owner = saving.Since if effect == "mark" else making
                setattr(owner, effect, lambda *_: kill_self())

        return kill

    for at in (1, 3):
        assert life(tmp_path, lambda at=at: into_one(tmp_path, dies(at))) == -9  # type: ignore[misc]
    assert life(tmp_path, lambda: into_one(tmp_path)) == 0, (tmp_path / "output").read_text()
    assert pinned(tmp_path) == named(tmp_path / "out")
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["last"]


def test_a_process_that_should_be_dead_leaves_the_directory_to_its_heir(tmp_path: Path) -> None:
    """Stopped right before its directory takes its place, it goes on when the run is another's."""

    def stops(epoch: int) -> None:
        real = making.complete

        def stopped(*args: Any) -> None:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            real(*args)

        making.complete = stopped if epoch == 1 else real

    os.environ["DURABLE_TAKEOVER"] = "1"
    zombie = start(tmp_path, lambda: into_one(tmp_path, stops))
    try:
        assert os.WIFSTOPPED(os.waitpid(zombie, os.WUNTRACED)[1])
        assert life(tmp_path, lambda: into_one(tmp_path, epochs=4)) == 0
        heirs = pointer(tmp_path / "out" / "last")
    finally:
        os.environ.pop("DURABLE_TAKEOVER")
        os.kill(zombie, signal.SIGCONT)
        code = ended(zombie)
    assert code == 76, (tmp_path / "output").read_text()
    assert pointer(tmp_path / "out" / "last") == heirs
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["last"]
