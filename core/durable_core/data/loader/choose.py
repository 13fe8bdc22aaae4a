"""L3. From what a user chose (an order, a mixture, packing) to the order or sequence that says so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from durable_core.data.cursor import length
from durable_core.data.mixture.nested import check_none_inside, is_mixture
from durable_core.data.numbers import LENGTHS_WANTED
from durable_core.data.order import (
    BLOCK_PERMUTATION,
    FULL_PERMUTATION,
    SEQUENTIAL,
    Order,
    buffered,
    make_order,
)
from durable_core.data.order.make import needed_blocks
from durable_core.data.packing import PackedSequence, Packing
from durable_core.data.sequence import OrderedSequence, Sequence
from durable_core.data.shuffle import BlockShuffle, BufferedShuffle
from durable_core.errors import UnsupportedError, UsageError

OrderChoice = str | BlockShuffle | BufferedShuffle
_NAMED = (FULL_PERMUTATION, SEQUENTIAL)


def evenly(sequence: Sequence, global_batch: int, replicas: int) -> bool:
    """Whether every batch, the last of an epoch too, is known to be one that replicas can share evenly."""
    samples = sequence.batches(1)
    if samples is None:
        return endless(sequence)
    return samples % global_batch % replicas == 0


def endless(sequence: Sequence) -> bool:
    """Whether an epoch of it is known to have no end."""
    return _endless(sequence.description)


def _endless(description: Mapping[str, Any]) -> bool:
    """Whether it is a mixture that begins its sources again for ever, or packs of one."""
    if "inner" in description:
        return _endless(description["inner"])
    return description.get("exhaustion") == "repeat" and description.get("epoch_size", 0) is None


def make_sequence(
    dataset: Any, choice: OrderChoice, packing: Packing | None, *, dataset_id: str, seed: int
) -> Sequence | None:
    """The sequence of a mixture, a bounded shuffle or packs; None where an order says it all."""
    if is_mixture(dataset):
        if choice not in _NAMED and not isinstance(choice, BlockShuffle):
            raise UnsupportedError(
                f"each source of a mixture has an order of its own, and that cannot be {choice!r} yet",
                hint=f"use one of {', '.join(map(repr, _NAMED))}, or a BlockShuffle",
            )
        packs = None if packing is None else partial(_packed, packing)
        mixed: Sequence = dataset.sequence(seed=seed, packing=packs, order=choice)
        return mixed
    check_none_inside(type(dataset).__name__, dataset)
    if isinstance(choice, BufferedShuffle):
        blocks = needed_blocks(buffered.BUFFERED, _size(dataset), _blocks(dataset, choice))
        sequence: Sequence = buffered.BufferedSequence(
            blocks, buffer=choice.size, dataset_id=dataset_id, seed=seed
        )
    elif packing is None:
        return None
    else:
        sequence = OrderedSequence(make_map_order(dataset, choice, dataset_id=dataset_id, seed=seed))
    if packing is None:
        return sequence
    return _packed(packing, sequence, _lengths(dataset))


def _packed(packing: Packing, sequence: Sequence, lengths: Any) -> Sequence:
    return PackedSequence(sequence, packing, lengths)


def make_map_order(dataset: Any, choice: OrderChoice, *, dataset_id: str, seed: int) -> Order:
    """The order of a map-style dataset. Raises ``UnsupportedError`` for one that lacks what it needs."""
    size = _size(dataset)
    if isinstance(choice, BlockShuffle):
        blocks = _blocks(dataset, choice)
        return make_order(
            BLOCK_PERMUTATION, size, dataset_id=dataset_id, seed=seed, blocks=blocks, window=choice.window
        )
    if choice not in _NAMED:
        raise UsageError(
            f"order {choice!r} is not one of {', '.join(map(repr, _NAMED))}",
            hint="or a BlockShuffle(window) or BufferedShuffle(size)",
        )
    return make_order(str(choice), size, dataset_id=dataset_id, seed=seed)


def _size(dataset: Any) -> int:
    size = length(dataset)
    if size is None:
        raise UnsupportedError(
            f"{type(dataset).__name__} has no length, so it has no order",
            hint="give it __len__, or make it an IterableDataset with state_dict",
        )
    return size


def _blocks(dataset: Any, choice: object) -> Any:
    blocks = getattr(dataset, "blocks", None)
    if blocks is None:
        raise UnsupportedError(
            f"{type(choice).__name__} permutes objects, and {type(dataset).__name__} does not say how many "
            "records each holds",
            hint="give it an attribute `blocks`: records per object, in order",
        )
    return blocks


def _lengths(dataset: Any) -> Any:
    lengths = getattr(dataset, "lengths", None)
    if lengths is None:
        raise UnsupportedError(
            f"packing is planned from the number of tokens in each record, and {type(dataset).__name__} has "
            "no `lengths`",
            hint=LENGTHS_WANTED,
        )
    if length(lengths) != _size(dataset):
        raise UsageError(f"there are {length(lengths)} lengths, and the dataset has {_size(dataset)} records")
    return lengths
