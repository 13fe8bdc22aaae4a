"""L1. A spec from what an adapter can see of a script. Torch-free: names, shapes and plain values arrive."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from durable_core.spec.canonical import digest_of
from durable_core.spec.model import (
    CheckpointPolicy,
    DataSpec,
    ModelSpec,
    OptimizerSpec,
    Provenance,
    RunSpec,
    Target,
)
from durable_core.spec.sections import Pairs, Scalar
from durable_core.types import Promise


def describe_model(
    cls: str, parameters: Iterable[tuple[str, Sequence[int], str]], initial: str | None = None
) -> ModelSpec:
    """``parameters``: ``(name, shape in elements per dimension, dtype name)``, in any order."""
    rows = sorted((name, tuple(shape), dtype) for name, shape, dtype in parameters)
    count = sum(math.prod(shape) for _, shape, _ in rows)
    return ModelSpec(cls=cls, parameters=count, parameters_digest=digest_of(rows), initial=initial)


def pairs(value: Any) -> Pairs:
    """Any nesting of mappings and sequences as flat, sorted ``(dotted name, scalar)`` pairs.

    What is no plain value is replaced by the name of its type: its *kind* is part of the spec, its
    address in memory is not. Floats that JSON cannot hold are spelt out.
    """
    return tuple(sorted(_leaves(value, ""), key=lambda pair: pair[0]))


def _leaves(value: Any, prefix: str) -> Iterable[tuple[str, Scalar]]:
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        yield prefix, _scalar(value)
        return
    for key, item in items:
        yield from _leaves(item, f"{prefix}.{key}" if prefix else str(key))


def _scalar(value: Any) -> Scalar:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    named = value if hasattr(value, "__qualname__") else type(value)  # a class or function is its own name
    return f"<{named.__module__}.{named.__qualname__}>"


def derive(
    *,
    model: ModelSpec,
    optimizers: Any = (),
    data: DataSpec | None = None,
    run_key: str = "main",
    promise: Promise | str = Promise.BITWISE,
    seed: int = 0,
    precision: str = "32-true",
    roles: Sequence[str] = ("dp0",),
    accumulation: int = 1,
    max_steps: int | None = None,
    max_epochs: int | None = None,
    checkpoint: CheckpointPolicy | None = None,
    provenance: Provenance | None = None,
    accept_distribution: bool = False,
    reason: str = "",
) -> RunSpec:
    """The frozen spec of a script as it stands.

    ``optimizers``: plain nested values (class names, defaults, groups, schedulers) as the script built
    them *before* any state was restored, or a restart would see the learning rate of the day.
    Raises ``UsageError`` naming a field that is illegal or mutable, ``PromiseError`` for an
    unacknowledged *distribution* promise.
    """
    return RunSpec(
        run_key=run_key,
        promise=Promise(promise),
        seed=seed,
        model=model,
        optimizer=OptimizerSpec(config=pairs(optimizers)),
        data=data,
        precision=precision,
        roles=tuple(roles),
        accumulation=accumulation,
        target=Target(max_steps=max_steps, max_epochs=max_epochs),
        checkpoint=checkpoint or CheckpointPolicy(),
        provenance=provenance or Provenance(),
        accept_distribution=accept_distribution,
        reason=reason,
    ).freeze()
