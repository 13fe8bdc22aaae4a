"""Which loaders a fit may be given, and what it says of those it cannot take."""

from __future__ import annotations

import multiprocessing
import os
import socket
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from durable_core.data import DurableLoader
from durable_core.data.mixture import Mixture
from durable_core.errors import UnsupportedError, UsageError
from lightning_durable import DurableCheckpoint

FORK = multiprocessing.get_context("fork")
ROWS = torch.arange(12, dtype=torch.float32).reshape(12, 1)


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.validated: list[list[float]] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).square().mean()  # type: ignore[no-any-return]

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.validated[-1] += batch.flatten().tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def loader(**changes: Any) -> DurableLoader:
    return DurableLoader(ROWS, 2, **{"seed": 1, "dataset_id": "rows", **changes})


def fit(
    home: Path,
    train: Any,
    validate: Any = None,
    *,
    model: Model | None = None,
    callbacks: Any = (),
    **changes: Any,
) -> Model:
    model = model or Model()
    trainer = L.Trainer(
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        default_root_dir=home, callbacks=[DurableCheckpoint(home / "run"), *callbacks],
        **{"max_epochs": 2, "accelerator": "cpu", "devices": 1, "num_sanity_val_steps": 1, **changes},
    )  # fmt: skip
    trainer.fit(model, train, validate)
    return model


def collections() -> dict[str, Any]:
    return {
        "list": [loader(), loader()],
        "dict": {"a": loader(), "b": loader()},
        "mixed": {"a": DataLoader(ROWS), "b": loader()},  # type: ignore[arg-type]
        "combined": CombinedLoader({"a": loader(), "b": loader()}),
    }


@pytest.mark.parametrize("kind", collections())
def test_several_training_loaders_are_refused_with_the_way_out(kind: str, tmp_path: Path) -> None:
    """Durable ones were said to have been iterated already."""
    with pytest.raises(UnsupportedError, match=r"several training loaders.*ConcatDataset"):
        fit(tmp_path, collections()[kind])


class Listed(Model):
    """Given batches of one loader in a list."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:  # type: ignore[override]
        (only,) = batch
        return super().training_step(only, batch_idx)


def test_one_loader_in_a_list_is_trained_on(tmp_path: Path) -> None:
    train = loader()
    fit(tmp_path, [train], model=Listed(), max_epochs=1)
    assert (train.cursor.epoch, train.cursor.batch) in ((0, 6), (1, 0))


def validate_in(home: Path, results: Any) -> None:
    results.put(fit(home, loader(), loader()).validated)


def test_every_validation_with_a_durable_loader_is_the_same(tmp_path: Path) -> None:
    """Also those after a resume: another order would be another loss in its last bits."""
    results = FORK.Queue()
    life = FORK.Process(target=validate_in, args=(tmp_path, results))
    life.start()
    sanity, *passes = results.get(timeout=120)
    life.join(60)
    assert sanity == passes[0][:2]
    assert sorted(passes[0]) == ROWS.flatten().tolist() and passes[0] == passes[1]
    assert fit(tmp_path, loader(), loader(), max_epochs=3).validated[-1] == passes[0]


def test_validating_with_several_durable_loaders(tmp_path: Path) -> None:
    class Two(Model):
        def validation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
            super().validation_step(batch, batch_idx)

    both = [loader(), DataLoader(ROWS)]  # type: ignore[arg-type]
    model = fit(tmp_path, loader(), both, model=Two(), max_epochs=1, num_sanity_val_steps=0)
    assert sorted(model.validated[0]) == sorted(2 * ROWS.flatten().tolist())


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter(ROWS)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_what_cannot_be_validated_with_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="to validate with has to have a length"):
        fit(tmp_path / "a", loader(), DurableLoader(Endless(), 2))
    both = loader()
    with pytest.raises(UnsupportedError, match="trained on and validated with"):
        fit(tmp_path / "b", both, both)


def mixture(**size: Any) -> DurableLoader:
    return DurableLoader(Mixture({"a": ROWS, "b": ROWS}, {"a": 1, "b": 1}, **size), 2, seed=1)


class Enough(L.Callback):
    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.global_step == 8


@pytest.mark.parametrize(
    ("size", "limits", "told"),
    [
        ({}, {}, True),
        ({"epoch_size": 8}, {}, False),
        ({}, {"max_epochs": None, "max_steps": 8}, False),
        ({}, {"limit_train_batches": 4}, False),
    ],
)
def test_epochs_that_never_end_are_told_of_at_the_start(
    size: Any, limits: Any, told: bool, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(tmp_path, mixture(**size), callbacks=[Enough()], **limits)
    assert any("max_epochs never comes" in str(one.message) for one in caught) == told


def test_a_loader_is_no_dataset() -> None:
    for given in (loader(), DataLoader[Tensor](ROWS)):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"is a loader, .*from_dataloader\(loader\)"):
            DurableLoader(given)


def validate_as(rank: int, port: int, home: Path, results: Any) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
        "RANK": str(rank), "NODE_RANK": "0",
    }  # fmt: skip
    torch.set_num_threads(1)
    model = fit(home, loader(), loader(), devices=2, strategy="ddp", max_epochs=1, num_sanity_val_steps=0)
    results.put((rank, model.validated))


def test_each_process_validates_its_own_share(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = FORK.Queue()
    ranks = [FORK.Process(target=validate_as, args=(rank, port, tmp_path, results)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    found = dict(results.get(timeout=120) for _ in ranks)
    for rank in ranks:
        rank.join(60)
    assert len(found[0][0]) == len(found[1][0]) == 6
    assert sorted(found[0][0] + found[1][0]) == ROWS.flatten().tolist()
