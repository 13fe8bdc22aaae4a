"""L5. One step's gradients computed twice from the same start: weights, batch, random streams, buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from durable_core.session.integrity import Watch
from durable_core.state import bits, contract, rng

T = TypeVar("T")


class Recomputer:
    """``objects``: the state of a session; its modules and the generators in it are put back for the second
    time."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        live = {name: contract.adapt(item) for name, item in objects.items()}
        self._modules = {name: item for name, item in live.items() if isinstance(item, nn.Module)}
        self._named: Sequence[rng.Named] = [item for item in live.values() if isinstance(item, rng.Named)]

    def parameters(self) -> list[tuple[str, Tensor]]:
        return [
            (f"{name}/{path}", parameter)
            for name, module in self._modules.items()
            for path, parameter in module.named_parameters()
        ]

    def compute(self, gradients: Callable[[], T], step: int, watch: Watch) -> T:
        """What ``gradients`` returns: called once, or twice at a step that ``watch`` wants computed twice."""
        if not watch.recomputes(step):
            return gradients()
        result, first, second = self._twice(gradients)
        watch.recomputed(step, first, second)
        return result

    def _twice(self, compute: Callable[[], T]) -> tuple[T, str, str]:
        """What ``compute`` gave the second time, and the digests of the gradients after each.

        The second time leaves everything as one time would. Needs memory for the buffers, and for gradients
        that were there before (of an accumulation under way).
        """
        parameters = self.parameters()
        streams, named = rng.capture(), [rng.generator_state(each.generator) for each in self._named]
        buffers = [(buffer, buffer.detach().clone()) for buffer in self._buffers()]
        held = [(p, None if p.grad is None else p.grad.detach().clone()) for _, p in parameters]
        compute()
        first = bits.gradients(parameters)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, gradient in held:
            parameter.grad = gradient
        rng.restore(streams)
        for each, state in zip(self._named, named, strict=True):
            rng.set_generator_state(each.generator, state)
        result = compute()
        return result, first, bits.gradients(parameters)

    def _buffers(self) -> list[Tensor]:
        return [buffer for module in self._modules.values() for buffer in module.buffers()]
