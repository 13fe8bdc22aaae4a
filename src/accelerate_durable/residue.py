"""Gradients that a boundary finds unused: of several optimizers, one may step less often than the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class Residue:
    """A state object of the run: the gradients of every optimizer that has not stepped in the step before the
    boundary. They may be summed up over several steps, and only the script knows when they are used up.

    What an optimizer that did step leaves behind is used up: a script clears it before it computes new ones.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self._stepped: set[int] = set()  # since the last boundary
        self._used = set(range(len(self._optimizers)))  # up to the last boundary

    def watch(self) -> list[Any]:
        """Learn which optimizers step; the handles of the hooks."""

        def noting(number: int) -> Any:
            return lambda *_: self._stepped.add(number)

        return [item.register_step_post_hook(noting(n)) for n, item in enumerate(self._optimizers)]

    def boundary(self) -> None:
        self._used, self._stepped = self._stepped, set()

    def state_dict(self) -> dict[str, Tensor]:
        """Live tensors, by the number of the optimizer and that of the parameter in it."""
        found: dict[str, Tensor] = {}
        for number in set(range(len(self._optimizers))) - self._used:
            parameters = enumerate(self._parameters(number))
            found |= {f"{number}.{k}": p.grad for k, p in parameters if p.grad is not None}
        return found

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        pending = {int(key.partition(".")[0]) for key in state}
        for number in range(len(self._optimizers)):
            for k, parameter in enumerate(self._parameters(number)):
                gradient = state.get(f"{number}.{k}")
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
        self._used, self._stepped = set(range(len(self._optimizers))) - pending, set()

    def _parameters(self, number: int) -> Iterator[Tensor]:
        return (p for group in self._optimizers[number].param_groups for p in group["params"])
