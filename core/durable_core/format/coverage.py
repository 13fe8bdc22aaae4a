"""L2. Does a set of boxes cover a tensor exactly once? Exact, pure, any number of dimensions.

Boxes inside the tensor that do not overlap and whose volumes add up to the tensor's cover it exactly
once. Overlap is found by a sweep along one dimension, which for the usual split along one
dimension looks at each box once after sorting.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import NoReturn

from durable_core.errors import CoverageError
from durable_core.types import SliceKey

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets, lengths


def cover(
    global_shape: Sequence[int], slices: Iterable[SliceKey], *, key: str = "", tensor: str = ""
) -> None:
    """Return when ``slices`` cover a tensor of ``global_shape`` (elements) exactly once.

    Raises ``CoverageError`` for a slice outside, an overlap or a gap, naming the object ``key`` and the
    ``tensor`` (by default that of the slices). A tensor without elements needs at least one slice, so
    that its existence is stated; elsewhere slices without elements count for nothing.
    """
    pieces = list(slices)
    tensor = tensor or (pieces[0].key if pieces else "")

    def fail(reason: str) -> NoReturn:
        raise CoverageError(key or tensor, f"tensor {tensor!r}: {reason}")

    if len(pieces) == 1 and pieces[0].shape == tuple(global_shape) and not any(pieces[0].offsets):
        return  # whole, as most are
    for piece in pieces:
        if not _is_inside(global_shape, piece):
            fail(f"{_words((piece.offsets, piece.shape))} is not inside shape {tuple(global_shape)}")
    boxes = [(piece.offsets, piece.shape) for piece in pieces if math.prod(piece.shape)]
    overlap = find_overlap(boxes)
    if overlap is not None:
        fail(f"{_words(overlap[0])} and {_words(overlap[1])} overlap")
    wanted, got = math.prod(global_shape), sum(math.prod(lengths) for _, lengths in boxes)
    if got != wanted or not pieces:
        fail(f"{len(pieces)} slices cover {got} of {wanted} elements")


def find_overlap(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Two boxes (none of them empty) that share an element, or ``None``.

    Sweep along the dimension in which most boxes begin at places of their own; boxes open at the
    same time are kept sorted by the next such dimension. O(n log n) for splits along one
    dimension and for grids of moderate width; O(n * open boxes) at worst.
    """
    if len(boxes) < 2:
        return None
    if not boxes[0][0]:
        return boxes[0], boxes[1]  # two boxes in a tensor without dimensions are the same element
    dims = range(len(boxes[0][0]))
    first, *rest = sorted(dims, key=lambda d: -len({offsets[d] for offsets, _ in boxes}))
    second = rest[0] if rest else first
    ordered = sorted(boxes, key=lambda box: box[0][first])
    opened: list[tuple[int, int, Box]] = []  # (begin, end) in `second`, sorted by begin
    longest = max(lengths[second] for _, lengths in boxes)
    line = -1  # position of the sweep; boxes that ended before it are dropped when it moves
    for box in ordered:
        begin = box[0][first]
        if begin != line:
            line = begin
            opened = [entry for entry in opened if _end(entry[2], first) > line]
        low, high = box[0][second], _end(box, second)
        at = bisect.bisect_left(opened, low - longest + 1, key=lambda entry: entry[0])
        for other_low, other_high, other in opened[at:]:
            if other_low >= high:
                break
            if other_high > low and _overlap(box, other):
                return other, box
        bisect.insort(opened, (low, high, box), key=lambda entry: entry[0])
    return None


def _overlap(one: Box, two: Box) -> bool:
    return all(
        a < b + length_b and b < a + length_a
        for a, length_a, b, length_b in zip(one[0], one[1], two[0], two[1], strict=True)
    )


def _end(box: Box, dim: int) -> int:
    return box[0][dim] + box[1][dim]


def _is_inside(global_shape: Sequence[int], piece: SliceKey) -> bool:
    if not len(piece.offsets) == len(piece.shape) == len(global_shape):
        return False
    return all(
        offset >= 0 and length >= 0 and offset + length <= whole
        for offset, length, whole in zip(piece.offsets, piece.shape, global_shape, strict=True)
    )


def _words(box: Box) -> str:
    parts = (f"{offset}:{offset + length}" for offset, length in zip(*box, strict=False))
    return "slice [" + ", ".join(parts) + "]"
