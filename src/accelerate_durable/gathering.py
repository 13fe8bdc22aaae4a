"""What of an accelerator is a run's state, and whether it can be."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from accelerate_durable import hooks
from accelerate_durable.description import Description
from accelerate_durable.residue import Residue
from durable_core.data import DurableLoader
from durable_core.errors import UnsupportedError, UsageError
from durable_core.session.world import World
from durable_core.state import contract

if TYPE_CHECKING:
    import accelerate

    from accelerate_durable.passes import Loop

#: Ways to share out work that this adapter knows. The others split the model, or have engines of their own.
_KNOWN = (
    "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU",
    "MULTI_HPU",
)  # fmt: skip


def check(accelerator: accelerate.Accelerator) -> None:
    """``UnsupportedError`` for what this adapter cannot make exact, an Accelerate it does not know too."""
    hooks.check(accelerator)
    kind = accelerator.distributed_type
    parallel = accelerator.parallelism_config
    if kind.value in _KNOWN and parallel is None:
        _check_group(accelerator.num_processes)
        return
    raise UnsupportedError(
        f"{kind.value if parallel is None else 'a parallelism_config'}: the model is spread over the "
        "processes, and this adapter saves what each of them has whole",
        hint="data parallelism (DDP) is supported: leave it out, or use plain Accelerate there",
    )


def _check_group(processes: int) -> None:
    """``UsageError`` when a launcher has started more processes than Accelerate knows of: on CPUs it takes
    each for alone, synchronizes no gradients, and they would train as many models."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_initialized():
        started = torch.distributed.get_world_size()
    if started != processes:
        raise UsageError(
            f"{started} processes were started, and Accelerate knows of {processes}",
            hint="on CPUs say Accelerator(cpu=True), or ACCELERATE_USE_CPU=true in the environment",
        )


def state(accelerator: accelerate.Accelerator, loop: Loop, loader: DurableLoader | None) -> dict[str, Any]:
    """The state objects by name. One that was prepared twice is in it once."""
    found: dict[str, Any] = {}
    for word, items in (
        ("model", hooks.models(accelerator)),
        ("optimizer", hooks.optimizers(accelerator)),
        ("scheduler", hooks.schedulers(accelerator)),
        ("registered", hooks.registered(accelerator)),
    ):
        unwrapped = {id(item): item for item in map(contract.adapt, items)}
        found |= {f"{word}_{i}" if i else word: item for i, item in enumerate(unwrapped.values())}
    if accelerator.scaler is not None:
        found["scaler"] = accelerator.scaler
    raw = list(dict.fromkeys(hooks.optimizers(accelerator)))
    if raw:
        found["gradients"] = Residue(raw)
    found["loop"] = loop
    if Description.is_of(found.get("model")):
        found["hf"] = Description(found["model"])
    return found if loader is None else {**found, "loader": loader}


def refuse_unowned(state: Mapping[str, Any]) -> list[Any]:
    """From now on a step of a parameter that is in nothing that is saved is an ``UnsupportedError``. (That an
    optimizer holds one means little: without a gradient it is not trained.) The handles of the hooks."""
    optimizers = [item for item in state.values() if isinstance(item, torch.optim.Optimizer)]
    others = [item for item in state.values() if not isinstance(item, torch.optim.Optimizer)]
    owned = {id(tensor) for item in others for tensor in _tensors(item)}
    handles: list[Any] = []
    for number, optimizer in enumerate(optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in owned]
        if parameters:
            check = functools.partial(_check_untrained, number, parameters)
            # a closure computes gradients within the step
            handles += optimizer.register_step_pre_hook(check), optimizer.register_step_post_hook(check)
    return handles


def _check_untrained(number: int, parameters: Sequence[torch.Tensor], *_: Any) -> None:
    trained = next((p for p in parameters if p.grad is not None), None)
    if trained is not None:
        raise UnsupportedError(
            f"optimizer {number} trains a parameter of shape {tuple(trained.shape)} that is in no "
            "model of the run, and would be in no checkpoint",
            hint="accelerator.prepare() its model too, or register_for_checkpointing() it",
        )


def _tensors(item: Any) -> Iterator[torch.Tensor]:
    """Those of a module, or of what an object of the script's holds."""
    if isinstance(item, torch.nn.Module):
        yield from (*item.parameters(), *item.buffers())
        return
    held, seen = list(getattr(item, "__dict__", {}).values()), set[int]()
    while held:
        value = held.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, torch.nn.Module):
            yield from value.parameters()
        elif isinstance(value, (list, tuple)):
            held += value
        elif isinstance(value, dict):
            held += value.values()


class Modes:
    """Which modules train and which parameters are trained, as the script has set it."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        models = [item for item in state.values() if isinstance(item, torch.nn.Module)]
        self._modules = [(module, module.training) for model in models for module in model.modules()]
        self._parameters = [(item, item.requires_grad) for model in models for item in model.parameters()]

    def put_back(self) -> None:
        for module, training in self._modules:
            module.training = training
        for parameter, trained in self._parameters:
            parameter.requires_grad_(trained)


def unsaved_schedule(accelerator: accelerate.Accelerator) -> str:
    """What is told of an optimizer whose learning rate follows a schedule that nobody prepared or registered;
    empty: of none. (A schedule of torch leaves ``initial_lr`` in the groups of its optimizer.)"""
    known = [*hooks.schedulers(accelerator), *hooks.registered(accelerator)]
    followed = {id(getattr(item, "optimizer", None)) for item in map(contract.adapt, known)}
    for number, optimizer in enumerate(hooks.optimizers(accelerator)):
        if "initial_lr" in optimizer.param_groups[0] and id(optimizer) not in followed:
            return (
                f"a learning-rate schedule of optimizer {number} is in no checkpoint, and begins anew with "
                "each process. Give the scheduler to accelerator.prepare() or register_for_checkpointing()"
            )
    return ""


def seed(accelerator: accelerate.Accelerator, world: World) -> int:
    """Of order and augmentation: the first process's, on all of them."""
    given = accelerator.dataloader_config.data_seed
    return int(world.broadcast(torch.initial_seed() if given is None else given))
