"""L3. An order by its name, and by its description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_core.data.order.base import Order
from durable_core.data.order.blocks import BLOCK_PERMUTATION, DEFAULT_WINDOW, BlockPermutation, Blocks, Sizes
from durable_core.data.order.permutation import FULL_PERMUTATION, SEQUENTIAL, FullPermutation, Sequential
from durable_core.errors import FormatError, SpecMismatchError, UnsupportedError, UsageError


def make_order(
    name: str,
    size: int,
    *,
    dataset_id: str,
    seed: int,
    source: str = "",
    blocks: Sizes | Blocks | None = None,
    window: int | None = None,
) -> Order:
    """The order called ``name``, over ``size`` records.

    ``blocks`` (records per object) and ``window`` are those of ``block_prp_v1``. Its own name carries
    the window and a digest of the blocks, so a name that was recorded needs only ``blocks``.

    Raises ``UnsupportedError`` for a name this version does not know, or blocks that are not given;
    ``SpecMismatchError`` when they are not those of the name; ``UsageError`` when they hold other than
    ``size`` records.
    """
    if name == FULL_PERMUTATION:
        return FullPermutation(size, dataset_id=dataset_id, seed=seed, source=source)
    if name == SEQUENTIAL:
        return Sequential(size)
    kind, _, recorded = name.partition(":")
    if kind != BLOCK_PERMUTATION:
        known = f"{FULL_PERMUTATION!r}, {BLOCK_PERMUTATION!r} and {SEQUENTIAL!r}"
        raise UnsupportedError(
            f"unknown order {name!r}; known are {known}",
            hint="install the version of this library that wrote it",
        )
    whole = needed_blocks(name, size, blocks)
    if window is None:
        window = recorded_number(name) if recorded else DEFAULT_WINDOW
    order = BlockPermutation(whole, window=window, dataset_id=dataset_id, seed=seed, source=source)
    check_name(order.name, name)
    return order


def order_from(description: Mapping[str, Any], *, seed: int, blocks: Sizes | Blocks | None = None) -> Order:
    """The order that ``description`` (an ``Order.description``) was taken from.

    ``blocks`` is needed for a description too long to hold them (``description["blocks"]`` is None).
    Raises ``FormatError`` for what is not a description; else as ``make_order``.
    """
    try:
        name, size = description["name"], description["size"]
        context = {field: description.get(field, "") for field in ("dataset_id", "source")}
        runs = description.get("blocks")
        if runs is not None:
            blocks = Blocks.from_runs(runs)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError("order", f"{description!r:.200}: {error}") from error
    return make_order(name, size, **context, seed=seed, blocks=blocks)


def needed_blocks(name: str, size: int, blocks: Sizes | Blocks | None) -> Blocks:
    """The blocks of an order over objects, checked to hold ``size`` records."""
    if blocks is None:
        raise UnsupportedError(
            f"the order {name!r} needs the number of records in each object",
            hint="pass blocks=, or use a dataset that has them (an attribute `blocks`)",
        )
    whole = blocks if isinstance(blocks, Blocks) else Blocks(blocks)
    if whole.size != size:
        raise UsageError(f"the objects hold {whole.size} records, and the dataset has {size}")
    return whole


def recorded_number(name: str) -> int:
    """The window or buffer in ``kind:number:digest``."""
    parts = name.split(":")
    if len(parts) != 3 or not parts[1].isdecimal():
        raise FormatError("order", f"{name!r} is not a name, a number and a digest")
    return int(parts[1])


def check_name(made: str, wanted: str) -> None:
    """``wanted`` is ``made``, or only its kind."""
    if wanted not in (made, made.partition(":")[0]):
        raise SpecMismatchError(
            f"the order was {wanted!r} and is now {made!r}: another window, or other objects",
            fields=("order",),
            hint="restore the settings and the dataset the run was started with",
        )
