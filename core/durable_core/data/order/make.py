"""L3. An order by its name, and by its description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
    given = read_description(description)
    return make_order(
        given.name, given.size, dataset_id=given.dataset_id, seed=seed, source=given.source,
        blocks=blocks if given.blocks is None else given.blocks,
    )  # fmt: skip


class Description(NamedTuple):
    """What an order or ``buffered_v1`` says of itself; ``blocks`` is None when they were too many to say."""

    name: str
    size: int
    dataset_id: str
    source: str
    blocks: Blocks | None


def read_description(value: Mapping[str, Any]) -> Description:
    try:
        runs = value.get("blocks")
        blocks = None if runs is None else Blocks.from_runs(runs)
        name = str(value["name"])
        dataset_id = "" if name == SEQUENTIAL else str(value["dataset_id"])  # never made up: it is in the key
        return Description(name, int(value["size"]), dataset_id, str(value.get("source", "")), blocks)
    except (AttributeError, KeyError, TypeError, ValueError, UsageError) as error:
        raise FormatError("order", f"not a description: {value!r:.200}: {error}") from error


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
