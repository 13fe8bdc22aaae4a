"""What this adapter leans on in transformers is there; an upgrade that moves it says so here, by name."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import transformers.trainer
from trainer_subject import Case
from transformers import Trainer
from transformers.trainer_callback import TrainerState

from accelerate_durable.transformers import hooks
from durable_core.errors import UnsupportedError


@pytest.mark.parametrize(("function", "argument", "why"), hooks.ARGUMENTS)
def test_the_trainer_takes_the_argument(function: str, argument: str, why: str) -> None:
    assert argument in inspect.signature(getattr(Trainer, function)).parameters, why


@pytest.mark.parametrize("name", hooks.PROGRESS)
def test_the_state_has_the_field(name: str) -> None:
    assert name in TrainerState.__dataclass_fields__


def test_progress_and_arguments_are_all_there_is_of_the_state() -> None:
    """A field that a new version adds is either what training changes, or what this process was told."""
    told = {
        "max_steps", "logging_steps", "eval_steps", "save_steps", "train_batch_size", "num_train_epochs",
        "is_local_process_zero", "is_world_process_zero", "is_hyper_param_search", "trial_name",
        "trial_params", "stateful_callbacks",
    }  # fmt: skip
    assert set(TrainerState.__dataclass_fields__) == told | set(hooks.PROGRESS)


def test_the_loop_calls_what_is_wrapped_in_the_order_that_counts() -> None:
    loop = inspect.getsource(Trainer._inner_training_loop)
    order = [
        "get_train_dataloader()", "_init_training_state(", "_prepare_for_training(", "on_train_begin(",
        "on_epoch_begin(", "_run_epoch(", "_finalize_training(",
    ]  # fmt: skip
    places = [loop.index(name) for name in order]
    assert places == sorted(places)
    assert set(inspect.signature(Trainer._prepare_for_training).parameters) == {
        "self", "max_steps", "train_dataloader", "resume_from_checkpoint"
    }  # fmt: skip
    assert hooks.SKIP in inspect.getsource(Trainer._run_epoch)
    assert hasattr(transformers.trainer, hooks.SKIP)


def test_the_loop_sums_up_what_is_restored() -> None:
    source = inspect.getsource(transformers.trainer)
    for name in (hooks.LOSS, *(name for name, _ in hooks.SUMS)):
        assert f"self.{name} = " in source, name


def test_what_is_lacking_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, durable = Case(durable={}).plain(tmp_path)
    monkeypatch.setattr(hooks, "USED", (*hooks.USED, ("_no_such_thing", "what for")))
    monkeypatch.setattr(hooks, "ARGUMENTS", (("train", "no_such_argument", "why"),))
    with pytest.raises(
        UnsupportedError, match=r"_no_such_thing \(what for\); train\(no_such_argument\) \(why\)"
    ):
        durable.attach(trainer)


def test_a_trainer_is_left_as_it_was_found(tmp_path: Path) -> None:
    trainer, durable = Case(epochs=1).plain(tmp_path)
    durable.attach(trainer)
    before = {name for name in vars(trainer) if callable(vars(trainer)[name])}
    skip = transformers.trainer.skip_first_batches
    trainer.train()
    assert {name for name in vars(trainer) if callable(vars(trainer)[name])} == before
    assert "prepare" not in vars(trainer.accelerator)
    assert transformers.trainer.skip_first_batches is skip
