"""Durable training for ``transformers.Trainer`` and what is derived from it (TRL's ``SFTTrainer``)."""

from accelerate_durable.transformers.callback import DurableTrainerCallback
from accelerate_durable.transformers.mixin import DurableTrainerMixin
from accelerate_durable.transformers.resuming import last_checkpoint

__all__ = ["DurableTrainerCallback", "DurableTrainerMixin", "last_checkpoint"]
