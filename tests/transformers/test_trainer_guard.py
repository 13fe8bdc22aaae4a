"""What cannot be made exact is refused before anything is trained or written, with the way out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import IterableDataset
from trainer_subject import Case, MixedIn, Model, Notes, Samples

from accelerate_durable.transformers import DurableTrainerCallback, guard
from durable_core.errors import SpecMismatchError, UnsupportedError, UsageError


class ByLength(Samples):
    def __getitem__(self, index: int) -> Any:
        return {**super().__getitem__(index), "input_ids": [0] * (index + 1)}


class Stateless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    ("case", "named"),
    [
        (Case(args={"auto_find_batch_size": True}), "auto_find_batch_size"),
        (Case(args={"ignore_data_skip": True}), "ignore_data_skip"),
        (Case(args={"enable_jit_checkpoint": True}), "SIGTERM"),
        (Case(args={"train_sampling_strategy": "batch_rebalance"}, dataset=ByLength()), "BatchRebalance"),
        (Case(dataset=Stateless(), args={"max_steps": 3}), "Stateless"),
    ],
    ids=["batch-size", "data-skip", "jit", "by-length", "stream"],
)
def test_refused(tmp_path: Path, case: Case, named: str) -> None:
    trainer, durable = case.plain(tmp_path)
    durable.attach(trainer)
    with pytest.raises(UnsupportedError, match=named):
        trainer.train()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "what", ["is_deepspeed_enabled", "is_fsdp_enabled", "is_fsdp_xla_enabled", "n_gpu", "trial"]
)
def test_refused_by_what_the_trainer_says(what: str) -> None:
    args = SimpleNamespace(auto_find_batch_size=False, ignore_data_skip=False, n_gpu=1)
    trainer = SimpleNamespace(
        args=args, is_deepspeed_enabled=False, is_fsdp_enabled=False, is_fsdp_xla_enabled=False
    )
    guard.check(trainer, None)  # type: ignore[arg-type]
    if what == "n_gpu":
        args.n_gpu = 2
    elif what != "trial":
        setattr(trainer, what, True)
    with pytest.raises(UnsupportedError):
        guard.check(trainer, object() if what == "trial" else None)  # type: ignore[arg-type]


def test_one_run_for_a_trainer_and_one_trainer_for_a_callback(tmp_path: Path) -> None:
    trainer, durable = Case().plain(tmp_path)
    assert durable.attach(trainer) is trainer
    assert durable.attach(trainer) is trainer, "twice is once"
    assert trainer.callback_handler.callbacks.count(durable) == 1
    with pytest.raises(UsageError, match="two DurableTrainerCallbacks"):
        DurableTrainerCallback(tmp_path / "other").attach(trainer)
    other, _ = Case().plain(tmp_path)
    with pytest.raises(UsageError, match="belongs to another trainer"):
        durable.attach(other)


def test_a_mixin_without_a_callback(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nobody says where its run lives"):
        MixedIn(model=Model(Notes(tmp_path / "notes", None)), args=Case().arguments(tmp_path))


def test_another_model_is_named(tmp_path: Path) -> None:
    trainer, durable = Case(epochs=1).plain(tmp_path)
    durable.attach(trainer).train()
    other, durable = Case(epochs=2).plain(tmp_path)
    other.model.last = other.model.first
    with pytest.raises(SpecMismatchError, match="model"):
        durable.attach(other).train()


def test_the_callback_is_a_plain_one_until_it_is_attached(tmp_path: Path) -> None:
    durable = DurableTrainerCallback(tmp_path / "run", run_key="a")
    assert durable.root == str(tmp_path / "run" / "a")
    assert (durable.status, durable.restored_from, durable.flush()) == (None, None, True)
