"""What cannot be made exact is refused here, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from durable_core.errors import UnsupportedError

if TYPE_CHECKING:
    from transformers import Trainer

#: (does it apply, what it is, the way out)
REFUSED: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (
        lambda trainer: trainer.is_deepspeed_enabled,
        "DeepSpeed keeps the state of the optimizer to itself, in shards",
        "train with DDP, or without DurableTrainerCallback",
    ),
    (
        lambda trainer: bool(
            trainer.is_fsdp_enabled
            or trainer.is_fsdp_xla_enabled
            or getattr(trainer, "is_distributed_loading_by_transformers", False)
        ),
        "FSDP and models that are sharded as they are loaded: sharded state cannot be made exact yet",
        "train with DDP, or without DurableTrainerCallback",
    ),
    (
        lambda trainer: trainer.args.auto_find_batch_size,
        "auto_find_batch_size would search anew at every start, and change the run",
        "give per_device_train_batch_size the size that it found",
    ),
    (
        lambda trainer: trainer.args.ignore_data_skip,
        "ignore_data_skip trains on other samples after a restart",
        "leave it out: a restart finds its place in the data at once, and skips nothing",
    ),
    (
        lambda trainer: getattr(trainer.args, "enable_jit_checkpoint", False),
        "enable_jit_checkpoint takes SIGTERM for itself",
        "leave it out: at SIGTERM everything is made durable at the next step, and the process exits with 75",
    ),
    (
        lambda trainer: trainer.args.n_gpu > 1,
        "several GPUs in one process (DataParallel)",
        "one process for each: torchrun or accelerate launch",
    ),
)


def check(trainer: Trainer, trial: Any) -> None:
    """``UnsupportedError`` for a set-up that this adapter cannot make exact."""
    if trial is not None:
        raise UnsupportedError(
            "hyperparameter_search trains many runs, and this root holds one",
            hint="search without DurableTrainerCallback, then train with what was found",
        )
    for applies, what, way in REFUSED:
        if applies(trainer):
            raise UnsupportedError(what, hint=way)
