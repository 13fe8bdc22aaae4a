"""Which of the prepared loaders trains, and what a ``DurableLoader`` in its place is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import IterableDataset, RandomSampler

from accelerate_durable import hooks
from accelerate_durable.loader import PreparedDurable, PreparedLoader
from durable_core.data import DurableLoader
from durable_core.data.cursor import Remainder
from durable_core.data.order import SEQUENTIAL
from durable_core.errors import UnsupportedError, UsageError
from durable_core.types import Promise


def choose(shuffles: Sequence[bool], given: int | None) -> int | None:
    """Which of the loaders trains, by its place; ``None`` where there is none.

    ``given`` is the option; else it is the only one, else the one that shuffles, else the first. Raises
    ``UnsupportedError`` where two shuffle, ``UsageError`` for a place that does not exist.
    """
    count = len(shuffles)
    if given is not None:
        if given >= count:
            raise UsageError(
                f"train_loader={given}, and {count} loaders were prepared", hint="counted from 0"
            )
        return given
    shuffling = [place for place, does in enumerate(shuffles) if does]
    if len(shuffling) > 1:
        places = ", ".join(map(str, shuffling))
        raise UnsupportedError(
            f"of {count} prepared loaders several shuffle ({places}, counted from 0 in the order of prepare): "
            "a run has one data position, so which of them trains?",
            hint=f"train_loader={shuffling[0]}, as an option or as ACCELERATE_DURABLE_TRAIN_LOADER",
        )
    return (shuffling[0] if shuffling else 0) if count else None


def shuffles(loader: PreparedLoader) -> bool:
    if isinstance(loader, PreparedDurable):
        return loader.loader.cursor.order != SEQUENTIAL
    sampler: Any = hooks.asked(loader).batch_sampler
    return isinstance(getattr(sampler, "sampler", sampler), RandomSampler)


def durable_loader(
    loader: PreparedLoader, *, replica: int, replicas: int, seed: int, promise: Promise, accumulate: int,
    split: bool, even: bool,
) -> DurableLoader:  # fmt: skip
    """``split``: a batch of the script's is shared out between all; else each has one of that size.
    ``even``: all have as many samples in the last one, some of them twice.

    Raises ``UnsupportedError`` for what cannot be made exact.
    """
    place = {"replica": replica, "replicas": replicas, "promise": promise, "accumulate": accumulate}
    if isinstance(loader, PreparedDurable):
        return DurableLoader.from_dataloader(loader.loader, **place)
    plain = hooks.asked(loader)
    more: dict[str, Any] = {}
    sampler: Any = plain.batch_sampler
    size = plain.batch_size or getattr(sampler, "batch_size", None)
    if split and size is not None:
        more["batch_size"] = size // replicas
    if isinstance(plain.dataset, IterableDataset):
        more["stream_shares"] = replicas > 1
    elif size is not None:
        dropped = bool(getattr(sampler, "drop_last", False))
        more["remainder"] = remainder(dropped=dropped, even=even, replicas=replicas)
    return DurableLoader.from_dataloader(plain, seed=seed, **place, **more)


def remainder(*, dropped: bool, even: bool, replicas: int) -> Remainder:
    """As Accelerate shares out the samples that fill no whole batch of all processes."""
    if dropped:
        return "drop"
    return "wrap" if even and replicas > 1 else "short"
