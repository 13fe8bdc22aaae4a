"""L3. What an object must offer to be part of a checkpoint, and which part of the state it is."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from durable_core.errors import UsageError
from durable_core.state import rng

UNVERSIONED = 0


@runtime_checkable
class Stateful(Protocol):
    """The contract of a state object.

    ``state_dict`` returns everything that changes a later update, as values the codec knows and
    tensors; ``load_state_dict`` puts it back into a freshly constructed object. Optional attributes:

    * ``state_version: int`` rises when the form of the state changes;
    * ``migrate_state_dict(state, version) -> state`` brings an older form up to date;
    * ``check_state_dict(state)`` raises ``UsageError`` when the state cannot be loaded, changing nothing;
    * ``state_kind: str`` (a ``Kind`` value) when name and type do not say which part of the state it is.
    """

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class Kind(enum.Enum):
    """Parts of the state, in the order in which they are restored."""

    TOPOLOGY = "topology"
    PARAMETERS = "parameters"
    OPTIMIZER = "optimizer"
    SCALER = "scaler"
    SCHEDULER = "scheduler"
    EMA = "ema"
    LOOP = "loop"
    DATA = "data"
    RNG = "rng"


ORDER = tuple(Kind)

# The first row that matches by type, else by a word in the object's name, decides.
_BY_TYPE: tuple[tuple[Kind, tuple[type, ...]], ...] = (
    (Kind.RNG, (*rng.GENERATORS, rng.Streams, rng.Named)),
    (Kind.EMA, (AveragedModel,)),
    (Kind.PARAMETERS, (nn.Module,)),
    (Kind.OPTIMIZER, (torch.optim.Optimizer,)),
    (Kind.SCALER, (torch.amp.GradScaler,)),
    (Kind.SCHEDULER, (LRScheduler,)),
)
_BY_NAME: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    (Kind.TOPOLOGY, ("topology", "mesh")),
    (Kind.OPTIMIZER, ("optimizer",)),
    (Kind.SCALER, ("scaler",)),
    (Kind.SCHEDULER, ("scheduler",)),
    (Kind.EMA, ("ema", "averag")),
    (Kind.DATA, ("data", "loader", "sampler", "cursor", "mixture", "packer")),
    (Kind.RNG, ("rng", "generator")),
)


_ACCELERATE = ("accelerate.optimizer", "accelerate.scheduler")


def classify(name: str, obj: object) -> Kind:
    """Which part of the state ``obj`` is: by ``state_kind``, its type, a word in its name; else ``LOOP``."""
    declared = getattr(obj, "state_kind", None)
    if isinstance(declared, str):
        try:
            return Kind(declared)
        except ValueError:
            known = ", ".join(kind.value for kind in Kind)
            message = f"state object {name!r}: state_kind {declared!r} is not one of {known}"
            raise UsageError(message) from None
    for kind, types in _BY_TYPE:
        if isinstance(obj, types):
            return kind
    lowered = name.lower()
    return next((kind for kind, words in _BY_NAME if any(word in lowered for word in words)), Kind.LOOP)


def adapt(obj: Any) -> Any:
    """The object whose state is taken: without ``DistributedDataParallel``, ``torch.compile`` or accelerate
    around it (so that a checkpoint does not depend on them), and with a contract around a bare generator."""
    while isinstance(obj, nn.Module):
        inner = obj.module if isinstance(obj, DistributedDataParallel) else getattr(obj, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return obj
        obj = inner
    if type(obj).__module__ in _ACCELERATE:
        return _prepared(obj)
    return rng.Named(obj) if isinstance(obj, rng.GENERATORS) else obj


def _prepared(obj: Any) -> Any:
    """What ``accelerator.prepare`` wrapped: its optimizers are torch's by class, and have no hooks."""
    for name, kind in (("optimizer", torch.optim.Optimizer), ("scheduler", LRScheduler)):
        inner = getattr(obj, name, None)
        if isinstance(inner, kind):
            return inner
    return obj


def version(obj: object) -> int:
    """The object's ``state_version``; ``UNVERSIONED`` when it declares none."""
    declared = getattr(obj, "state_version", UNVERSIONED)
    return declared if type(declared) is int else UNVERSIONED


def type_name(obj: object) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def check(name: str, obj: object) -> None:
    """``UsageError`` when ``obj`` cannot be part of a checkpoint."""
    check_all({name: obj})


def check_all(objects: Mapping[str, object]) -> None:
    """``UsageError`` naming every object that cannot be part of a checkpoint (none is skipped silently)."""
    bad = [
        f"{name!r} ({type_name(obj)})"
        for name, obj in objects.items()
        if not isinstance(adapt(obj), Stateful)
    ]
    if bad:
        raise UsageError(
            f"no way to save and restore state object {', '.join(bad)}",
            hint="give it state_dict() and load_state_dict(state), or leave it out of the state",
        )
    for name, obj in objects.items():
        if not isinstance(name, str) or not name or name.startswith("_"):
            raise UsageError(f"{name!r} is not a name for a state object", hint="text not starting with '_'")
        classify(name, obj)
