"""block_prp_v1: every record once, readable anywhere, local to 2S objects, the same for ever."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import order_oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.data.order import (
    BLOCK_PERMUTATION,
    SMALL,
    BlockPermutation,
    FullPermutation,
    Sequential,
    make_order,
    order_from,
    spanned_ids,
)
from durable_core.data.order.blocks import MAX_RUNS, Blocks
from durable_core.errors import FormatError, SpecMismatchError, UnsupportedError, UsageError

BLOCKS = [7, 0, 12, 1, 30, 5, 0, 22]
SIZE = sum(BLOCKS)


def made(blocks: Any = BLOCKS, window: int = 2, seed: int = 3, dataset_id: str = "d") -> BlockPermutation:
    return BlockPermutation(blocks, window=window, dataset_id=dataset_id, seed=seed)


GOLDEN = {
    # (blocks, window, epoch, start): the next eight ids for dataset "golden", seed 7
    ((7, 0, 12, 1, 30, 5, 0, 22), 2, 0, 0): [67, 56, 58, 69, 72, 62, 75, 65],
    ((7, 0, 12, 1, 30, 5, 0, 22), 2, 1, 40): [58, 60, 4, 62, 61, 0, 59, 57],
    ((7, 0, 12, 1, 30, 5, 0, 22), 99, 0, 0): [39, 36, 69, 57, 6, 13, 56, 48],
    ((1000,) * 1000, 8, 2, 499_996): [626120, 672044, 556976, 626375, 672232, 626155, 900758, 556309],
    ((10**7,) * 90, 4, 3, 10**8): [
        639965584,
        495924176,
        119075940,
        492546011,
        638367582,
        633823829,
        278683922,
        111388157,
    ],
}


@pytest.mark.parametrize(("where", "ids"), GOLDEN.items())
def test_golden_vectors_never_change(where: tuple[tuple[int, ...], int, int, int], ids: list[int]) -> None:
    blocks, window, epoch, start = where
    order = made(blocks, window, 7, "golden")
    assert order.ids(epoch, start, start + 8).tolist() == ids


@given(
    blocks=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    window=st.integers(1, 14),
    epoch=st.integers(0, 99),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=150, deadline=None)
def test_the_scalar_twin_agrees(blocks: list[int], window: int, epoch: int, seed: int) -> None:
    context: dict[str, Any] = {"window": window, "dataset_id": "d", "seed": seed, "source": "s"}
    order = BlockPermutation(blocks, **context)
    slow = [order_oracles.block(blocks, epoch, p, **context) for p in range(sum(blocks))]
    assert order.ids(epoch, 0, order.size).tolist() == slow


def test_the_scalar_twin_agrees_on_a_window_beyond_a_table() -> None:
    blocks, context = [40_000, 3, 60_000, 50_000], {"window": 2, "dataset_id": "d", "seed": 5}
    order = BlockPermutation(blocks, **context)
    for position in (0, 1, 70_000, 149_990):
        assert order.ids(1, position, position + 1)[0] == order_oracles.block(blocks, 1, position, **context)


@pytest.mark.parametrize(
    ("blocks", "window"),
    [
        (BLOCKS, 1),
        (BLOCKS, 2),
        (BLOCKS, 6),
        (BLOCKS, 100),
        ([3] * 300, 200),
        ([1], 1),
        ([1] * 500, 7),
        ([100] * 33, 8),
        ([SMALL - 1, 2, SMALL, SMALL + 1, 99_991], 2),
        ([3, 0, 0, 200_000, 0, 1], 2),
    ],
)
def test_every_record_once_and_any_interval_is_a_slice(blocks: list[int], window: int) -> None:
    order = made(blocks, window)
    for epoch in (0, 1):
        whole = order.ids(epoch, 0, order.size)
        assert np.array_equal(np.sort(whole), np.arange(sum(blocks)))
        for start, stop in ((0, 0), (0, 1), (order.size // 3, order.size), (order.size, order.size)):
            assert np.array_equal(made(blocks, window).ids(epoch, start, stop), whole[start:stop])


def test_epochs_seeds_and_datasets_never_alias() -> None:
    taken = {
        tuple(made(seed=seed, dataset_id=dataset).ids(epoch, 0, SIZE).tolist())
        for seed, epoch, dataset in ((0, 1, "d"), (1, 0, "d"), (1, 1, "d"), (0, 11, "d"), (0, 1, "e"))
    }
    assert len(taken) == 5


def test_empty_objects_take_no_place() -> None:
    with_empty = made([0, 5, 0, 0, 6, 7, 0], 2)
    assert with_empty.name == made([5, 6, 7], 2).name
    assert np.array_equal(with_empty.ids(0, 0, 18), made([5, 6, 7], 2).ids(0, 0, 18))


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("window", [1, 4, 8])
def test_mixing_distance_and_locality_are_what_is_documented(unequal: bool, window: int) -> None:
    rng = np.random.default_rng(1)
    blocks = rng.integers(50, 150, 203) if unequal else np.full(203, 100)
    order = made(blocks, window)
    ids = order.ids(0, 0, order.size)
    objects = np.repeat(np.arange(203), blocks)[ids]

    first, last = np.full(203, order.size), np.zeros(203, dtype=np.int64)
    np.minimum.at(first, objects, np.arange(order.size))
    np.maximum.at(last, objects, np.arange(order.size))
    assert (last - first).max() < np.sort(blocks)[-window:].sum()  # an object stays within one window

    run = int(np.sort(blocks)[: window - 1].sum()) or int(blocks.min())  # no longer than any window
    touched = [len(np.unique(objects[p : p + run])) for p in range(0, order.size - run, 97)]
    assert max(touched) <= 2 * window
    if window > 1:
        assert max(touched) > window  # a run over a border needs both windows: the bound is no slack
    middles = (first + last) / 2
    assert abs(np.corrcoef(middles, np.arange(203))[0, 1]) < 4 / 203**0.5  # objects go anywhere


def test_windows_are_even() -> None:
    """Nine objects by windows of eight: not eight and then one alone, unmixed."""
    order = made([100] * 9, 8)
    plan = order._plan(0)
    assert np.diff(plan.firsts).tolist() == [4, 5]
    assert np.diff(made([10] * 100, 7)._plan(0).firsts).max() == 7


def test_one_window_over_all_objects_is_a_full_permutation() -> None:
    """With S >= O a record moves anywhere: its place says nothing of its object."""
    ids = made([1000] * 60, 60).ids(0, 0, 60_000)
    assert abs(np.corrcoef(ids, np.arange(60_000))[0, 1]) < 4 / 60_000**0.5
    narrow = made([1000] * 60, 2).ids(0, 0, 60_000) // 1000
    assert np.corrcoef(narrow[:-1], narrow[1:])[0, 1] > 0.3  # and a narrow window does say something


def test_a_hundred_thousand_objects_of_ten_million_records() -> None:
    tracemalloc.start()
    order = made(np.full(100_000, 10_000_000), 8)
    ids = order.ids(3, 5 * 10**11, 5 * 10**11 + 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(ids)) == 1000 and len(np.unique(ids // 10_000_000)) <= 16
    assert peak < 16 << 20


def test_its_name_and_its_description_make_it_again() -> None:
    order = made(seed=9)
    said = json.loads(json.dumps(order.description))
    named = make_order(order.name, SIZE, dataset_id="d", seed=9, blocks=BLOCKS)
    for again in (order_from(said, seed=9), named):
        assert (again.name, again.description) == (order.name, order.description)
        assert np.array_equal(again.ids(4, 0, SIZE), order.ids(4, 0, SIZE))
    assert len(order.name) < 64 and order.name.startswith(f"{BLOCK_PERMUTATION}:2:")
    assert len(json.dumps(made([50] * 10**5).description)) < 200


@pytest.mark.parametrize(
    "order", [Sequential(9), FullPermutation(9, dataset_id="d", seed=1, source="s"), made([4, 5], seed=1)]
)
def test_every_order_comes_back_from_its_description(order: Any) -> None:
    again = order_from(json.loads(json.dumps(order.description)), seed=1)
    assert type(again) is type(order)
    assert np.array_equal(again.ids(2, 0, 9), order.ids(2, 0, 9))


def test_other_windows_and_other_objects_are_refused() -> None:
    name = made().name
    for blocks, window in ((BLOCKS, 3), ([SIZE], None), ([*BLOCKS[1:], BLOCKS[0]], 2)):
        with pytest.raises(SpecMismatchError, match="another window, or other objects"):
            make_order(name, SIZE, dataset_id="d", seed=3, blocks=blocks, window=window)
    with pytest.raises(UsageError, match=r"hold 77 records, and the dataset has 78"):
        make_order(BLOCK_PERMUTATION, 78, dataset_id="d", seed=3, blocks=BLOCKS)
    with pytest.raises(UnsupportedError, match="number of records in each object"):
        make_order(name, SIZE, dataset_id="d", seed=3)
    with pytest.raises(SpecMismatchError):
        order_from({**made().description, "blocks": [[1, SIZE]]}, seed=3)


def test_what_is_no_description_is_refused() -> None:
    said = made().description
    for broken in (
        {},
        {**said, "size": "many"},
        {"name": said["name"], "size": SIZE, "blocks": said["blocks"]},
        {**said, "blocks": [[1]]},
        {**said, "blocks": [[1, -5]]},
        {**said, "name": "block_prp_v1:two:x"},
        [],
    ):
        with pytest.raises(FormatError):
            order_from(broken, seed=3)  # type: ignore[arg-type]  # one is not even a mapping


def test_too_many_objects_to_say_are_asked_for() -> None:
    blocks = np.arange(1, MAX_RUNS + 2)
    said = made(blocks).description
    assert said["blocks"] is None
    with pytest.raises(UnsupportedError):
        order_from(said, seed=3)
    assert order_from(said, seed=3, blocks=blocks).name == said["name"]
    assert Blocks.from_runs(Blocks(BLOCKS).runs() or []).digest == Blocks(BLOCKS).digest


def test_nonsense_is_refused() -> None:
    for call in (
        lambda: made(window=0),
        lambda: made([0, 0]),
        lambda: made([]),
        lambda: made([3, -1]),
        lambda: made([1.5]),
        lambda: made([2**62] * 4 + [5]),  # five, if it were to wrap around
        lambda: made().ids(0, 5, SIZE + 1),
        lambda: made().ids(-1, 0, 1),
    ):
        with pytest.raises(UsageError):
            call()


def test_spans_are_looked_up_each_in_its_own_epoch() -> None:
    order = made()
    ids, epochs = spanned_ids(order, ((0, SIZE - 2, SIZE), (1, 0, 3)))
    assert epochs.tolist() == [0, 0, 1, 1, 1]
    assert ids.tolist() == [*order.ids(0, SIZE - 2, SIZE).tolist(), *order.ids(1, 0, 3).tolist()]
    assert [part.tolist() for part in spanned_ids(order, ())] == [[], []]
    assert [len(part) for part in spanned_ids(order, ((4, 2, 6),))] == [4, 4]
