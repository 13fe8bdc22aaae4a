"""Gradients that a boundary finds, and that the next update may still be made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

#: Of which optimizers it is known whether the script keeps their gradients, by number.
_KEPT = "kept"
KEPT_LATE = (
    "the gradients of optimizer {} were dropped after an update before, and are kept now: a checkpoint of "
    "the step before this one lacks them, later ones have them"
)


class Residue:
    """A state object of the run: gradients at a boundary that the script may compute more upon.

    Those of an optimizer that has not stepped in the step before the boundary: they may be summed up over
    several steps, and only the script knows when they are used up. And those that an optimizer which did step
    leaves behind, unless the script is seen to drop them (``set_to_none``) before it computes new ones. What
    is not known, at the first boundary of a run, is saved; and where a script keeps gradients once, its are
    saved from then on.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self._stepped: set[int] = set()  # since the last boundary
        self._used = set(range(len(self._optimizers)))  # up to the last boundary
        self._kept: dict[int, bool] = {}
        self._left: dict[int, list[Tensor]] = {}  # the parameters that had a gradient at the boundary

    def watch(self) -> list[Any]:
        """Learn which optimizers step; the handles of the hooks."""

        def noting(number: int) -> Any:
            return lambda *_: self._stepped.add(number)

        return [item.register_step_post_hook(noting(n)) for n, item in enumerate(self._optimizers)]

    def boundary(self) -> None:
        self._used, self._stepped = self._stepped, set()
        for number in tuple(self._used):
            left = [p for p in self._parameters(number) if p.grad is not None]
            if left:
                self._left[number] = left
                self._used -= {number} if self._kept.get(number, True) else set()

    def computing(self) -> str:
        """The script computes gradients now: are those of the last boundary there still? What is told of a
        script that has dropped them before, and keeps them now; else nothing."""
        late = ""
        for number, parameters in self._left.items():
            kept = any(p.grad is not None for p in parameters)
            if kept and self._kept.get(number) is False:
                late = KEPT_LATE.format(number)
            self._kept[number] = self._kept.get(number, False) or kept
        self._left.clear()
        return late

    def state_dict(self) -> dict[str, Any]:
        """Live tensors, by the number of the optimizer and that of the parameter in it; of a sparse one the
        parts that it consists of."""
        found: dict[str, Any] = {_KEPT: {str(number): kept for number, kept in sorted(self._kept.items())}}
        for number in set(range(len(self._optimizers))) - self._used:
            parameters = enumerate(self._parameters(number))
            found |= {f"{number}.{k}": _stored(p.grad.detach()) for k, p in parameters if p.grad is not None}
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept = {int(number): kept for number, kept in state.get(_KEPT, {}).items()}
        pending = {int(key.partition(".")[0]) for key in state if key != _KEPT}
        for number in range(len(self._optimizers)):
            for k, parameter in enumerate(self._parameters(number)):
                gradient = state.get(f"{number}.{k}")
                parameter.grad = None if gradient is None else _restored(gradient, parameter)
        self._used, self._stepped = set(range(len(self._optimizers))) - pending, set()
        self._left.clear()

    def _parameters(self, number: int) -> Iterator[Tensor]:
        return (p for group in self._optimizers[number].param_groups for p in group["params"])


def _stored(gradient: Tensor) -> Any:
    if gradient.layout is not torch.sparse_coo:
        return gradient
    parts = {"indices": gradient._indices(), "values": gradient._values()}
    return {**parts, "coalesced": gradient.is_coalesced()}


def _restored(stored: Any, parameter: Tensor) -> Tensor:
    if isinstance(stored, Tensor):
        return stored.to(parameter.device)
    indices, values = (stored[name].to(parameter.device) for name in ("indices", "values"))
    return torch.sparse_coo_tensor(
        indices, values, parameter.shape, is_coalesced=stored["coalesced"], check_invariants=True
    )
