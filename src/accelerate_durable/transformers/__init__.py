"""Durable training for ``transformers.Trainer`` and what is derived from it (TRL's ``SFTTrainer``)."""

from accelerate_durable.failures import needs

needs("transformers", "transformers")

from accelerate_durable.transformers.callback import DurableTrainerCallback  # noqa: E402
from accelerate_durable.transformers.mixin import DurableTrainerMixin  # noqa: E402
from accelerate_durable.transformers.resuming import last_checkpoint  # noqa: E402

__all__ = ["DurableTrainerCallback", "DurableTrainerMixin", "last_checkpoint"]
