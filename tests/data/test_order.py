"""The order: a bijection, the same for ever, at any size from any position, in little memory."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import order_oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.data.keys import hash_fields
from durable_core.data.order import (
    MAX_SIZE,
    SMALL,
    WINDOW,
    FullPermutation,
    Sequential,
    arithmetic,
    make_order,
    wrapped_ids,
)
from durable_core.errors import UnsupportedError, UsageError

GOLDEN = {
    # (size, epoch, start): the next eight ids for dataset "golden", seed 7
    (10, 0, 0): [3, 6, 0, 2, 1, 5, 9, 8],
    (10, 1, 0): [8, 0, 2, 1, 9, 6, 3, 4],
    (65_536, 0, 65_528): [26128, 10386, 38393, 62144, 33349, 4220, 3737, 64086],
    (65_537, 0, 0): [41851, 28514, 1772, 59949, 13624, 64180, 824, 59839],
    (10**6, 2, 123_456): [820464, 734081, 291597, 27360, 855455, 75722, 71474, 287511],
    (10**9, 0, 10**9 - 8): [
        753860029, 227196977, 833011361, 450696817, 451354074, 860645175, 169404404, 555692791,
    ],
    (10**12, 5, 10**11): [
        805669149991, 725390316762, 571611457625, 595343522117,
        112856278277, 683297338145, 325828249402, 303122433227,
    ],
}  # fmt: skip


@pytest.mark.parametrize(("where", "ids"), GOLDEN.items())
def test_golden_vectors_never_change(where: tuple[int, int, int], ids: list[int]) -> None:
    size, epoch, start = where
    order = make_order("full_prp_v1", size, dataset_id="golden", seed=7)
    assert order.ids(epoch, start, start + 8).tolist() == ids


def test_golden_vector_of_the_sequential_order() -> None:
    assert make_order("sequential_v1", 10**12, dataset_id="golden", seed=7).ids(3, 5, 9).tolist() == [
        5,
        6,
        7,
        8,
    ]


@given(
    size=st.one_of(st.integers(1, 100), st.integers(SMALL + 1, MAX_SIZE)),
    epoch=st.integers(0, 1000),
    seed=st.integers(0, 2**64 - 1),
    at=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=60, deadline=None)
def test_the_scalar_twin_agrees(size: int, epoch: int, seed: int, at: float) -> None:
    position = min(int(at * size), size - 1)
    stop = min(position + 3, size)
    fast = FullPermutation(size, dataset_id="d", seed=seed, source="s").ids(epoch, position, stop)
    slow = partial(order_oracles.full, size, epoch, dataset_id="d", seed=seed, source="s")
    assert fast.tolist() == [slow(p) for p in range(position, stop)]


@pytest.mark.parametrize(
    "size",
    [
        1,
        2,
        3,
        5,
        64,
        1000,
        SMALL - 1,
        SMALL,
        SMALL + 1,
        257**2 - 1,
        257**2,
        257**2 + 1,
        99_991,
        2**17,
        262_145,
    ],
)
def test_every_sample_exactly_once(size: int) -> None:
    order = FullPermutation(size, dataset_id="d", seed=size)
    for epoch in (0, 1):
        assert np.array_equal(np.sort(order.ids(epoch, 0, size)), np.arange(size))


@pytest.mark.parametrize("size", [1000, 3 * WINDOW + SMALL])
def test_any_interval_is_a_slice_of_the_whole(size: int) -> None:
    order, fresh = (FullPermutation(size, dataset_id="d", seed=1) for _ in range(2))
    whole = order.ids(2, 0, size)
    for start, stop in (
        (0, 0),
        (0, 1),
        (size - 1, size),
        (size // 3, size // 2),
        (5, size - 5),
        (size, size),
    ):
        assert np.array_equal(fresh.ids(2, start, stop), whole[start:stop])


def test_handed_out_ids_cannot_be_changed_for_the_next_reader() -> None:
    order = FullPermutation(100, dataset_id="d", seed=1)
    with pytest.raises(ValueError, match="read-only"):
        order.ids(0, 0, 10)[0] = 5


def test_contexts_never_alias() -> None:
    ids = [
        tuple(FullPermutation(1000, dataset_id=d, seed=s, source=c).ids(e, 0, 20).tolist())
        for d, c, s, e in [
            ("d", "", 0, 1),
            ("d", "", 1, 0),
            ("d", "", 0, 11),
            ("d", "", 1, 1),
            ("", "d", 0, 1),
        ]
    ]
    assert len(set(ids)) == len(ids)
    assert hash_fields("ab", "c") != hash_fields("a", "bc")
    assert hash_fields("1") != hash_fields(1)


def test_range_and_names_are_checked() -> None:
    for call in (
        lambda: FullPermutation(0, dataset_id="d", seed=1),
        lambda: FullPermutation(MAX_SIZE + 1, dataset_id="d", seed=1),
        lambda: Sequential(10).ids(0, 5, 11),
        lambda: Sequential(10).ids(-1, 0, 1),
        lambda: Sequential(10).ids(0, 5, 4),
    ):
        with pytest.raises(UsageError):
            call()
    with pytest.raises(UnsupportedError, match=r"full_prp_v9.*full_prp_v1"):
        make_order("full_prp_v9", 10, dataset_id="d", seed=1)


def test_positions_wrap_to_the_beginning() -> None:
    assert wrapped_ids(Sequential(10), 0, 8, 13) == (8, 9, 0, 1, 2)
    assert wrapped_ids(Sequential(10), 0, 12, 14) == (2, 3)


def test_any_position_of_a_million_million_in_little_memory() -> None:
    size = 10**12
    whole = FullPermutation(size, dataset_id="d", seed=1)
    tracemalloc.start()
    order = FullPermutation(size, dataset_id="d", seed=1)
    for position in (0, size // 3, size - 8, 12_345, size // 2):
        ids = order.ids(7, position, position + 8)
        near = max(position - 5 * WINDOW, 0)
        assert np.array_equal(whole.ids(7, near, position + 8)[-8:], ids)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_a_batch_at_ten_to_the_nine_asks_for_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """No replay: what is computed does not depend on the position."""
    computed: list[tuple[int, int]] = []
    feistel = arithmetic._feistel

    def counted(start: int, stop: int, *rest: Any) -> Any:
        computed.append((start, stop))
        return feistel(start, stop, *rest)

    monkeypatch.setattr(arithmetic, "_feistel", counted)
    order = FullPermutation(2 * 10**9, dataset_id="d", seed=1)
    for start in range(10**9, 10**9 + 4096, 32):
        order.ids(0, start, start + 32)
    assert len(computed) <= 2 and all(stop - start <= WINDOW for start, stop in computed)
