"""Which of the prepared loaders trains, and what a ``DurableLoader`` in its place is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, RandomSampler

from accelerate_durable import hooks
from accelerate_durable.loader import PreparedDispatcher, PreparedDurable, PreparedLoader
from durable_core.data import DurableLoader
from durable_core.data.cursor import Remainder
from durable_core.data.order import SEQUENTIAL
from durable_core.errors import UnsupportedError, UsageError
from durable_core.session.world import World
from durable_core.types import Promise

if TYPE_CHECKING:
    import accelerate


def choose(loaders: Sequence[PreparedLoader], given: int | None) -> PreparedLoader | None:
    """The one that trains, of those that were prepared."""
    place = place_of(tuple(map(shuffles, loaders)), given)
    return None if place is None else loaders[place]


def place_of(shuffling: Sequence[bool], given: int | None) -> int | None:
    """Which of the loaders trains, by its place; ``None`` where there is none. ``shuffling``: of each.

    ``given`` is the option; else it is the only one, else the one that shuffles, else the first. Raises
    ``UnsupportedError`` where two shuffle, ``UsageError`` for a place that does not exist.
    """
    count = len(shuffling)
    if given is not None:
        if given >= count:
            raise UsageError(
                f"train_loader={given}, and {count} loaders were prepared", hint="counted from 0"
            )
        return given
    places = [place for place, does in enumerate(shuffling) if does]
    if len(places) > 1:
        raise UnsupportedError(
            f"{len(places)} of {count} prepared loaders shuffle, and a run has one data position: which of "
            f"them trains? (In the order of prepare, counted from 0: {', '.join(map(str, places))}.)",
            hint=f"train_loader={places[0]}, as an option or as ACCELERATE_DURABLE_TRAIN_LOADER",
        )
    return (places[0] if places else 0) if count else None


def shuffles(loader: PreparedLoader) -> bool:
    """Whether a script that evaluates with it would be unusual."""
    if isinstance(loader, PreparedDurable):
        return loader.loader.cursor.order != SEQUENTIAL
    sampler: Any = hooks.asked(loader).batch_sampler
    return isinstance(getattr(sampler, "sampler", sampler), RandomSampler)


def durable_loader(
    loader: PreparedLoader, accelerator: accelerate.Accelerator, world: World, seed: int, promise: Promise
) -> DurableLoader:
    """What ``loader`` trains with. Its batches are shared out as Accelerate's own would be: with
    ``split_batches`` each of the script's, else each process has one of that size.

    Raises ``UnsupportedError`` for what cannot be made exact.
    """
    place: dict[str, Any] = {
        "replica": world.roles.index(world.role),
        "replicas": len(world.roles),
        "promise": promise,
        "accumulate": accelerator.gradient_accumulation_steps,
    }
    if isinstance(loader, PreparedDurable):
        return DurableLoader.from_dataloader(loader.loader, **place)
    plain = hooks.asked(loader)
    replicas, sampler = len(world.roles), plain.batch_sampler
    dataset: Any = plain.dataset
    size = plain.batch_size or getattr(sampler, "batch_size", None)
    if accelerator.split_batches and size is not None:
        place["batch_size"] = size // replicas
    if isinstance(dataset, IterableDataset):
        place["stream_shares"] = replicas > 1
    elif size is not None:
        everyone = place.get("batch_size", size) * replicas
        if isinstance(loader, PreparedDispatcher):  # it divides whatever is left, if it can
            even = len(dataset) % everyone % replicas != 0
        else:
            even = hooks.even_batches(loader, accelerator.even_batches)
        dropped = bool(getattr(sampler, "drop_last", False))
        place["remainder"] = remainder(dropped=dropped, even=even, replicas=replicas)
    return DurableLoader.from_dataloader(plain, seed=seed, **place)


def remainder(*, dropped: bool, even: bool, replicas: int) -> Remainder:
    """As Accelerate shares out the samples that fill no whole batch of all processes. ``even``: with samples
    seen twice, all have as many."""
    if dropped:
        return "drop"
    return "wrap" if even and replicas > 1 else "short"


def check_even(was: bool, now: bool) -> None:
    """``UnsupportedError`` where ``join_uneven_inputs`` changes for a pass what the run began with."""
    if was != now:
        raise UnsupportedError(
            f"even_batches was {was} when the run was opened, and is {now} for this pass: an epoch would be "
            "cut otherwise than the run's",
            hint=f"DataLoaderConfiguration(even_batches={now}), for all of them",
        )
