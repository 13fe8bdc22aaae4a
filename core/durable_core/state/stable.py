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

    Left out is what may change before a guard is asked: whatever belongs to an optimizer that is not
    ``predictable``, and parameters with a hook that may update them during the backward pass.
    """
    held: set[int] = set()
    parameters: set[int] = set()
    unsure: set[int] = set()
    for optimizer in optimizers:
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not predictable(optimizer):
            unsure.update(_address(parameter) for parameter in own)
            continue
        for parameter in own:
            (unsure if _updates_in_backward(parameter) else parameters).add(_address(parameter))
        for entry in optimizer.state.values():
            if isinstance(entry, dict):
                held.update(_address(value) for value in entry.values() if isinstance(value, Tensor))
    for module in modules:
        if any(_address(parameter) in parameters for parameter in module.parameters()):
            held.update(_address(p) for p in module.parameters() if not p.requires_grad)
    return frozenset((held | parameters) - unsure - {0})


def predictable(optimizer: Optimizer) -> bool:
    """Whether nothing but ``step`` changes parameters, and that only after it has evaluated its closure.

    True of torch's own optimizers but LBFGS, which evaluates its closure again and again. Others may
    change weights first (ascent steps, schedule-free) or by methods of their own (``eval()``).
    """
    kind = type(optimizer)
    return kind.__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)


def _updates_in_backward(parameter: Tensor) -> bool:
    """An optimizer may run in such a hook; what else it is for cannot be told."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def keys(tensors: Mapping[str, Tensor], stable: frozenset[int]) -> frozenset[str]:
    """The keys of ``tensors`` that lie in the storages ``stable`` and are worth copying later."""
    if not stable:
        return frozenset()
    return frozenset(
        key for key, tensor in tensors.items() if tensor.nbytes >= WORTH_BYTES and _address(tensor) in stable
    )


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
