"""L3. What every order is, and how positions beyond one epoch are looked up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from durable_core.errors import UsageError

Ids = npt.NDArray[np.int64]

MAX_SIZE = 1 << 48  # keeps the bias of the 32-bit range reduction below 2^-8


class Order(Protocol):
    """Which sample stands at a logical position of an epoch. Pure: same arguments, same ids."""

    @property
    def name(self) -> str:
        """The versioned name; two orders with one name, dataset id and seed agree for ever."""

    @property
    def size(self) -> int:
        """Samples in an epoch."""

    @property
    def description(self) -> Mapping[str, Any]:
        """JSON: all but the seed that ``order_from`` needs to make it again."""

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        """Sample ids at positions [start, stop), shape (stop - start,); 0 <= start <= stop <= size."""


def wrapped_ids(order: Order, epoch: int, start: int, stop: int) -> tuple[int, ...]:
    """Ids at positions [start, stop), start < 2 * size, where position ``size`` is position 0 again."""
    size = order.size
    if stop <= size:
        return tuple(order.ids(epoch, start, stop).tolist())
    inside = order.ids(epoch, min(start, size), size).tolist()
    beyond = order.ids(epoch, max(start - size, 0), stop - size).tolist()
    return (*inside, *beyond)


def spanned_ids(order: Order, spans: Iterable[tuple[int, int, int]]) -> tuple[Ids, Ids]:
    """(ids, the epoch of each), int64 [positions], of ``Layout.spans``: (epoch, start, stop) each."""
    spans = list(spans)
    if len(spans) == 1:
        epoch, start, stop = spans[0]
        return order.ids(epoch, start, stop), np.full(stop - start, epoch, dtype=np.int64)
    none = np.empty(0, dtype=np.int64)
    ids = [order.ids(*span) for span in spans]
    epochs = np.repeat(
        np.array([epoch for epoch, _, _ in spans], dtype=np.int64), [len(part) for part in ids] or 0
    )
    return np.concatenate([none, *ids]), epochs


def checked_size(size: int) -> int:
    if not 1 <= size <= MAX_SIZE:
        raise UsageError(f"an order needs 1 to {MAX_SIZE} samples, not {size}")
    return size


def check_range(order: Order, epoch: int, start: int, stop: int) -> None:
    if epoch < 0 or not 0 <= start <= stop <= order.size:
        raise UsageError(f"positions [{start}, {stop}) of epoch {epoch} are outside [0, {order.size})")
