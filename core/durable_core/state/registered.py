"""L3. The codec's knowledge of torch's small value types and of random generators.

Names in a document are looked up in tables made here from torch itself; nothing is imported or
evaluated by name.
"""

from __future__ import annotations

from typing import Any

import torch

from durable_core.format.codec import DEFAULT, Registry
from durable_core.state import rng


def install(registry: Registry) -> None:
    """Register every type below with ``registry``."""
    for kind in (torch.dtype, torch.layout, torch.memory_format):
        _register_constants(registry, kind)
    registry.register(torch.Size, "torch.Size", list, torch.Size)
    registry.register(torch.device, "torch.device", str, torch.device)
    rng.register(registry)


def _register_constants(registry: Registry, kind: type[Any]) -> None:
    """A closed set of named singletons, such as ``torch.float32``."""
    members = {str(value): value for value in vars(torch).values() if isinstance(value, kind)}
    registry.register(kind, f"torch.{kind.__name__}", str, members.__getitem__)


install(DEFAULT)
