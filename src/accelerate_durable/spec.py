"""The spec of a script under Accelerate: what makes two runs of it the same run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from accelerate_durable.options import DurableOptions
from durable_core.session.world import World
from durable_core.spec import RunSpec, describe_model
from durable_core.spec import derive as derive_spec

if TYPE_CHECKING:
    import accelerate


def derive(
    accelerator: accelerate.Accelerator, state: Mapping[str, Any], options: DurableOptions, world: World,
    seed: int,
) -> RunSpec:  # fmt: skip
    """``state``: the state objects; ``seed``: of the data."""
    settings = options.settings()
    models = [item for item in state.values() if isinstance(item, nn.Module)]
    kinds = " ".join(f"{type(model).__module__}.{type(model).__qualname__}" for model in models)
    return derive_spec(
        model=describe_model(kinds or "none", _parameters(state)),
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


def _parameters(state: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...], str]]:
    for name, model in state.items():
        if isinstance(model, nn.Module):
            for key, parameter in model.named_parameters():
                yield f"{name}/{key}", tuple(parameter.shape), str(parameter.dtype)
