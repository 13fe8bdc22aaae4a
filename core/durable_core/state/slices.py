"""L3. Cutting a tensor into slices that are contiguous runs of its row-major bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from durable_core.types import SliceKey

SLICE_BYTES = 64 << 20
#: Smaller slices than this are not worth a line in a manifest.
LEAST_BYTES = 2 << 20
#: Slices of one tensor between the two limits: what has to be done for a slice at once, such as a second copy
#: of it, is then a small part of what any state with that tensor in it takes.
SLICES = 32


def slice_bytes(nbytes: int) -> int:
    """Bytes of a slice of a tensor of ``nbytes`` bytes, at most. All who hold it cut it alike, whatever
    they hold beside it."""
    return min(SLICE_BYTES, max(LEAST_BYTES, -(-nbytes // SLICES)))


def split(key: str, shape: tuple[int, ...], itemsize: int, limit: int = SLICE_BYTES) -> Iterator[SliceKey]:
    """Slices of at most ``limit`` bytes, in row-major order, covering ``shape`` exactly once.

    Cut along dimension 0; where one row alone exceeds the limit, each row is cut along the next
    dimension, and so on. Every slice is therefore one contiguous run of the tensor's bytes. A tensor
    without elements is one empty slice, so that its existence is recorded too.
    """
    total = math.prod(shape) * itemsize
    if total <= limit or not shape:
        yield SliceKey(key, (0,) * len(shape), shape)
        return
    row_shape = shape[1:]
    row_bytes = total // shape[0]
    if row_bytes > limit:
        for row in range(shape[0]):
            for inner in split(key, row_shape, itemsize, limit):
                yield SliceKey(key, (row, *inner.offsets), (1, *inner.shape))
        return
    rows = max(1, limit // row_bytes)
    tail = (0,) * len(row_shape)
    for begin in range(0, shape[0], rows):
        yield SliceKey(key, (begin, *tail), (min(rows, shape[0] - begin), *row_shape))


def flat_begin(piece: SliceKey, global_shape: tuple[int, ...]) -> int:
    """Index of the slice's first element in the row-major order of the whole tensor."""
    begin = 0
    for offset, length in zip(piece.offsets, global_shape, strict=True):
        begin = begin * length + offset
    return begin
