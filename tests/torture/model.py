"""The torture subject's dataset and module: augmentation from all three generators, dropout, BatchNorm."""

from __future__ import annotations

import random
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tests.torture.subject import Journal, digest


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """``(id, x)``; ``x`` is noise of its own plus fresh draws from python, numpy and torch."""

    def __init__(self, count: int, width: int) -> None:
        self.base = torch.randn(count, width, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = self.base[index] + 0.1 * random.random()
        x = x + 0.1 * torch.from_numpy(np.random.standard_normal(len(x)).astype(np.float32))
        return torch.tensor(index), x + 0.1 * torch.rand(len(x))


class Noted(L.LightningModule):
    """Regression through BatchNorm and dropout; writes down batches and states."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        width = 16
        self.first = nn.Sequential(nn.Linear(width, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3))
        self.last = nn.Linear(32, 1)
        self.notes = journal
        self._noted_step = -1

    def state_digest(self) -> str:
        trainer = self.trainer
        optimizers = [optimizer.state_dict()["state"] for optimizer in trainer.optimizers]
        rates = [optimizer.param_groups[0]["lr"] for optimizer in trainer.optimizers]
        return digest(self.state_dict(), optimizers, rates)

    def on_train_start(self) -> None:
        self._noted_step = self.trainer.global_step
        self.notes.write(kind="start", step=self.trainer.global_step)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        ids, x = batch
        state = self.state_digest()  # here DDP has made the ranks' buffers equal, as before every forward
        hidden = self.first(x)
        self.notes.write(
            kind="batch", at=[self.trainer.current_epoch, batch_idx], step=self.trainer.global_step,
            state=state, ids=ids.tolist(), x=digest(x), hidden=digest(hidden),
        )  # fmt: skip
        loss: Tensor = (self.last(hidden).squeeze(1) - x.sum(dim=1)).square().mean()
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        _, x = batch
        self.log("val_loss", self.last(self.first(x)).mean(), sync_dist=True)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step != self._noted_step:
            self._noted_step = self.trainer.global_step
            self.notes.write(kind="step", step=self.trainer.global_step, state=self.state_digest())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
