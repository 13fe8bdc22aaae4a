"""L3. Optimizers and schedulers: fit is checked first, and loading does not round."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

# State that torch's optimizers keep per element of the parameter.
_ELEMENTWISE = {
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg",
    "acc_delta", "sum", "mu", "ax", "prev",
}  # fmt: skip
# Scheduler state with one entry per parameter group or per scheduler inside.
_PER_GROUP = ("base_lrs", "lr_lambdas", "min_lrs", "_schedulers")


def optimizer_problems(optimizer: Optimizer, state: Any) -> Iterator[str]:
    """What keeps ``state`` from being loaded into ``optimizer``, one line each; nothing is changed."""
    if not isinstance(state, dict) or not {"state", "param_groups"} <= set(state):
        yield "its state is not that of an optimizer"
        return
    stored, live = state["param_groups"], optimizer.param_groups
    sizes, live_sizes = [len(group["params"]) for group in stored], [len(group["params"]) for group in live]
    if sizes != live_sizes:
        yield f"parameter groups have {sizes} parameters in the checkpoint and {live_sizes} here"
        return
    parameters = _parameters(optimizer, state)
    for index, entry in state["state"].items():
        if index not in parameters:
            yield f"state for parameter {index}, which no group holds"
        elif isinstance(entry, dict):
            shape = parameters[index].shape
            for name in sorted(_ELEMENTWISE & set(entry)):
                value = entry[name]
                if isinstance(value, Tensor) and value.shape != shape:
                    yield f"{name} of parameter {index} is {list(value.shape)}, the parameter {list(shape)}"


def write_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """``load_state_dict``, then exactly the stored bits.

    torch casts loaded state to the parameter's dtype, which would round the float32 moments of a
    bfloat16 parameter. Group options that only the running torch knows keep their present values.
    """
    groups = [
        {**{name: value for name, value in live.items() if name != "params"}, **stored}
        for live, stored in zip(optimizer.param_groups, state["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})
    for index, parameter in _parameters(optimizer, state).items():
        stored = state["state"].get(index)
        if isinstance(stored, dict):
            loaded = optimizer.state[parameter]
            for name, value in stored.items():
                loaded[name] = _exact(loaded.get(name), value)


def scheduler_problems(scheduler: LRScheduler, state: Any) -> Iterator[str]:
    """What keeps ``state`` from being loaded into ``scheduler``, one line each."""
    if not isinstance(state, dict):
        yield "its state is not a dict"
        return
    live = scheduler.state_dict()
    for name in _PER_GROUP:
        stored = len(state.get(name) or ())
        if isinstance(live.get(name), list) and len(live[name]) != stored:
            yield f"{name} has {stored} entries in the checkpoint and {len(live[name])} here"


def _parameters(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[Any, Tensor]:
    """Stored parameter index -> live parameter: both sides list them in the same order."""
    indices = itertools.chain.from_iterable(group["params"] for group in state["param_groups"])
    live = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return dict(zip(indices, live, strict=True))


def _exact(loaded: Any, stored: Any) -> Any:
    """``loaded`` where it has the stored dtype; else the stored tensor, on the device torch chose."""
    if isinstance(loaded, Tensor) and isinstance(stored, Tensor) and loaded.dtype != stored.dtype:
        return stored.to(loaded.device)
    if isinstance(stored, list) and isinstance(loaded, list) and len(stored) == len(loaded):
        return [_exact(one, other) for one, other in zip(loaded, stored, strict=True)]
    return loaded
