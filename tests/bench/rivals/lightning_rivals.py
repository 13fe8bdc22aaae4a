"""Savers under a Lightning ``Trainer``: its own, in step and in a thread, and ours."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.bench.rivals.meters import Landings, Plan, Tape, fsync_tree
from tests.bench.rivals.plain_rivals import listen
from tests.bench.rivals.workload import Workload


class Module(L.LightningModule):
    """The workload; its hooks come after those of the callbacks: what those wait for lies between marks."""

    def __init__(self, work: Workload, tape: Tape) -> None:
        super().__init__()
        self.layers, self.anchor = work.model, nn.Parameter(torch.zeros(1))
        self._work, self._tape = work, tape
        self.begun: Callable[[], object] = lambda: None
        self.after_boundary: Callable[[], object] = lambda: None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self._work.optimizer.register_step_post_hook(lambda *_: self._tape.updated())
        return self._work.optimizer

    def on_train_start(self) -> None:
        self.begun()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self._tape.steps:
            self._tape.mark("ended")
            self.after_boundary()
        self._tape.begin()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self._work.compute()
        return self.anchor.sum()

    def on_after_backward(self) -> None:
        self._tape.mark("computed")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self._tape.mark("guarded")

    def optimizer_zero_grad(self, *_: Any) -> None:
        self.anchor.grad = None  # the workload's gradients stay


def fit(module: Module, plan: Plan, *callbacks: L.Callback, plugin: Any = None) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    theirs = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    warnings.simplefilter("ignore")
    trainer = L.Trainer(
        accelerator="cpu", max_steps=plan.steps + 1, max_epochs=-1, callbacks=list(callbacks),
        plugins=plugin, logger=False, enable_checkpointing=theirs, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(torch.zeros(plan.steps + 1, 1)), batch_size=1, num_workers=0)
    trainer.fit(module, loader)


def close(tape: Tape) -> None:
    """The last step was only there to end the one before."""
    tape.steps.pop()


def model_checkpoint(base: Path, plan: Plan) -> ModelCheckpoint:
    return ModelCheckpoint(base, every_n_train_steps=plan.every, save_top_k=-1, filename="{step}")


def lightning_sync(work: Workload, plan: Plan, base: Path, tape: Tape) -> None:
    module = Module(work, tape)

    def after() -> None:
        if tape.landings.pending:
            fsync_tree(base)
            tape.landings.land()

    module.after_boundary = after
    fit(module, plan, model_checkpoint(base, plan))
    close(tape)


class Synced(TorchCheckpointIO):
    """On the writing thread, after Lightning has written: the fsync that it leaves out."""

    def __init__(self, base: Path, landings: Landings) -> None:
        super().__init__()
        self._base, self._landings = base, landings

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super().save_checkpoint(*args, **kwargs)
        fsync_tree(self._base)
        self._landings.land()


def lightning_async(work: Workload, plan: Plan, base: Path, tape: Tape) -> None:
    plugin = AsyncCheckpointIO(Synced(base, tape.landings))
    fit(Module(work, tape), plan, model_checkpoint(base, plan), plugin=plugin)
    close(tape)


def durable_lightning(work: Workload, plan: Plan, base: Path, tape: Tape) -> None:
    from lightning_durable import DurableCheckpoint

    callback = DurableCheckpoint(base / "run", every_n_train_steps=plan.every)
    module = Module(work, tape)

    def begun() -> None:
        assert callback._fit is not None  # events have no public listener under Lightning
        listen(callback._fit.run, tape.landings)

    module.begun = begun
    fit(module, plan, callback)
    close(tape)
