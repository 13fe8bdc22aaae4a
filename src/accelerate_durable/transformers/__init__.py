"""Durable training for ``transformers.Trainer`` and what is derived from it (TRL's ``SFTTrainer``)."""

from accelerate_durable.transformers.callback import DurableTrainerCallback
from accelerate_durable.transformers.folders import last_checkpoint
from accelerate_durable.transformers.mixin import DurableTrainerMixin

__all__ = ["DurableTrainerCallback", "DurableTrainerMixin", "last_checkpoint"]
