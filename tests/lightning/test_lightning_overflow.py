"""Under Lightning: a step that a scaler skipped is told in the ledger, and workers end with the fit."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import Precision
from torch.utils.data import DataLoader

from durable_core.engine.audit import audit
from durable_core.engine.audit.explain import explain
from durable_core.engine.inspect import open_run
from lightning_durable import DurableCheckpoint


class Overflows(Precision):
    """As a gradient scaler: computes the step, and leaves the optimizer alone where it overflowed."""

    def __init__(self, at: set[int]) -> None:
        super().__init__()
        self._at, self._calls = at, 0

    def optimizer_step(self, optimizer: Any, model: Any, closure: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self._calls += 1
        if self._calls not in self._at:
            return super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)
        return closure()


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.net(batch[:, None].float()).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(root: Path, *, overflows: set[int], **options: Any) -> None:
    loader = DataLoader([float(i) for i in range(16)], batch_size=2, shuffle=True, **options)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    checkpoint = DurableCheckpoint(root, every_n_train_steps=1, run_key="a")
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", default_root_dir=root, enable_checkpointing=False,
        plugins=[Overflows(overflows)], callbacks=[checkpoint], **quiet,
    )  # fmt: skip
    trainer.fit(Net(), loader)


@pytest.mark.filterwarnings("ignore")
def test_a_step_that_a_scaler_skipped_is_no_update(tmp_path: Path) -> None:
    fit(tmp_path, overflows={1, 4})
    reader = open_run(tmp_path / "a")
    assert audit(reader).sound and audit(reader).consumption.samples == 16
    uses = [use for sample in range(16) for use in explain(reader, sample).uses]
    assert {use.step for use in uses if not use.applied} == {1, 4}
    assert len([use for use in uses if use.applied]) == 12


@pytest.mark.filterwarnings("ignore")
def test_persistent_workers_end_with_the_fit(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    fit(tmp_path, overflows=set(), num_workers=1, persistent_workers=True)
    assert set(multiprocessing.active_children()) <= before
