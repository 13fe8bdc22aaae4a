"""Every way into the data gives the same samples after kills, whatever reads them.

A life is a forked process that ends by SIGKILL in the middle of a step, and the next one reads with another
number of workers; what counts is the ledger of the history that was kept.
"""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from durable_core import DurableSession
from durable_core.data import DurableLoader, Mixture, Packing
from durable_core.engine.audit import LazyRows, audit, lineage_of
from durable_core.engine.inspect import open_run

SIZE, BATCH, EPOCHS, SEED = 20, 4, 2, 5
STEPS = SIZE // BATCH * EPOCHS
IDENTITY = f"unverified:Numbers:{SIZE}"
Rows = list[tuple[int, int, list[int]]]
Way = Callable[[Path, dict[str, Any], int | None], None]


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Documents(Numbers):
    """Document i has i % 5 + 1 tokens."""

    lengths = np.arange(SIZE) % 5 + 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((int(self.lengths[index]),), index)


def durable(reading: dict[str, Any]) -> DurableLoader:
    """``data``: what is read, if not plain numbers."""
    reading = dict(reading)
    kind = reading.pop("data", "numbers")
    if kind == "numbers":
        return DurableLoader(Numbers(), BATCH, seed=SEED, **reading)
    if kind == "packed":
        return DurableLoader(Documents(), BATCH, seed=SEED, packing=Packing(2), drop_last=True, **reading)
    mixed = Mixture({"a": Numbers(), "b": Numbers()}, {"a": 2, "b": 1}, epoch_size=SIZE)
    return DurableLoader(mixed, BATCH, seed=SEED, **reading)


def numbers_of(batch: Any) -> Any:
    return batch["input_ids"].float().reshape(-1, 1) if isinstance(batch, dict) else batch


def plain(reading: dict[str, Any]) -> DataLoader[torch.Tensor]:
    return DataLoader(Numbers(), BATCH, shuffle=True, **reading)


def model_and_optimizer() -> tuple[Any, Any]:
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), 0.01)


# --- the ways -----------------------------------------------------------------------------------


def loop(root: Path, loader: DurableLoader, kill_at: int | None, prepare: Any = None) -> None:
    """A plain loop in a session, killed within the step after ``kill_at``."""
    model, optimizer = model_and_optimizer()
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    backward: Any = torch.Tensor.backward
    if prepare is not None:
        model, optimizer, backward = prepare(model, optimizer, loader)
    with DurableSession.open(root, state=state, every_n_steps=1) as session:
        while loader.cursor.epoch < EPOCHS:
            for batch in loader:
                backward(model(numbers_of(batch)).sum())
                if session.steps == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                optimizer.zero_grad()
                session.step()
                session.flush()


def durable_loader(root: Path, reading: dict[str, Any], kill_at: int | None) -> None:
    loop(root, durable(reading), kill_at)


def plain_dataloader(root: Path, reading: dict[str, Any], kill_at: int | None) -> None:
    loop(root, DurableLoader.from_dataloader(plain(reading), seed=SEED), kill_at)


def accelerate_loop(root: Path, reading: dict[str, Any], kill_at: int | None) -> None:
    """``prepare`` leaves the loader alone; what it makes of the rest is not what is saved."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)

    def prepare(model: Any, optimizer: Any, loader: DurableLoader) -> tuple[Any, Any, Any]:
        prepared = accelerator.prepare(model, optimizer, loader)
        assert prepared[2] is loader
        return prepared[0], prepared[1], accelerator.backward

    loop(root, durable(reading), kill_at, prepare)


def lightning_fit(root: Path, kill_at: int | None, **data: Any) -> None:
    lightning = pytest.importorskip("lightning")
    from lightning_durable import DurableCheckpoint

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            if self.global_step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return self.layer(numbers_of(batch)).sum()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    class Flushing(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_start(self, *_: Any) -> None:
            checkpoint.flush()

    lightning.seed_everything(SEED, verbose=False)
    checkpoint = DurableCheckpoint(root, every_n_train_steps=1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=EPOCHS, callbacks=[checkpoint, Flushing()],
        enable_checkpointing=False, **quiet,
    )  # fmt: skip
    trainer.fit(Module(), **data)


def lightning_plain(root: Path, reading: dict[str, Any], kill_at: int | None) -> None:
    lightning_fit(root, kill_at, train_dataloaders=plain(reading))


def lightning_durable(root: Path, reading: dict[str, Any], kill_at: int | None) -> None:
    lightning_fit(root, kill_at, train_dataloaders=durable(reading))


def lightning_datamodule(root: Path, reading: dict[str, Any], kill_at: int | None) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningDataModule):  # type: ignore[misc, name-defined]
        def setup(self, stage: str) -> None:
            assert stage == "fit"
            self.numbers = plain(reading)

        def train_dataloader(self) -> Any:
            return self.numbers

    lightning_fit(root, kill_at, datamodule=Module())


WAYS: list[Way] = [
    durable_loader, plain_dataloader, accelerate_loop,
    lightning_plain, lightning_durable, lightning_datamodule,
]  # fmt: skip


# --- what all of them must give -------------------------------------------------------------


def consumed(root: Path) -> Rows:
    reader = open_run(root)
    assert audit(reader).sound
    parts = (LazyRows(reader, info) for info in lineage_of(reader, None))
    return [(r.epoch, r.batch, r.ids.tolist()) for part in parts for rows in part.values() for r in rows]


def live(way: Way, root: Path, reading: dict[str, Any], kill_at: int | None) -> int:
    """One life in a process of its own; its exit status (-9: killed)."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            warnings.simplefilter("ignore")  # torch pins nothing without an accelerator; short epochs
            way(root, reading, kill_at)
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_twice(way: Way, root: Path, lives: list[dict[str, Any]]) -> None:
    kills = (3, 6, None)
    ends = [live(way, root, reading, kill) for kill, reading in zip(kills, lives, strict=True)]
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert open_run(root).state.generation == 3


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    root = tmp_path_factory.mktemp("ways") / "run"
    durable_loader(root, {}, None)
    rows = consumed(root)
    assert [row[:2] for row in rows] == [divmod(step, SIZE // BATCH) for step in range(STEPS)]
    return rows


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_killed_twice_without_workers(tmp_path: Path, way: Way, reference: Rows) -> None:
    killed_twice(way, tmp_path / "run", [{}, {}, {}])
    assert consumed(tmp_path / "run") == reference


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_killed_twice_with_other_workers_each_time(tmp_path: Path, way: Way, reference: Rows) -> None:
    lives: list[dict[str, Any]] = [
        {"num_workers": 2, "pin_memory": True},
        {"num_workers": 4, "persistent_workers": True, "prefetch_factor": 3},
        {"num_workers": 2, "persistent_workers": True, "pin_memory": True},
    ]
    killed_twice(way, tmp_path / "run", lives)
    assert consumed(tmp_path / "run") == reference


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    found = {}
    for kind in ("mixture", "packed"):
        root = tmp_path_factory.mktemp(kind) / "run"
        assert live(durable_loader, root, {"data": kind}, None) == 0
        found[kind] = consumed(root)
    return found


@pytest.mark.parametrize("kind", ["mixture", "packed"])
@pytest.mark.parametrize(
    "way", [durable_loader, accelerate_loop, lightning_durable], ids=lambda way: way.__name__
)
def test_sequences_come_the_same_way(tmp_path: Path, way: Way, kind: str, sequences: dict[str, Rows]) -> None:
    killed_twice(way, tmp_path / "run", [{"data": kind, "num_workers": n} for n in (2, 0, 2)])
    assert consumed(tmp_path / "run") == sequences[kind]
