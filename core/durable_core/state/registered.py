"""L3. The codec's knowledge of torch's small value types and of random generators.

Names in a document are looked up in tables made here from torch itself; nothing is imported or
evaluated by name.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from durable_core.format.codec import DEFAULT, Registry
from durable_core.state import rng

T = TypeVar("T")

_BIT_GENERATORS: dict[str, Callable[[], Any]] = {
    kind.__name__: kind
    for kind in (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
}


def install(registry: Registry) -> None:
    """Register every type below with ``registry``."""
    for kind in (torch.dtype, torch.layout, torch.memory_format):
        _register_constants(registry, kind)
    registry.register(torch.Size, "torch.Size", list, torch.Size)
    registry.register(torch.device, "torch.device", str, torch.device)
    registry.register(torch.Generator, "torch.Generator", _from_torch_generator, _to_torch_generator)
    registry.register(random.Random, "random.Random", rng.generator_state, _to_python_random)
    registry.register(np.random.RandomState, "numpy.RandomState", rng.generator_state, _to_random_state)
    registry.register(np.random.Generator, "numpy.Generator", rng.generator_state, _to_numpy_generator)


def _register_constants(registry: Registry, kind: type[Any]) -> None:
    """A closed set of named singletons, such as ``torch.float32``."""
    members = {str(value): value for value in vars(torch).values() if isinstance(value, kind)}
    registry.register(kind, f"torch.{kind.__name__}", str, members.__getitem__)


def _from_torch_generator(generator: torch.Generator) -> Any:
    return [generator.device.type, rng.generator_state(generator)]


def _to_torch_generator(document: Any) -> torch.Generator:
    device, state = document
    return _with_state(torch.Generator(device), state)


def _to_python_random(document: Any) -> random.Random:
    return _with_state(random.Random(), document)


def _to_random_state(document: Any) -> np.random.RandomState:
    return _with_state(np.random.RandomState(_BIT_GENERATORS[document["bit_generator"]]()), document)


def _to_numpy_generator(document: Any) -> np.random.Generator:
    return _with_state(np.random.Generator(_BIT_GENERATORS[document["bit_generator"]]()), document)


def _with_state(generator: T, state: Any) -> T:
    rng.set_generator_state(generator, state)  # type: ignore[arg-type]
    return generator


install(DEFAULT)
