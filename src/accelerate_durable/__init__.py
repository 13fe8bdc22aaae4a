"""Accelerate adapter: one class, and a run survives ``kill -9`` at any instant as the same run.

>>> from accelerate_durable import Accelerator
>>> accelerator = Accelerator(durable="runs/exp1")  # doctest: +SKIP
>>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)  # doctest: +SKIP
"""

try:
    import accelerate  # noqa: F401
except ImportError as error:
    raise ImportError(
        "accelerate_durable needs Accelerate: pip install 'durable-training[accelerate]'"
    ) from error

from accelerate_durable.accelerator import Accelerator, attach
from accelerate_durable.exits import FencedExit
from accelerate_durable.options import DurableOptions

__all__ = ["Accelerator", "DurableOptions", "FencedExit", "attach"]
