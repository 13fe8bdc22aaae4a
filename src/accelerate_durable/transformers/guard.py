"""What cannot be made exact is refused here, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from durable_core.errors import UnsupportedError

if TYPE_CHECKING:
    from transformers import Trainer

Rows = tuple[tuple[Callable[[Any], Any], str, str], ...]

_DDP = "train with DDP, or without DurableTrainerCallback"

#: (does it apply, what it is, the way out), of training arguments
OF_ARGUMENTS: Rows = (
    (
        lambda args: args.auto_find_batch_size,
        "auto_find_batch_size would search anew at every start, and change the run",
        "give per_device_train_batch_size the size that it found",
    ),
    (
        lambda args: args.ignore_data_skip,
        "ignore_data_skip trains on other samples after a restart",
        "leave it out: a restart finds its place in the data at once, and skips nothing",
    ),
    (
        lambda args: getattr(args, "enable_jit_checkpoint", False),
        "enable_jit_checkpoint takes SIGTERM for itself",
        "leave it out: at SIGTERM everything is made durable at the next step, and the process exits with 75",
    ),
    (
        lambda args: args.n_gpu > 1,
        "several GPUs in one process (DataParallel)",
        "one process for each: torchrun or accelerate launch",
    ),
    (
        lambda args: getattr(args, "deepspeed", None),
        "DeepSpeed keeps the state of the optimizer to itself, in shards",
        _DDP,
    ),
    (lambda args: getattr(args, "fsdp", None), "FSDP: sharded state cannot be made exact yet", _DDP),
)
#: The same of a Trainer: a launcher may have said so.
OF_TRAINER: Rows = (
    (
        lambda trainer: trainer.is_deepspeed_enabled,
        "DeepSpeed keeps the state of the optimizer to itself, in shards",
        _DDP,
    ),
    (
        lambda trainer: (
            trainer.is_fsdp_enabled
            or trainer.is_fsdp_xla_enabled
            or getattr(trainer, "is_distributed_loading_by_transformers", False)
        ),
        "FSDP, or a model that was loaded in shards: sharded state cannot be made exact yet",
        _DDP,
    ),
)


def check(trainer: Trainer, trial: Any) -> None:
    """``UnsupportedError`` for a set-up that this adapter cannot make exact."""
    if trial is not None:
        raise UnsupportedError(
            "hyperparameter_search trains many runs, and this root holds one",
            hint="search without DurableTrainerCallback, then train with what was found",
        )
    refuse(OF_TRAINER, trainer)
    refuse(OF_ARGUMENTS, trainer.args)


def refuse(rows: Rows, what: Any) -> None:
    """``UnsupportedError`` of the first row that applies to ``what``."""
    for applies, told, way in rows:
        if applies(what):
            raise UnsupportedError(told, hint=way)
