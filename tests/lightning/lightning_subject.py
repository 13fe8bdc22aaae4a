"""The run under test: dropout, augmentation from all three generators, a schedule, notes of everything.

A run is a ``Case``. Each life of it is a forked process (its frameworks are imported already) that dies by
SIGKILL where told. Every batch and every end is one appended line, so a kill leaves whole lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchmetrics import MeanMetric

from lightning_durable import DurableCheckpoint
from tests.lives import Line, all_ended, free_port, kill_self, start

SAMPLES, BATCH, EPOCHS, WIDTH = 64, 4, 3, 6
Strike = Callable[["Notes", str], None]  # told of every line


def digest(*tensors: Tensor) -> str:
    total = hashlib.blake2b(digest_size=10)
    for tensor in tensors:
        total.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    return total.hexdigest()


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """``(id, x)``: fixed noise plus fresh draws from torch, python and numpy."""

    def __init__(self, count: int = SAMPLES) -> None:
        self.base = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draws = torch.rand(WIDTH) + random.random() + float(np.random.rand())
        return torch.tensor(index), self.base[index] + 0.1 * draws


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """The same without a length, with a position of its own, shared out to the workers by stride."""

    def __init__(self) -> None:
        self.source = Samples()
        self.position = 0

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        while self.position * workers + worker < len(self.source):
            index = self.position * workers + worker
            self.position += 1
            yield self.source[index]
        self.position = 0

    def state_dict(self) -> Line:
        return {"position": self.position}

    def load_state_dict(self, state: Line) -> None:
        self.position = state["position"]


@dataclass(frozen=True)
class Case:
    """``kind`` names the module, ``trainer`` goes to the Trainer, ``durable`` to the callback."""

    kind: str = "Plain"
    workers: int = 0
    accumulate: int = 1
    every: int | str = 5
    epochs: int = EPOCHS
    stream: bool = False
    loader_from: str = "fit"  # or "module", "datamodule"
    seed: int = 3
    val: bool = False
    samples: int = SAMPLES
    extra: tuple[str, ...] = ()  # names of callbacks
    trainer: dict[str, Any] = field(default_factory=dict, hash=False)
    durable: dict[str, Any] = field(default_factory=dict, hash=False)


class Notes(L.Callback):
    """Writes lines; strikes (by default SIGKILL) when told to."""

    def __init__(self, path: Path, strike: Strike) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._strike = strike

    durable: DurableCheckpoint

    def write(self, what: str, **line: Any) -> None:
        os.write(self._fd, json.dumps({"what": what, **line}).encode() + b"\n")
        self._strike(self, what)


class Plain(L.LightningModule):
    def __init__(self, case: Case, notes: Notes) -> None:
        super().__init__()
        self.case, self.notes = case, notes
        self.first = nn.Linear(WIDTH, 12)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(12, 1)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def loss(self, batch: Any) -> Tensor:
        ids, x = batch
        hidden = self.drop(torch.relu(self.first(x)))
        self.notes.write(
            "batch", ids=ids.tolist(), x=digest(x), hidden=digest(hidden),
            lr=[g["lr"] for o in self.trainer.optimizers for g in o.param_groups], seen=float(self.seen),
            step=self.trainer.global_step, at=[self.trainer.current_epoch, self.trainer.fit_loop.batch_idx],
        )  # fmt: skip
        return (self.last(hidden).squeeze(1) - x.sum(1)).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        _, x = batch
        noise = torch.rand(())  # a draw that a resume must not lose
        self.log("val_loss", self.last(torch.relu(self.first(x))).square().mean() + 0.01 * noise)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen += 1  # E10: state that changes in the module's own hook
        self.notes.write("batch_end", step=self.trainer.global_step)

    def on_validation_end(self) -> None:
        self.notes.write("validated", step=self.trainer.global_step)

    def on_train_epoch_end(self) -> None:
        held = self.trainer.callback_metrics  # of the whole epoch, though a life may have seen its end only
        epoch = {name: float(held[name]) for name in ("train_loss_epoch", "metered") if name in held}
        self.notes.write("epoch_end", step=self.trainer.global_step, **epoch)

    def train_dataloader(self) -> Any:
        if self.case.loader_from != "module":
            raise AssertionError("not asked for")
        return train_loader(self.case)

    def val_dataloader(self) -> Any:
        return DataLoader(Samples(8), batch_size=4) if self.case.val else []

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class PlateauEpoch(Plain):
    interval = "epoch"
    monitor = "train_loss_epoch"
    frequency = 1

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": plateau, "monitor": self.monitor,
                "interval": self.interval, "frequency": self.frequency,
            },
        }  # fmt: skip


class PlateauStep(PlateauEpoch):
    interval = "step"
    monitor = "val_loss"
    frequency = 5


class Estimated(Plain):
    """Reads ``estimated_stepping_batches`` in ``configure_optimizers``, which builds the loader early."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        total = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=total + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Manual(Plain):
    """Two optimizers in different rhythms: gradients of the second live across batches."""

    def __init__(self, case: Case, notes: Notes) -> None:
        super().__init__(case, notes)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        one, two = self.optimizers()
        loss = self.loss(batch)
        one.zero_grad()
        self.manual_backward(loss)
        one.step()
        if (batch_idx + 1) % 3 == 0:
            two.step()
            two.zero_grad()

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.AdamW(self.first.parameters(), lr=0.01),
            torch.optim.SGD(self.last.parameters(), lr=0.01),
        ]


class ManualRaw(Manual):
    """Steps that Lightning does not see: its ``global_step`` stays 0."""

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        return super().optimizers(use_pl_optimizer=False)


