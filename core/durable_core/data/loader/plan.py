"""L3. From a loader's settings to what is read, in which order, under which promise. Reads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from durable_core.data.cursor import Cursor, Layout, class_name, length
from durable_core.data.loader.adopt import check_sampler, check_stream
from durable_core.data.loader.choose import endless, evenly, make_map_order, make_sequence
from durable_core.data.loader.settings import Settings as Settings
from durable_core.data.loader.sources.iterable import StreamSource
from durable_core.data.loader.sources.mapped import MapSource, Reading, Source
from durable_core.data.loader.sources.planned import SequenceSource, Weights
from durable_core.data.loader.sources.sampled import SamplerSource, goes_on
from durable_core.data.order import FULL_PERMUTATION, SEQUENTIAL, Order
from durable_core.data.rebuild import SAMPLER, STREAM
from durable_core.data.rng import SampleSeeds
from durable_core.data.sequence import Sequence, epoch_batches
from durable_core.errors import UnsupportedError, UsageError
from durable_core.types import Promise


@dataclass(frozen=True)
class Plan:
    """The beginning of the data, and what can be promised of it.

    Which samples a batch holds is said by ``order`` and ``layout``, or by ``sequence``, or by the user's
    dataset or sampler if all are None. ``batches``: of the latter two, in an epoch, if known; what a sampler
    says of its length may be an estimate, and is only passed on.
    """

    start: Cursor
    batches: int | None
    guarantees: Promise
    order: Order | None = None
    layout: Layout | None = None
    sequence: Sequence | None = None
    sampler_goes_on: bool = False

    def batches_in(self, epoch: int) -> int | None:
        """None when only the end will tell."""
        return self.batches if self.layout is None else self.layout.batches_in(epoch)

    @property
    def samples(self) -> int | None:
        """In an epoch over all replicas; 0 where it has no end, None when only the end will tell."""
        if self.layout is not None:
            return self.layout.size
        if self.sequence is None:
            return None
        return 0 if endless(self.sequence) else self.sequence.batches(1)

    @property
    def stateful(self) -> bool:
        """Whether a restart needs more than the cursor."""
        return self.layout is None

    @property
    def description(self) -> Mapping[str, Any] | None:
        """Of the sequence, or of an order with settings of its own; None where the cursor says it all."""
        if self.sequence is not None:
            return self.sequence.description
        if self.order is None or self.order.name in (FULL_PERMUTATION, SEQUENTIAL):
            return None
        return self.order.description

    @property
    def carries(self) -> bool:
        """Whether the source's state goes on over an epoch's end."""
        return self.sampler_goes_on or (self.sequence is not None and self.sequence.carries)


def make_plan(settings: Settings) -> Plan:
    """Raises ``UnsupportedError`` or ``UsageError`` for what cannot be done or makes no sense."""
    chosen = settings.order is not None or settings.packing is not None
    if chosen and (settings.streaming or settings.sampler is not None):
        kind = "an iterable dataset" if settings.streaming else "a sampler of your own"
        way = "PackedStream(dataset, packing) packs a stream, WindowShuffle shuffles it"
        raise UsageError(
            f"{kind} has its own order: it takes neither order nor packing",
            hint=way if settings.streaming else "",
        )
    if settings.streaming:
        return _stream_plan(settings)
    if settings.sampler is not None:
        return _sampler_plan(settings)
    if settings.replicas > 1 and settings.remainder != "pad" and leaves_out(settings.dataset):
        raise UnsupportedError(
            "the dataset leaves bad records out, and a replica that lost its whole share of a batch would "
            "have none where the others wait for it",
            hint='pass remainder="pad", which gives it a masked sample, or let bad input fail',
        )
    if settings.batch_size is None:
        raise UnsupportedError("batch_size=None needs an iterable dataset", hint="pass batch_size")
    choice = settings.order or (FULL_PERMUTATION if settings.shuffle else SEQUENTIAL)
    dataset, dataset_id, seed = settings.dataset, settings.dataset_id, _seed(settings)
    sequence = make_sequence(dataset, choice, settings.packing, dataset_id=dataset_id, seed=seed)
    if sequence is not None:
        return _sequence_plan(settings, sequence)
    order = make_map_order(dataset, choice, dataset_id=dataset_id, seed=seed)
    layout = Layout(order.size, settings.global_batch, settings.remainder)
    layout.check_shares(settings.replicas)
    return Plan(_start(settings, order.name, layout.size), None, Promise.BITWISE, order, layout)


def leaves_out(dataset: Any) -> bool:
    """Whether it, or one inside it, declares that records may be left out of it."""
    if getattr(dataset, "on_bad", None) in ("skip", "quarantine") or getattr(dataset, "quarantined", None):
        return True
    inside = [getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())]
    sources = getattr(dataset, "sources", None)
    inside += sources.values() if isinstance(sources, Mapping) else []
    return any(leaves_out(one) for one in inside if one is not None)


def make_source(settings: Settings, plan: Plan, updates: Mapping[int, Weights], given: Any) -> Source:
    """The source that reads what ``plan`` says; ``updates``: see ``SequenceSource``; ``given``: of the
    source before it, if there was one."""
    dataset = settings.dataset
    seeds = SampleSeeds(
        dataset_id=settings.dataset_id, seed=plan.start.seed, transform_version=settings.transform_version
    )
    sample_seeds = seeds if settings.sample_rng else None
    pads = settings.remainder == "pad"
    reading = Reading(
        settings.collate_fn,
        settings.num_workers,
        settings.torch_arguments,
        pads=pads,
        seeds_always=settings.sample_rng == "always",
    )
    if plan.sequence is not None:
        return SequenceSource(
            dataset,
            plan.sequence,
            settings.share,
            reading=reading,
            seeds=sample_seeds,
            packing=settings.packing,
            updates=updates,
        )
    if plan.layout is not None and plan.order is not None:
        place = {"replica": settings.replica, "replicas": settings.replicas}
        return MapSource(dataset, plan.order, plan.layout, **place, reading=reading, seeds=sample_seeds)
    if settings.streaming:
        whole = settings.batch_size is None
        share = None if whole else settings.share
        return StreamSource(dataset, share, reading=reading, seeds=sample_seeds, given=given)
    drop_last = settings.remainder == "drop" and settings.batch_size is not None
    batching: dict[str, Any] = {"batch_size": settings.batch_size, "drop_last": drop_last}
    batching |= {"seeds": seeds, "sample_seeds": sample_seeds, "given": given}
    return SamplerSource(dataset, settings.sampler, **batching, reading=reading)


def _stream_plan(settings: Settings) -> Plan:
    if settings.sampler is not None:
        raise UsageError("an iterable dataset takes no sampler")
    shared = settings.replicas > 1 and settings.stream_shares
    guarantees = check_stream(
        settings.dataset, replicas=1 if shared else settings.replicas, promise=settings.promise
    )
    if shared and (settings.batch_size is None or settings.remainder != "drop"):
        raise UnsupportedError(
            "replicas that share out a stream need full batches: nobody knows how long its last one is",
            hint="pass batch_size and drop_last=True",
        )
    return Plan(_start(settings, STREAM, None), None, guarantees)


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
    return Plan(start, batches, guarantees, sampler_goes_on=goes_on(sampler))


def _sequence_plan(settings: Settings, sequence: Sequence) -> Plan:
    if settings.remainder not in ("drop", "short", "pad"):
        raise UnsupportedError(
            f"remainder={settings.remainder!r} takes samples of another part of an order, and "
            f"{sequence.name} cannot be looked up there",
            hint='use "drop", "short" or "pad"',
        )
    shared = settings.replicas > 1 and settings.remainder == "short"
    if shared and not evenly(sequence, settings.global_batch, settings.replicas):
        raise UnsupportedError(
            f"the last batch of an epoch of {sequence.name} may be one that {settings.replicas} replicas "
            "cannot share evenly",
            hint='drop_last=True leaves it out, remainder="pad" fills it up',
        )
    batches = epoch_batches(sequence, settings.global_batch, drop=settings.remainder == "drop")
    if batches == 0:
        raise UsageError(
            f"an epoch of {sequence.name} does not fill one global batch of {settings.global_batch}",
            hint="lower batch_size or keep the last batch (drop_last=False)",
        )
    start = _start(settings, sequence.name, None)
    return Plan(start, batches, Promise.BITWISE, sequence=sequence)


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
        accumulate=settings.accumulate,
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
