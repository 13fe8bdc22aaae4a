"""L3. From a loader's settings to what is read, in which order, under which promise. Reads nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import IterableDataset

from durable_core.data.cursor import Cursor, Layout, Remainder, class_name, length
from durable_core.data.loader.adopt import check_sampler, check_stream
from durable_core.data.loader.sources import MapSource, Reading, SamplerSource, Source, StreamSource
from durable_core.data.order import FULL_PERMUTATION, SEQUENTIAL, make_order
from durable_core.data.rng import SampleSeeds
from durable_core.errors import UnsupportedError, UsageError
from durable_core.types import Promise

STREAM = "stream_v1"
SAMPLER = "sampler_v1"


@dataclass(frozen=True)
class Settings:
    """What the caller of ``DurableLoader`` asked for; the meaning of each is explained there."""

    dataset: Any
    batch_size: int | None
    shuffle: bool
    seed: int | None
    replica: int
    replicas: int
    remainder: Remainder
    dataset_id: str
    sampler: Any
    promise: Promise
    transform_version: str
    sample_rng: bool
    num_workers: int
    collate_fn: Callable[[Any], Any]
    torch_arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def streaming(self) -> bool:
        """Whether the dataset is iterable rather than map-style."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def global_batch(self) -> int:
        """Samples in one batch over all replicas; 0 when a batch sampler decides."""
        return (self.batch_size or int(self.streaming)) * self.replicas


@dataclass(frozen=True)
class Plan:
    """The beginning of the data, and what can be promised of it.

    ``batches`` is None when only the end will tell how many an epoch has; ``layout`` is None when
    the dataset or a sampler of the user's decides the order.
    """

    start: Cursor
    batches: int | None
    layout: Layout | None
    guarantees: Promise


def make_plan(settings: Settings) -> Plan:
    """Raises ``UnsupportedError`` or ``UsageError`` for what cannot be done or makes no sense."""
    if not 0 <= settings.replica < settings.replicas:
        raise UsageError(f"replica {settings.replica} is not in [0, {settings.replicas})")
    if settings.batch_size is not None and settings.batch_size < 1:
        raise UsageError(f"batch_size {settings.batch_size} is not positive")
    if settings.streaming:
        return _stream_plan(settings)
    if settings.sampler is not None:
        return _sampler_plan(settings)
    layout = _map_layout(settings)
    name = FULL_PERMUTATION if settings.shuffle else SEQUENTIAL
    return Plan(_start(settings, name, layout.size), layout.batches, layout, Promise.BITWISE)


def make_source(settings: Settings, plan: Plan, seed: int) -> Source:
    """The source that reads what ``plan`` says, under the seed in force."""
    dataset = settings.dataset
    seeds = SampleSeeds(
        dataset_id=settings.dataset_id, seed=seed, transform_version=settings.transform_version
    )
    sample_seeds = seeds if settings.sample_rng else None
    reading = Reading(settings.collate_fn, settings.num_workers, settings.torch_arguments)
    if plan.layout is not None:
        order = make_order(plan.start.order, plan.layout.size, dataset_id=settings.dataset_id, seed=seed)
        place = {"replica": settings.replica, "replicas": settings.replicas}
        return MapSource(dataset, order, plan.layout, **place, reading=reading, seeds=sample_seeds)
    drop_last = settings.remainder == "drop" and settings.batch_size is not None
    batching: dict[str, Any] = {"batch_size": settings.batch_size, "drop_last": drop_last}
    if settings.streaming:
        return StreamSource(dataset, **batching, reading=reading, seeds=sample_seeds)
    batching |= {"batches": plan.batches, "seeds": seeds, "sample_seeds": sample_seeds}
    return SamplerSource(dataset, settings.sampler, **batching, reading=reading)


def _stream_plan(settings: Settings) -> Plan:
    if settings.sampler is not None:
        raise UsageError("an iterable dataset takes no sampler")
    guarantees = check_stream(settings.dataset, replicas=settings.replicas, promise=settings.promise)
    return Plan(_start(settings, STREAM, None), None, None, guarantees)


def _sampler_plan(settings: Settings) -> Plan:
    sampler = settings.sampler
    guarantees = check_sampler(
        sampler, settings.dataset, replicas=settings.replicas, promise=settings.promise
    )
    batches = length(sampler)
    if batches is not None and settings.batch_size is not None:
        up = 0 if settings.remainder == "drop" else settings.batch_size - 1
        batches = (batches + up) // settings.batch_size
    start = _start(settings, f"{SAMPLER}:{class_name(sampler)}", length(settings.dataset))
    return Plan(start, batches, None, guarantees)


def _map_layout(settings: Settings) -> Layout:
    if settings.batch_size is None:
        raise UnsupportedError("batch_size=None needs an iterable dataset", hint="pass batch_size")
    size = length(settings.dataset)
    if size is None:
        raise UnsupportedError(
            f"{type(settings.dataset).__name__} has no length, so it has no order",
            hint="give it __len__, or make it an IterableDataset with state_dict",
        )
    layout = Layout(size, settings.global_batch, settings.remainder)
    layout.check_shares(settings.replicas)
    return layout


def _start(settings: Settings, order: str, size: int | None) -> Cursor:
    return Cursor(
        dataset_id=settings.dataset_id,
        order=order,
        seed=_seed(settings),
        epoch=0,
        batch=0,
        size=size,
        global_batch=settings.global_batch,
        remainder=settings.remainder,
    )


def _seed(settings: Settings) -> int:
    if settings.seed is not None:
        return settings.seed
    if settings.replicas > 1:
        raise UsageError(
            "several replicas need one seed: each may have another initial seed of its own",
            hint="pass seed=",
        )
    return torch.initial_seed()  # reads, draws nothing
