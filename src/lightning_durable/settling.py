"""The guard under Lightning: copying in the background ends before anything may change what is copied.

At a boundary before a batch, parameters and optimizer state are copied while that batch is computed. What may
change them before the batch is over, and what stands before it:

===================================================  ====================================================
updates, through Lightning or by the raw optimizer   hooks on the raw optimizers; with a closure, after it
optimizers that may change weights at other times    ``stable.predictable``: nothing of theirs is copied later
hooks that the user wrote, of callbacks and module   ``FirstInLine``, before each of them
validation, the end of the epoch, an exception       ``FirstInLine``, when the batch is over
code in ``training_step`` that writes to parameters  nothing: torch counts the writes, the snapshot is void
===================================================  ====================================================
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from durable_core.state import stable
from lightning_durable import hooks

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

#: Where hooks are defined that change no weights before an update: as looked up in Lightning 2.6.6.
_KNOWN = ("lightning.pytorch.", "lightning_durable.")


class FirstInLine(Callback):
    """Asked before every other callback, and callbacks are asked before the module.

    It stands in the line only while something is being copied: Lightning spends some 60 µs a step on each
    callback, whatever it does. ``settle`` ends the copying.
    """

    def __init__(self, trainer: Trainer, settle: Callable[[], None]) -> None:
        self._trainer, self._do_settle = trainer, settle
        self.updated = False  # an optimizer has stepped; whoever accounts for it says False again
        self._pending = False
        self._hooked: dict[Optimizer, RemovableHandle] = {}

    def remove(self) -> None:
        """Leave trainer and optimizers as they were."""
        self._step_aside()
        for handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()

    def watch(self) -> None:
        """Every optimizer that there is now; once each."""
        for optimizer in self._trainer.optimizers:
            if optimizer not in self._hooked:
                self._hooked[optimizer] = optimizer.register_step_pre_hook(self._before_update)

    def unchanging(self, module: LightningModule) -> frozenset[int]:
        """Storages that nothing changes before ``settle`` is called."""
        self.watch()
        return stable.storages(self._trainer.optimizers, [module])

    def staged(self) -> None:
        """A snapshot is being copied. Called at a boundary, where Lightning is in none of its hooks."""
        if not self._pending:
            self._pending = True
            hooks.set_callbacks(self._trainer, [self, *hooks.callbacks(self._trainer)])

    def settle(self) -> None:
        if self._pending:
            self._step_aside()
            self._do_settle()

    def _step_aside(self) -> None:
        self._pending = False
        others = [callback for callback in hooks.callbacks(self._trainer) if callback is not self]
        hooks.set_callbacks(self._trainer, others)

    # --- updates, whoever makes them -----------------------------------------------------------

    def _before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """``args`` begins with the optimizer itself. A closure computes the loss, so that is not held up."""
        self.updated = True
        if not self._pending:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None or not stable.predictable(optimizer):
            self.settle()
            return None

        @wraps(closure)
        def settled_after(*given: Any, **named: Any) -> Any:
            loss = closure(*given, **named)
            self.settle()
            return loss

        return args[:1], {**kwargs, "closure": settled_after}

    # --- Lightning's hooks between the boundary and the update, then those after it -------------

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._settle_for("on_train_batch_start")

    def on_before_zero_grad(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self._settle_for("on_before_zero_grad")

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        self._settle_for("on_before_backward")

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.settle()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        self.settle()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.settle()  # validation may follow, with averages swapped in

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.settle()

    def _settle_for(self, hook: str) -> None:
        """Forward and backward passes may overlap with copying unless the user wrote a hook between them."""
        if any(_users(owner, hook) for owner in self._owners()):
            self.settle()

    def _owners(self) -> list[Any]:
        return [*hooks.callbacks(self._trainer), self._trainer.lightning_module]


def _users(owner: Any, hook: str) -> bool:
    defined_in: str = getattr(getattr(owner, hook), "__module__", None) or ""
    return not defined_in.startswith(_KNOWN)
