"""What cannot be made exact is refused here, with the way out; what is no training is left alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, LearningRateFinder
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from durable_core.errors import UnsupportedError, UsageError
from lightning_durable import hooks

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

#: roots whose fit ended normally in this process
_finished: set[str] = set()


def is_training(trainer: Trainer, stage: str | None) -> bool:
    """False in validate, test, predict, ``fast_dev_run`` and the fits that a tuner makes."""
    if stage != TrainerFn.FITTING.value or getattr(trainer, "fast_dev_run", False):
        return False
    finders = (callback for callback in hooks.callbacks(trainer) if _is_finder(callback))
    return not any(getattr(callback, "_early_exit", False) for callback in finders)


def check(trainer: Trainer, module: LightningModule, kind: type[Callback]) -> None:
    """``UnsupportedError`` for a set-up that this adapter cannot make exact."""
    if type(trainer).__mro__[-2].__module__.startswith("pytorch_lightning"):
        raise UnsupportedError("this Trainer is pytorch_lightning's", hint="import it from lightning.pytorch")
    if sum(isinstance(callback, kind) for callback in hooks.callbacks(trainer)) > 1:
        raise UsageError(
            "two DurableCheckpoint callbacks in one Trainer", hint="a run has one history: keep one"
        )
    _check_strategy(trainer)
    for callback in hooks.callbacks(trainer):
        if _is_finder(callback):
            raise UnsupportedError(
                f"{type(callback).__name__} would search anew at every resume and change the run",
                hint="call Tuner(trainer).lr_find(model) or .scale_batch_size(model) before fit instead",
            )
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise UnsupportedError(
            "training_step(dataloader_iter) fetches batches by itself: which of them were trained is unknown",
            hint="take (batch, batch_idx)",
        )


def _check_strategy(trainer: Trainer) -> None:
    strategy = trainer.strategy
    known = isinstance(strategy, (SingleDeviceStrategy, DDPStrategy))
    if not known or strategy.restore_checkpoint_after_setup or strategy.handles_gradient_accumulation:
        raise UnsupportedError(
            f"strategy {type(strategy).__name__}: sharded or unknown state cannot be made exact yet",
            hint='use a single device or strategy="ddp"',
        )
    if isinstance(strategy.launcher, _MultiProcessingLauncher):
        raise UnsupportedError(
            "strategies that fork or spawn their workers lose the exit code that a supervisor needs",
            hint='strategy="ddp" in a script, or torchrun',
        )


def _is_finder(callback: Callback) -> bool:
    return isinstance(callback, (LearningRateFinder, BatchSizeFinder))


def check_first_fit(root: str) -> None:
    """``UsageError`` when a fit under ``root`` already ran to its end in this process: which is which?"""
    if root in _finished:
        raise UsageError(
            f"a fit under {root} has already finished in this process; this one would be taken for it",
            hint='give each a key of its own, DurableCheckpoint(root, run_key="fold-1"); '
            "a run is gone on with in a new process",
        )


@contextlib.contextmanager
def slurm_explained(external: str | None) -> Iterator[None]:
    """A refusal of Slurm's own checkpoint says where that file came from: nobody passed it."""
    try:
        yield
    except UsageError as error:
        if external is None or not Path(external).name.startswith("hpc_ckpt_"):
            raise
        raise UsageError(
            error.message,
            hint="Lightning's Slurm requeue wrote that file: remove it and set "
            'SLURMEnvironment(auto_requeue=False), or resume="fork"',
        ) from error


def note_finished(root: str) -> None:
    _finished.add(root)


def seed_is_chosen() -> bool:
    """Whether the script set one. Torch starts from 53 bits of chance; those that people choose are short."""
    return bool(os.environ.get("PL_GLOBAL_SEED")) or torch.initial_seed() < 1 << 32


def seed() -> int:
    """The script's seed: of ``seed_everything`` when it was called, else torch's own."""
    value = os.environ.get("PL_GLOBAL_SEED")
    return int(value) if value else torch.initial_seed() & ((1 << 63) - 1)
