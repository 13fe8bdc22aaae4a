"""Exactly once: against a brute count of every element, and fast where it matters."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.errors import CoverageError
from durable_core.format.coverage import cover
from durable_core.types import SliceKey


def piece(offsets: tuple[int, ...], shape: tuple[int, ...]) -> SliceKey:
    return SliceKey("w", offsets, shape)


def covers(shape: tuple[int, ...], pieces: list[SliceKey]) -> bool:
    try:
        cover(shape, pieces)
    except CoverageError:
        return False
    return True


def brute(shape: tuple[int, ...], pieces: list[SliceKey]) -> bool:
    """Count every element."""
    counts = np.zeros(shape, int)
    for each in pieces:
        if any(o + n > whole for o, n, whole in zip(each.offsets, each.shape, shape, strict=True)):
            return False
        counts[tuple(slice(o, o + n) for o, n in zip(each.offsets, each.shape, strict=True))] += 1
    return bool((counts == 1).all()) and bool(pieces)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[SliceKey]]:
    """A box cut again and again at random places, so that grids are the exception."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
    boxes = [piece((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 8))):
        at = draw(st.integers(0, len(boxes) - 1))
        box = boxes[at]
        wide = [d for d, n in enumerate(box.shape) if n > 1]
        if not wide:
            continue
        d = draw(st.sampled_from(wide))
        cut = draw(st.integers(1, box.shape[d] - 1))
        low, high = list(box.shape), list(box.shape)
        low[d], high[d] = cut, box.shape[d] - cut
        offsets = list(box.offsets)
        offsets[d] += cut
        boxes[at : at + 1] = [piece(box.offsets, tuple(low)), piece(tuple(offsets), tuple(high))]
    return shape, list(draw(st.permutations(boxes)))


@given(tilings())
@settings(max_examples=200, deadline=None)
def test_every_tiling_covers_and_no_part_of_one_does(tiling: tuple[tuple[int, ...], list[SliceKey]]) -> None:
    shape, boxes = tiling
    assert covers(shape, boxes)
    for i in range(len(boxes)):
        assert not covers(shape, boxes[:i] + boxes[i + 1 :])
        assert not covers(shape, [*boxes, boxes[i]])


@st.composite
def any_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[SliceKey]]:
    shape = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    offsets = st.tuples(*(st.integers(0, n) for n in shape))
    lengths = st.tuples(*(st.integers(0, n) for n in shape))
    return shape, draw(st.lists(st.builds(piece, offsets, lengths), max_size=5))


@given(any_boxes())
@settings(max_examples=500, deadline=None)
def test_agrees_with_counting(case: tuple[tuple[int, ...], list[SliceKey]]) -> None:
    shape, boxes = case
    assert covers(shape, boxes) == brute(shape, boxes)


def test_all_sets_of_three_intervals() -> None:
    intervals = [piece((o,), (n,)) for o in range(4) for n in range(1, 4)]
    for boxes in itertools.product(intervals, repeat=3):
        assert covers((3,), list(boxes)) == brute((3,), list(boxes))


def test_an_overlap_that_makes_up_for_a_gap_is_found() -> None:
    with pytest.raises(CoverageError, match="overlap"):
        cover((4,), [piece((0,), (2,)), piece((1,), (2,))])
    with pytest.raises(CoverageError, match="overlap"):
        cover((2, 2), [piece((0, 0), (2, 1)), piece((0, 0), (1, 2))])


@pytest.mark.parametrize(
    ("shape", "pieces"),
    [
        ((), [piece((), ())]),
        ((0,), [piece((0,), (0,))]),
        ((4, 0), [piece((0, 0), (2, 0)), piece((2, 0), (2, 0))]),
        ((2,), [piece((0,), (2,)), piece((1,), (0,))]),
        ((10**9, 10**9), [piece((0, 0), (10**9, 10**9 - 1)), piece((0, 10**9 - 1), (10**9, 1))]),
    ],
)
def test_covered(shape: tuple[int, ...], pieces: list[SliceKey]) -> None:
    cover(shape, pieces)


@pytest.mark.parametrize(
    ("shape", "pieces"),
    [
        ((), []),
        ((), [piece((), ())] * 2),
        ((0,), []),
        ((2,), []),
        ((2,), [piece((0,), (1,))]),
        ((2,), [piece((0,), (3,))]),
        ((2,), [piece((1,), (2,)), piece((0,), (1,))]),
        ((2,), [piece((-1,), (3,))]),
        ((2,), [piece((3,), (-1,)), piece((0,), (2,)), piece((0,), (1,))]),
        ((2,), [piece((0, 0), (1, 2))]),
        ((2,), [piece((), ())]),
        ((2,), [piece((5,), (0,)), piece((0,), (2,))]),
    ],
)
def test_not_covered(shape: tuple[int, ...], pieces: list[SliceKey]) -> None:
    with pytest.raises(CoverageError):
        cover(shape, pieces)


def test_the_error_names_document_and_tensor() -> None:
    with pytest.raises(CoverageError, match=r"manifest\.json: tensor 'w': 1 slices cover 1 of 2") as caught:
        cover((2,), [piece((0,), (1,))], key="the/manifest.json")
    assert caught.value.key == "the/manifest.json"


def steps_of(shape: tuple[int, ...], pieces: list[SliceKey]) -> int:
    """Python lines run by ``cover``: work that no busy machine can distort."""
    count = 0

    def trace(frame: object, event: str, arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        cover(shape, pieces)
    finally:
        sys.settrace(before)
    return count


def split(n: int) -> tuple[tuple[int, ...], list[SliceKey]]:
    return (n * 4, 16), [piece((i * 4, 0), (4, 16)) for i in range(n)]


def columns(n: int) -> tuple[tuple[int, ...], list[SliceKey]]:
    return (16, n * 4), [piece((0, i * 4), (16, 4)) for i in range(n)]


def grid(n: int) -> tuple[tuple[int, ...], list[SliceKey]]:
    side = math.isqrt(n)
    return (side, side), [piece((i, j), (1, 1)) for i in range(side) for j in range(side)]


@pytest.mark.parametrize("make", [split, columns, grid])
def test_work_grows_with_the_number_of_slices_not_its_square(make: object) -> None:
    small, large = (steps_of(*make(n)) for n in (100, 1600))  # type: ignore[operator]
    assert large < small * 16 * 4
