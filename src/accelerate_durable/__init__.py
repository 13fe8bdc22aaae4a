"""Accelerate adapter: one class, and a run survives ``kill -9`` at any instant as the same run.

>>> from accelerate_durable import Accelerator
>>> accelerator = Accelerator(durable="runs/exp1")  # doctest: +SKIP
>>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)  # doctest: +SKIP

The names are imported on first use: without Accelerate the command line can still say what is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate_durable.accelerator import Accelerator, attach
    from accelerate_durable.options import DurableOptions
    from durable_core.engine.uncaught import FencedExit

_HOME = {
    "Accelerator": "accelerate_durable.accelerator",
    "DurableOptions": "accelerate_durable.options",
    "FencedExit": "durable_core.engine.uncaught",
    "attach": "accelerate_durable.accelerator",
}

__all__ = ["Accelerator", "DurableOptions", "FencedExit", "attach"]


def __getattr__(name: str) -> Any:
    """Raises ``MissingExtra``, which is an ``ImportError`` too, without Accelerate."""
    if name not in _HOME:
        raise AttributeError(f"module 'accelerate_durable' has no attribute {name!r}")
    from accelerate_durable import failures

    failures.needs("accelerate", "accelerate")
    return getattr(import_module(_HOME[name]), name)