class Parametrised(Plain):
    """Hyper-parameters of which one is a function: nothing that could be stored."""

    def __init__(
        self, case: Case, notes: Notes, act: Callable[[Tensor], Tensor] = torch.relu, width: int = 3
    ) -> None:
        super().__init__(case, notes)
        self.save_hyperparameters("act", "width")


class Normed(Plain):
    """With BatchNorm, whose statistics differ between the replicas."""

    def __init__(self, case: Case, notes: Notes) -> None:
        super().__init__(case, notes)
        self.first = nn.Sequential(nn.Linear(WIDTH, 12), nn.BatchNorm1d(12))


class Metered(Plain):
    """A torchmetric over the epoch and a generator of the module's own."""

    def __init__(self, case: Case, notes: Notes) -> None:
        super().__init__(case, notes)
        self.metered = MeanMetric()
        self.noise = torch.Generator().manual_seed(5)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx) + torch.rand((), generator=self.noise)
        self.metered(loss.detach())
        self.log("metered", self.metered, on_step=False, on_epoch=True)
        return loss * (1 + torch.rand((), generator=self.noise))


class Wide(Plain):
    """Gradients large enough for a ring to cut them up between three replicas."""

    def __init__(self, case: Case, notes: Notes) -> None:
        super().__init__(case, notes)
        wide = (nn.Linear(WIDTH, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 12))
        self.first = nn.Sequential(*wide)


_KINDS = (Metered, Normed, Plain, Wide, PlateauEpoch, PlateauStep, Estimated, Manual, ManualRaw, Parametrised)
MODULES = {kind.__name__: kind for kind in _KINDS}


class Loaders(L.LightningDataModule):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def train_dataloader(self) -> Any:
        return train_loader(self.case)

    def val_dataloader(self) -> Any:
        return DataLoader(Samples(8), batch_size=4) if self.case.val else []


def train_loader(case: Case) -> Any:
    if case.stream:
        return DataLoader(Stream(), batch_size=BATCH, num_workers=case.workers)
    return DataLoader(Samples(case.samples), batch_size=BATCH, shuffle=True, num_workers=case.workers)


def extra_callbacks(case: Case, home: Path) -> list[L.Callback]:
    from lightning.pytorch import callbacks

    made: dict[str, Callable[[], L.Callback]] = {
        "ema": lambda: callbacks.EMAWeightAveraging(decay=0.9),
        "model_checkpoint": lambda: callbacks.ModelCheckpoint(
            home / "own",
            every_n_train_steps=1,
            save_top_k=-1,
            filename="{step}",
            enable_version_counter=False,
        ),
        "early_stopping": lambda: callbacks.EarlyStopping("train_loss_epoch", patience=0, min_delta=10.0),
        "on_exception": lambda: callbacks.OnExceptionCheckpoint(home),
        "lr_monitor": lambda: callbacks.LearningRateMonitor("step"),
    }
    return [made[name]() for name in case.extra]


def fit(
    case: Case,
    home: Path,
    strike: Strike | None = None,
    log: str = "log",
    loader: Any = None,
    ckpt_path: Any = None,
    **changes: Any,
) -> tuple[L.Trainer, Any]:
    """One life. Lines go to ``home/log``; the run lives in ``home/run``."""
    notes = Notes(home / log, strike or (lambda notes, what: None))
    L.seed_everything(case.seed, workers=False, verbose=False)
    module = MODULES[case.kind](case, notes)
    told = {"every_n_train_steps": case.every, "backlog": "delay", **case.durable}  # no snapshot is skipped
    durable = DurableCheckpoint(home / "run", **told)
    settings: dict[str, Any] = {
        "max_epochs": case.epochs, "accumulate_grad_batches": case.accumulate, "devices": 1,
        "accelerator": "cpu",
        "logger": False, "enable_progress_bar": False,
        "enable_checkpointing": bool({"model_checkpoint", "on_exception"} & set(case.extra)),
        "enable_model_summary": False, "default_root_dir": home,
    }  # fmt: skip
    notes.durable = durable
    callbacks = [durable, notes, *extra_callbacks(case, home)]
    trainer = L.Trainer(**{**settings, **case.trainer, **changes}, callbacks=callbacks)
    if case.loader_from == "fit":
        data = train_loader(case) if loader is None else loader
        trainer.fit(module, data, ckpt_path=ckpt_path, weights_only=False)
    elif case.loader_from == "datamodule":
        trainer.fit(module, datamodule=Loaders(case))
    else:
        trainer.fit(module)
    notes.write("end", weights=digest(*module.state_dict().values()), step=trainer.global_step)
    return trainer, module


def group(home: Path, world: int, action: Callable[[int], Any]) -> list[int]:
    """``action(rank)`` in ``world`` forked processes, as torchrun starts them; their exit codes."""
    port = free_port()

    def ranked(rank: int) -> None:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NODE_RANK="0", LOCAL_RANK=str(rank))
        action(rank)

    return all_ended([start(home, lambda rank=rank: ranked(rank)) for rank in range(world)])


def at_line(what: str, number: int, act: Callable[[], None] = kill_self, *, settled: bool = True) -> Strike:
    """Acts at the ``number``-th line (from 1) of a kind; ``settled``: when all snapshots are durable."""
    left = [number]

    def strike(notes: Notes, kind: str) -> None:
        left[0] -= kind == what
        if kind == what and left[0] == 0:
            if settled:
                notes.durable.flush()
            act()

    return strike


def lines(home: Path, what: str | None = None, log: str = "log") -> list[Line]:
    found = [json.loads(line) for line in (home / log).read_text().splitlines()]
    return [line for line in found if what is None or line["what"] == what]
