"""Gradients that a boundary finds, and that the next update may still be made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

#: Of which optimizers it is known whether the script keeps their gradients, by number.
_KEPT = "kept"


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
        self._left: dict[int, Tensor] = {}  # a parameter that had a gradient at the boundary

    def watch(self) -> list[Any]:
        """Learn which optimizers step; the handles of the hooks."""

        def noting(number: int) -> Any:
            return lambda *_: self._stepped.add(number)

        return [item.register_step_post_hook(noting(n)) for n, item in enumerate(self._optimizers)]

    def boundary(self) -> None:
        self._used, self._stepped = self._stepped, set()
        for number in tuple(self._used):
            left = next((p for p in self._parameters(number) if p.grad is not None), None)
            if left is not None:
                self._left[number] = left
                self._used -= {number} if self._kept.get(number, True) else set()

    def computing(self) -> None:
        """The script computes gradients now: are those of the last boundary there still?"""
        for number, parameter in self._left.items():
            self._kept[number] = self._kept.get(number, False) or parameter.grad is not None
        self._left.clear()

    def state_dict(self) -> dict[str, Any]:
        """Live tensors, by the number of the optimizer and that of the parameter in it."""
        found: dict[str, Any] = {_KEPT: {str(number): kept for number, kept in sorted(self._kept.items())}}
        for number in set(range(len(self._optimizers))) - self._used:
            parameters = enumerate(self._parameters(number))
            found |= {f"{number}.{k}": p.grad for k, p in parameters if p.grad is not None}
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept = {int(number): kept for number, kept in state.get(_KEPT, {}).items()}
        pending = {int(key.partition(".")[0]) for key in state if key != _KEPT}
        for number in range(len(self._optimizers)):
            for k, parameter in enumerate(self._parameters(number)):
                gradient = state.get(f"{number}.{k}")
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
        self._used, self._stepped = set(range(len(self._optimizers))) - pending, set()
        self._left.clear()

    def _parameters(self, number: int) -> Iterator[Tensor]:
        return (p for group in self._optimizers[number].param_groups for p in group["params"])
