"""L3. DDP's gradient buckets, laid out before the first step as they will stay.

DDP begins with one layout and makes another after its first backward, in the order in which gradients
became ready then. An element's place in a bucket decides in which order the replicas' gradients are
added up. So with three or more replicas the first step of every life rounds differently from the same
step of a life that began earlier (measured: gloo, 4 processes; with two, addition commutes). A backward
pass over nothing before the first step makes the final layout the same in every life.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def settle(model: nn.Module | None, device: torch.device) -> None:
    """Collective, on every rank, before anything of a life's state is put in place that it would disturb.

    ``model`` as it is called in training, on ``device``. Gradients are cleared. Nothing happens where the
    layout never changes (``find_unused_parameters``); a static graph is left alone, as it must not see
    another one first.
    """
    if not isinstance(model, DistributedDataParallel) or dist.get_world_size() <= 2:
        return
    if model.find_unused_parameters or model.static_graph:
        return
    module = model.module
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]

    def nothing(_: Tensor) -> Tensor:
        # Autograd goes backwards: the last parameter's gradient is ready first, as in most models.
        return torch.stack([parameter.sum().float() * 0 for parameter in parameters]).sum()

    own = module.__dict__.get("forward")  # of this instance, as mixed precision puts one there
    module.forward = nothing
    try:
        model(torch.zeros(1, device=device)).backward()
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
    for parameter in parameters:
        parameter.grad = None
    with torch.no_grad():
        for buffer, before in buffers:  # the pass has sent them around
            buffer.copy_(before)
