"""Lightning adapter: one callback, and a run survives ``kill -9`` at any instant as the same run.

>>> from lightning_durable import DurableCheckpoint
>>> trainer = Trainer(callbacks=[DurableCheckpoint("runs/exp1")])  # doctest: +SKIP
>>> trainer.fit(model, loader)  # run the same script again and it resumes  # doctest: +SKIP
"""

try:
    import lightning.pytorch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "lightning_durable needs Lightning: pip install 'durable-training[lightning]'"
    ) from error

from durable_core.engine.uncaught import FencedExit
from lightning_durable.callback import DurableCheckpoint
from lightning_durable.exits import DrainExit

__all__ = ["DrainExit", "DurableCheckpoint", "FencedExit"]
