"""L3. What a loader was asked for, checked once: no other value of these reaches what reads, or a state."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from durable_core.data.cursor import REMAINDERS, Remainder
from durable_core.data.loader.choose import OrderChoice
from durable_core.data.loader.reading.fetch import has_getitems
from durable_core.data.loader.reading.seeding import SampleRngChoice
from durable_core.data.loader.sources.planned import Share
from durable_core.data.numbers import whole
from durable_core.data.order import SEQUENTIAL
from durable_core.data.packing import Packing
from durable_core.errors import UnsupportedError, UsageError
from durable_core.types import Promise


@dataclass(frozen=True)
class Settings:
    """What the caller of ``DurableLoader`` asked for; the meaning of each is explained there.

    Raises ``UsageError``, naming argument and value, for what is of another type or out of range.
    """

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
    sample_rng: SampleRngChoice
    num_workers: int
    collate_fn: Callable[[Any], Any]
    order: OrderChoice | None = None
    packing: Packing | None = None
    stream_shares: bool = False
    accumulate: int = 1
    max_skipped: int | None = None
    torch_arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, whole(name, value, least))
        object.__setattr__(self, "promise", promised(self.promise))
        if not 0 <= self.replica < self.replicas:
            raise UsageError(f"replica {self.replica} is not in [0, {self.replicas})")
        if self.remainder not in REMAINDERS:
            raise UsageError(f"remainder {self.remainder!r} is not one of {', '.join(REMAINDERS)}")
        if not (isinstance(self.sample_rng, bool) or self.sample_rng == "always"):
            raise UsageError(f'sample_rng must be True, False or "always", not {self.sample_rng!r:.80}')
        _check_type("transform_version", self.transform_version, str)
        _check_type("packing", self.packing, Packing, optional=True)
        _check_callable("collate_fn", self.collate_fn)
        _check_dataset(self.dataset)
        _check_torch(self.num_workers, self.torch_arguments)

    @property
    def streaming(self) -> bool:
        """Whether the dataset is iterable rather than map-style."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def counted_workers(self) -> int | None:
        """Workers, where the position depends on their number; none is as good as one."""
        return max(self.num_workers, 1) if self.streaming else None

    @property
    def draws_by_share(self) -> bool:
        """Whether what is drawn for a sample depends on which others are in its replica's share."""
        return self.sample_rng is not False and not self.streaming and has_getitems(self.dataset)

    @property
    def global_batch(self) -> int:
        """Samples in one batch over all replicas; 0 when a batch sampler decides."""
        return (self.batch_size or int(self.streaming)) * self.replicas

    @property
    def share(self) -> Share:
        """Which part of each global batch this replica takes."""
        return Share(self.global_batch, self.remainder, self.replica, self.replicas)


_WHOLE: Mapping[str, int | None] = {
    "batch_size": 1, "seed": None, "replica": 0, "replicas": 1, "num_workers": 0, "accumulate": 1,
    "max_skipped": 0,
}  # fmt: skip
"""Arguments that are whole numbers, and the least of each."""
_OPTIONAL = frozenset({"batch_size", "seed", "max_skipped"})


def promised(value: Promise | str) -> Promise:
    """Raises ``UsageError`` for what is no promise."""
    try:
        return Promise(value)
    except ValueError as error:
        known = ", ".join(promise.value for promise in Promise)
        raise UsageError(f"promise {value!r:.80} is not one of {known}") from error


def check_agree(
    dataset: Any, shuffle: bool | None, order: OrderChoice | None, remainder: Remainder | None, *,
    drop_last: bool, in_order: bool,
) -> None:  # fmt: skip
    """Raise ``UsageError`` where two arguments that were given say different things, ``UnsupportedError``
    for ``in_order=False``."""
    if not in_order:
        raise UnsupportedError("in_order=False keeps no order", hint="leave in_order=True")
    if remainder is not None and drop_last and remainder != "drop":
        raise UsageError(
            f"drop_last=True drops the remainder, and remainder={remainder!r} does not",
            hint="give one of them",
        )
    if shuffle is False and order not in (None, SEQUENTIAL):
        raise UsageError(f"shuffle=False, and order={order!r:.80} shuffles", hint="give one of them")
    if shuffle and order == SEQUENTIAL:
        raise UsageError(f"shuffle=True, and order={order!r} does not shuffle", hint="give one of them")
    if shuffle and isinstance(dataset, IterableDataset):
        raise UsageError(
            "shuffle=True of an iterable dataset, which gives its items in an order of its own",
            hint="leave shuffle out; WindowShuffle(dataset, window) shuffles a stream",
        )


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, DataLoader) or hasattr(dataset, "acknowledge"):
        raise UsageError(
            f"a {type(dataset).__name__} is a loader, and not the dataset of one",
            hint="DurableLoader.from_dataloader(loader) makes a DataLoader durable; a DurableLoader is so",
        )
    if isinstance(dataset, IterableDataset):
        return
    if not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"{type(dataset).__name__} is neither map-style nor an IterableDataset",
            hint="a map-style dataset has __len__ and __getitem__",
        )
    if isinstance(dataset, Mapping) and any(index not in dataset for index in range(len(dataset))):
        raise UsageError(
            "the dataset is a mapping whose keys are not 0, 1, ... up to its length",
            hint="pass list(data.values()) or list(data.items())",
        )


def _check_torch(workers: int, given: Mapping[str, Any]) -> None:
    """What torch's own loader would refuse at the first batch, and with errors of its own."""
    for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
        if given.get(name) and not workers:
            raise UsageError(f"{name} without workers", hint=f"pass num_workers, or leave {name} out")
    if given.get("prefetch_factor") is not None:
        whole("prefetch_factor", given["prefetch_factor"], 1)
    timeout = given.get("timeout", 0)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise UsageError(f"timeout must be a number of seconds from 0, not {timeout!r:.80}")
    if given.get("worker_init_fn") is not None:
        _check_callable("worker_init_fn", given["worker_init_fn"])
    context, known = given.get("multiprocessing_context"), multiprocessing.get_all_start_methods()
    if not (context is None or isinstance(context, BaseContext) or context in known):
        raise UsageError(f"multiprocessing_context must be one of {', '.join(known)}, not {context!r:.80}")


def _check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise UsageError(f"{name} must be a function, not {value!r:.80}")


def _check_type(name: str, value: Any, kind: type, *, optional: bool = False) -> None:
    if not (isinstance(value, kind) or (optional and value is None)):
        raise UsageError(f"{name} must be of type {kind.__name__}, not {value!r:.80}")
