"""What a fit under a launcher tells: phases, boundaries, and which step is durable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from durable_core.engine import beats, uncaught
from durable_core.engine.beats import Beat, Phase
from durable_core.engine.launched import RunFiles
from durable_core.engine.words import read_opened
from lightning_durable import DurableCheckpoint


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.layer(batch[0])

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFiles]:
    monkeypatch.setenv("DURABLE_RUN_DIR", str(tmp_path / "launch"))
    yield RunFiles(tmp_path / "launch").prepare()
    uncaught.uninstall()


@pytest.fixture
def seen(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> list[Beat]:
    found: list[Beat] = []
    write = beats.Writer.beat

    def beat(self: beats.Writer, *args: Any, **kwargs: Any) -> None:
        write(self, *args, **kwargs)
        now = beats.read(files.beat(0))
        assert now is not None
        found.append(now)

    monkeypatch.setattr(beats.Writer, "beat", beat)
    return found


def phases(seen: list[Beat]) -> list[Phase]:
    """Without repetitions."""
    return [beat.phase for i, beat in enumerate(seen) if not i or seen[i - 1].phase is not beat.phase]


def loader(batches: int = 4) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(2 * batches, 2)), batch_size=2)


def trainer(root: Path, **options: Any) -> Trainer:
    return Trainer(
        max_epochs=1, callbacks=[DurableCheckpoint(root, every_n_train_steps=100)], accelerator="cpu",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        **options,
    )  # fmt: skip


def test_a_fit_tells_its_phases_and_every_boundary(seen: list[Beat], files: RunFiles, tmp_path: Path) -> None:
    root = tmp_path / "run"
    trainer(root, val_check_interval=2, num_sanity_val_steps=0).fit(Module(), loader(), loader(3))
    P = Phase
    assert phases(seen) == [
        P.INIT, P.STEP, P.SAVE, P.STEP, P.EVAL, P.STEP, P.EVAL, P.STEP, P.SAVE, P.STEP, P.SAVE, P.STEP,
        P.SAVE, P.STEP, P.EXIT,
    ]  # fmt: skip
    assert sorted({beat.step for beat in seen if beat.phase is P.STEP}) == [0, 1, 2, 3, 4]
    assert sum(beat.phase is P.EVAL for beat in seen) == 2 * (1 + 3)
    opened = read_opened(files.opened)
    assert opened is not None
    assert (opened.root, opened.generation, seen[-1].generation) == (str(root), 1, 1)
    assert seen[-1].durable == 4
    assert len(seen[-1].own) == 3


def test_accumulation_has_one_own_time_a_step(seen: list[Beat], tmp_path: Path) -> None:
    trainer(tmp_path / "run", accumulate_grad_batches=2).fit(Module(), loader(6))
    assert sorted({beat.step for beat in seen if beat.phase is Phase.STEP}) == [0, 1, 2, 3]
    assert len(seen[-1].own) == 2


def test_a_test_after_the_fit_is_told_as_evaluating(seen: list[Beat], tmp_path: Path) -> None:
    made, module = trainer(tmp_path / "run"), Module()
    made.fit(module, loader())
    seen.clear()
    made.test(module, loader(2), verbose=False)
    assert phases(seen) == [Phase.INIT, Phase.EVAL, Phase.EXIT]
    assert sum(beat.phase is Phase.EVAL for beat in seen) == 1 + 2
