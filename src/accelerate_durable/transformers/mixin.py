"""``DurableTrainerMixin``: for who writes a Trainer class of their own."""

from __future__ import annotations

from typing import Any

from accelerate_durable.transformers.callback import DurableTrainerCallback
from durable_core.errors import UsageError


class DurableTrainerMixin:
    """``class MyTrainer(DurableTrainerMixin, Trainer)``, made with a ``DurableTrainerCallback`` among its
    ``callbacks``, is a Trainer that this callback is attached to.

    Raises ``UsageError`` when there is none.
    """

    callback_handler: Any

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        found = [item for item in self.callback_handler.callbacks if isinstance(item, DurableTrainerCallback)]
        if not found:
            raise UsageError(
                f"{type(self).__name__} is durable, and nobody says where its run lives",
                hint="callbacks=[DurableTrainerCallback(root)]",
            )
        found[0].attach(self)
