"""L3. What a user's loader asks for, and whether that can be made exact: decisions, with the way out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]
from torchdata.stateful_dataloader import sampler as torchdata_samplers

from durable_core.data.cursor import Layout, Remainder
from durable_core.data.loader.sources.mapped import is_stateful
from durable_core.data.mixture.nested import is_mixture
from durable_core.data.readers.hugging import INSTEAD, lossy_buffer
from durable_core.errors import UnsupportedError, UsageError
from durable_core.types import Promise

# Exact types: a subclass may order things its own way.
_RANDOM = (RandomSampler, torchdata_samplers.RandomSampler)
_BATCH = (BatchSampler, torchdata_samplers.BatchSampler)
_DISTRIBUTED = (DistributedSampler, torchdata_samplers.StatefulDistributedSampler)
_WEAKEST = f'or accept promise="{Promise.DISTRIBUTION.value}"'


def arguments(
    loader: DataLoader[Any],
    *,
    replica: int | None,
    replicas: int | None,
    seed: int | None,
    promise: Promise,
    remainder: Remainder | None = None,
) -> dict[str, Any]:
    """Keyword arguments that make a ``DurableLoader`` of a user's loader. ``remainder``: what becomes of it,
    where the caller says so; else what the loader does, and samples that are seen twice are warned of.

    Raises ``UnsupportedError`` for what cannot be made exact under ``promise``.
    """
    _check_class(loader)
    common = {**_reading(loader), "promise": promise}
    if isinstance(loader.dataset, IterableDataset):
        place = {"replica": replica or 0, "replicas": replicas or 1}
        batching = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        return {**common, **place, **batching, "seed": seed}
    if loader.batch_sampler is None:
        raise UnsupportedError(
            "batch_size=None with a map-style dataset leaves the batches to the sampler or the dataset",
            hint="pass batch_size, or give the BatchSampler as batch_sampler",
        )
    batch_size, drop_last = loader.batch_size, loader.drop_last
    sampler: Any = loader.sampler
    if batch_size is None:
        sampler = loader.batch_sampler
        if type(sampler) in _BATCH:  # an ordinary batch sampler, only spelt out
            batch_size, drop_last, sampler = sampler.batch_size, sampler.drop_last, sampler.sampler
    if isinstance(sampler, DistributedSampler):
        replica = sampler.rank if replica is None else replica
        replicas = sampler.num_replicas if replicas is None else replicas
        seed = sampler.seed if seed is None else seed
    place = {"replica": replica or 0, "replicas": replicas or 1}
    common |= {**place, "batch_size": batch_size, "seed": seed}
    dataset: Any = loader.dataset
    shuffle = _shuffle(sampler, dataset)
    if shuffle is None or batch_size is None:
        return {**common, "sampler": sampler, "drop_last": drop_last}
    if is_mixture(dataset):
        return {**common, "shuffle": shuffle, "drop_last": drop_last}  # its length is not that of an epoch
    drop_tail = isinstance(sampler, DistributedSampler) and sampler.drop_last
    if remainder is None:
        remainder = _remainder(len(dataset), batch_size, place["replicas"], drop_last, drop_tail)
    return {**common, "shuffle": shuffle, "remainder": remainder}


def without(given: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` less what ``more`` says in other words: an order, or what becomes of the remainder."""
    said = {name for name, other in (("shuffle", "order"), ("drop_last", "remainder")) if more.get(other)}
    return {name: value for name, value in given.items() if name not in said}


def _check_class(loader: Any) -> None:
    if not isinstance(loader, DataLoader):
        raise UnsupportedError(
            f"{type(loader).__name__} is not a torch DataLoader",
            hint="build a DurableLoader from its dataset",
        )
    if type(loader).__iter__ not in (DataLoader.__iter__, StatefulDataLoader.__iter__):
        raise UnsupportedError(
            f"{type(loader).__name__} iterates in its own way, which cannot be resumed exactly",
            hint="build a DurableLoader from its dataset, or use a plain DataLoader",
        )
    if not getattr(loader, "in_order", True):
        raise UnsupportedError(
            "in_order=False delivers batches as workers finish, so no order can be kept",
            hint="leave in_order=True",
        )


