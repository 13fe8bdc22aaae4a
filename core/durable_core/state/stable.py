"""L3. Which tensors of a state nothing but the next optimizer update changes.

Those may be copied while training goes on; everything else (buffers, random streams, counters, averages that
user code keeps) is copied at the boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

#: Smaller tensors are not worth a thread's attention.
WORTH_BYTES = 64 << 10


def storages(optimizers: Iterable[Optimizer], modules: Iterable[nn.Module] = ()) -> frozenset[int]:
    """Addresses of the storages that hold the optimizers' parameters and state, and the frozen parameters
    of every module of which some parameter is optimized (the base under an adapter).

    An optimizer that evaluates its closure several times in a step (LBFGS) contributes nothing: what it
    holds may change before the guard of a framework is asked.
    """
    held: set[int] = set()
    parameters: set[int] = set()
    for optimizer in optimizers:
        if isinstance(optimizer, LBFGS):
            continue
        for group in optimizer.param_groups:
            parameters.update(_address(parameter) for parameter in group["params"])
        for entry in optimizer.state.values():
            if isinstance(entry, dict):
                held.update(_address(value) for value in entry.values() if isinstance(value, Tensor))
    for module in modules:
        own = {_address(parameter) for parameter in module.parameters()}
        if own & parameters:
            held |= own
    return frozenset((held | parameters) - {0})


def keys(tensors: Mapping[str, Tensor], stable: frozenset[int]) -> frozenset[str]:
    """The keys of ``tensors`` that lie in the storages ``stable`` and are worth copying later."""
    if not stable:
        return frozenset()
    return frozenset(
        key for key, tensor in tensors.items() if tensor.nbytes >= WORTH_BYTES and _address(tensor) in stable
    )


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
