"""The training loader of a Trainer, made durable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader, IterableDataset

from accelerate_durable.choosing import remainder
from durable_core.data import DurableLoader
from durable_core.errors import UnsupportedError
from durable_core.types import Promise


class TrainerLoader(DataLoaderStateMixin):  # type: ignore[misc]
    """What a Trainer iterates: the batches of ``loader``, placed and counted as Accelerate's own loaders do.

    It is no ``DataLoader`` on purpose: nobody takes it apart to build another.
    """

    def __init__(self, loader: DurableLoader, accelerator: Accelerator) -> None:
        self.loader = loader
        self.gradient_state = GradientState()
        self.batch_sampler = self.sampler = None
        self._drop_last = loader.drop_last
        self._place = accelerator.device if accelerator.device_placement else None
        self._non_blocking = accelerator.non_blocking

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    @property
    def total_batch_size(self) -> int:
        return self.loader.global_batch

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Nothing: the epoch is part of the position."""

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        try:
            for batch in self.loader:
                self.end_of_dataloader = not self.loader.more()
                yield batch if self._place is None else self._moved(batch)
        finally:
            self.end()

    def _moved(self, batch: Any) -> Any:
        return send_to_device(batch, self._place, non_blocking=self._non_blocking)


def durable(
    made: Any,
    accelerator: Accelerator,
    *,
    replica: int,
    replicas: int,
    seed: int,
    promise: Promise,
    accumulate: int,
) -> DurableLoader:
    """Of ``made``, a plain ``DataLoader``, or a ``DurableLoader``, whose seed stays its own.

    ``UnsupportedError`` for what cannot be made exact: samplers and streams without a state, such as that of
    ``train_sampling_strategy="group_by_length"``.
    """
    more: dict[str, Any] = {"seed": None if isinstance(made, DurableLoader) else seed}
    if isinstance(made, DataLoader):
        if accelerator.split_batches and made.batch_size is not None:
            more["batch_size"] = made.batch_size // replicas
        if isinstance(made.dataset, IterableDataset):
            more["stream_shares"] = replicas > 1
        elif made.batch_size is not None:
            even = accelerator.even_batches
            more["remainder"] = remainder(dropped=made.drop_last, even=even, replicas=replicas)
    return DurableLoader.from_dataloader(
        made, replica=replica, replicas=replicas, promise=promise, accumulate=accumulate, **more
    )


def move(loader: DurableLoader, epoch: int, batch: int) -> None:
    """To where a checkpoint that is not ours says that training stood. ``UnsupportedError`` for a stream."""
    state = loader.state_dict()
    if "source" in state:
        raise UnsupportedError(
            f"{type(loader.dataset).__name__} has a position, which the Trainer's checkpoint has not",
            hint="begin with that checkpoint's weights (from_pretrained) instead of resume_from_checkpoint",
        )
    loader.load_state_dict(state | {"epoch": epoch, "batch": batch})