def _reading(loader: DataLoader[Any]) -> dict[str, Any]:
    names = ("dataset", "collate_fn", "num_workers", "pin_memory", "prefetch_factor", "timeout")
    more = ("worker_init_fn", "multiprocessing_context", "persistent_workers")
    return {name: getattr(loader, name) for name in names + more}


def _shuffle(sampler: Any, dataset: Any) -> bool | None:
    """Whether a sampler we can stand in for shuffles; None for one with an order of its own."""
    kind = type(sampler)
    if kind in _DISTRIBUTED:
        return bool(sampler.shuffle) if len(sampler.dataset) == len(dataset) else None
    if kind is SequentialSampler or kind in _RANDOM:
        plain = kind is SequentialSampler or not sampler.replacement
        whole = len(sampler) == len(sampler.data_source) == len(dataset)
        return kind is not SequentialSampler if plain and whole else None
    return None


def _remainder(size: int, batch_size: int, replicas: int, drop_last: bool, drop_tail: bool) -> Remainder:
    if drop_last:
        return "drop"
    layout = Layout(size, batch_size * replicas, "short")
    if layout.tail % replicas == 0:
        return "short"
    if drop_tail:
        return "drop"
    repeats = layout.global_batch - layout.tail
    warnings.warn(
        f"{size} samples leave a last batch of {layout.tail}, which {replicas} replicas cannot share evenly: "
        f"{repeats} samples are seen twice in every epoch to fill it; drop_last=True avoids that",
        stacklevel=4,
    )
    return "wrap"


# --- checks that the constructor shares -----------------------------------------------------


def check_stream(dataset: Any, *, replicas: int, promise: Promise) -> Promise:
    """The promise that an iterable dataset can keep; raises when it is weaker than ``promise``."""
    if replicas > 1:
        raise UnsupportedError(
            "an iterable dataset cannot be shared out between replicas: its order is its own",
            hint="use a map-style dataset, one replica, or stream_shares=True: each replica then reads it "
            "all, and takes its share of each batch",
        )
    if (lossy := lossy_buffer(dataset)) is not None:
        return _need(promise, lossy, f"{INSTEAD}, {_WEAKEST}")
    if is_stateful(dataset):
        return Promise.BITWISE
    return _need(
        promise,
        f"{type(dataset).__name__} is iterable and has no state_dict, so its position cannot be restored",
        f"give it state_dict() and load_state_dict(), use a map-style dataset, {_WEAKEST}",
    )


def check_sampler(sampler: Any, dataset: Any, *, replicas: int, promise: Promise) -> Promise:
    """The promise that a map-style dataset under a user's own sampler can keep; raises as above."""
    name = type(sampler).__name__
    if not hasattr(sampler, "__iter__"):
        raise UsageError(f"{name} is no sampler: it gives no ids", hint="a sampler has __iter__")
    if replicas > 1:
        raise UnsupportedError(
            f"{name} orders samples in its own way and cannot be shared out between {replicas} replicas",
            hint="use shuffle=True or shuffle=False",
        )
    if is_stateful(sampler):
        return Promise.BITWISE
    if type(sampler) in (*_RANDOM, SequentialSampler, *_DISTRIBUTED):
        what = f"{name} draws with replacement, a part of the dataset, or from another one"
        way = "use shuffle=True over the whole dataset or a Subset, and limit the batches in the trainer"
    else:
        what = f"{name} is a sampler without state_dict, so its order cannot be restored"
        way = "use shuffle=True, give it state_dict() and load_state_dict()"
    return _need(promise, what, f"{way}, {_WEAKEST}")


def _need(promise: Promise, what: str, hint: str) -> Promise:
    if promise is not Promise.DISTRIBUTION:
        raise UnsupportedError(f"{what}; the promise is {promise.value!r}", hint=hint)
    return Promise.DISTRIBUTION
