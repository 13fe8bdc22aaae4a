"""The spec of a script under Accelerate: what makes two runs of it the same run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import nn

from accelerate_durable.options import DurableOptions
from durable_core.session.world import World
from durable_core.spec import RunSpec, describe_model
from durable_core.spec import derive as derive_spec

if TYPE_CHECKING:
    import accelerate


def derive(
    accelerator: accelerate.Accelerator, models: Sequence[nn.Module], options: DurableOptions, world: World,
    seed: int,
) -> RunSpec:  # fmt: skip
    """``models``: unwrapped, in the order in which they were prepared; ``seed``: of the data."""
    settings = options.settings()
    kinds = [f"{type(model).__module__}.{type(model).__qualname__}" for model in models]
    return derive_spec(
        model=describe_model(" ".join(kinds) or "none", _rows(models)),
        run_key=options.run_key or "main",
        promise=settings.promise,
        seed=seed,
        precision=str(accelerator.mixed_precision),
        roles=world.roles,
        accumulation=accelerator.gradient_accumulation_steps,
        max_steps=options.max_steps,
        accept_distribution=bool(settings.accept_distribution),
        reason=settings.accept_distribution,
    )


def _rows(models: Sequence[nn.Module]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    for place, model in enumerate(models):
        prefix = f"{place}." if place else ""
        for name, parameter in model.named_parameters():
            yield f"{prefix}{name}", tuple(parameter.shape), str(parameter.dtype)
