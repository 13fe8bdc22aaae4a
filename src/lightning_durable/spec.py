"""The spec of a Lightning script: what makes two runs of it the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_core.session.world import World
from durable_core.spec import RunSpec, describe_model
from durable_core.spec import derive as derive_spec
from lightning_durable import guard, hooks
from lightning_durable.options import Options

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


def derive(trainer: Trainer, module: LightningModule, options: Options, world: World) -> RunSpec:
    """Called once the model is built; optimizers and data are not yet."""
    kind = type(module)
    rows = ((name, tuple(p.shape), str(p.dtype)) for name, p in module.named_parameters())
    limits = hooks.limits(trainer)
    return derive_spec(
        model=describe_model(f"{kind.__module__}.{kind.__qualname__}", rows),
        optimizers=_clipping(trainer),
        run_key=options.run_key,
        promise=options.settings.promise,
        seed=guard.seed(),
        precision=str(trainer.precision),
        roles=world.roles,
        accumulation=trainer.accumulate_grad_batches,
        max_steps=limits["max_steps"],
        max_epochs=limits["max_epochs"],
        accept_distribution=bool(options.settings.accept_distribution),
        reason=options.settings.accept_distribution,
    )


def _clipping(trainer: Trainer) -> dict[str, object]:
    """What the Trainer itself does to an update; optimizers do not exist yet, and their state is restored."""
    algorithm = trainer.gradient_clip_algorithm
    return {
        "gradient_clip_val": trainer.gradient_clip_val,
        "gradient_clip_algorithm": None if algorithm is None else algorithm.value,
    }
