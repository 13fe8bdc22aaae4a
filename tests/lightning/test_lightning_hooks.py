"""What the adapter uses of Lightning beyond its public face, each by name: an upgrade says what broke."""

from __future__ import annotations

import inspect
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.connectors.data_connector import _DataConnector

from durable_core.errors import UnsupportedError
from lightning_durable import hooks


@pytest.fixture
def trainer() -> Any:
    return L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)


@pytest.mark.parametrize(("path", "name", "why"), hooks.USED, ids=[f"{p}.{n}" for p, n, _ in hooks.USED])
def test_lightning_has(trainer: Any, path: str, name: str, why: str) -> None:
    owner = trainer
    for part in path.split("."):
        owner = getattr(owner, part)
    assert hasattr(owner, name), f"gone from Lightning {L.__version__}; it was used to: {why}"


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (_FitLoop.run, ["self"]),
        (_FitLoop.on_run_start, ["self"]),
        (_FitLoop.on_advance_end, ["self"]),
        (_FitLoop.on_run_end, ["self"]),
        (_TrainingEpochLoop.advance, ["self", "data_fetcher"]),
        (_TrainingEpochLoop.on_run_start, ["self", "data_fetcher"]),
        (_CheckpointConnector.resume_start, ["self", "checkpoint_path", "weights_only"]),
        (_CheckpointConnector.dump_checkpoint, ["self", "weights_only"]),
        (_DataConnector._prepare_dataloader, ["self", "dataloader", "shuffle", "mode"]),
    ],
)
def test_is_called_as_before(method: Any, parameters: list[str]) -> None:
    assert list(inspect.signature(method).parameters) == parameters


def test_the_order_within_lightnings_loops_is_as_before() -> None:
    """The adapter's moments lie where they do only while the loops call in this order."""
    run = inspect.getsource(_TrainingEpochLoop.run)
    assert in_order(
        run, "self.reset()", "self.on_run_start(", "self.done", "self.advance(", "self.on_advance_end("
    )
    advance = inspect.getsource(_TrainingEpochLoop.advance)
    assert in_order(
        advance, "next(data_fetcher)", "on_train_batch_start", "increment_processed", "increment_completed"
    )
    end = inspect.getsource(_TrainingEpochLoop.on_advance_end)
    assert in_order(
        end, "self.val_loop.run()", "update_plateau_schedulers=True", "_batches_that_stepped += 1"
    )
    fit = inspect.getsource(_FitLoop.run)
    assert in_order(
        fit, "self.setup_data()", "self.skip", "self.reset()", "self.on_run_start()", "self.on_run_end()"
    )


def in_order(source: str, *pieces: str) -> bool:
    places = [source.find(piece) for piece in pieces]
    return -1 not in places and places == sorted(places)


def test_a_lightning_that_lacks_a_hook_is_refused_by_name(trainer: Any, monkeypatch: Any) -> None:
    hooks.check(trainer)
    monkeypatch.setattr(hooks, "USED", (("fit_loop.epoch_loop", "advance_by_magic", "levitation"),))
    with pytest.raises(UnsupportedError, match=r"epoch_loop.advance_by_magic \(levitation\)"):
        hooks.check(trainer)
