"""The spec of a script with a Trainer: what makes two runs of it the same run."""

from __future__ import annotations

from typing import Any

from torch import nn

from accelerate_durable.options import DurableOptions
from durable_core.session.world import World
from durable_core.spec import RunSpec, describe_model
from durable_core.spec import derive as derive_spec

#: Training arguments that change an update.
ARGUMENTS = (
    "optim", "optim_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "max_grad_norm", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "label_smoothing_factor",
    "neftune_noise_alpha",
)  # fmt: skip


def derive(
    model: nn.Module, args: Any, options: DurableOptions, world: World, *, seed: int, max_steps: int
) -> RunSpec:
    """``args``: the ``TrainingArguments``. ``seed``: of the order of data. ``max_steps``: optimizer steps
    that training shall do in all."""
    settings = options.settings()
    kind = type(model)
    rows = ((name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters())
    return derive_spec(
        model=describe_model(f"{kind.__module__}.{kind.__qualname__}", rows),
        optimizers={name: getattr(args, name, None) for name in ARGUMENTS},
        run_key=options.run_key or "main",
        promise=settings.promise,
        seed=seed,
        precision=_precision(args),
        roles=world.roles,
        accumulation=args.gradient_accumulation_steps,
        max_steps=max_steps,
        accept_distribution=bool(settings.accept_distribution),
        reason=settings.accept_distribution,
    )


def seed_of(args: Any) -> int:
    """Of the order of data and of augmentation: ``data_seed``, or else ``seed``."""
    return int(args.seed if args.data_seed is None else args.data_seed)


def _precision(args: Any) -> str:
    return "bf16-mixed" if args.bf16 else "16-mixed" if args.fp16 else "32-true"
