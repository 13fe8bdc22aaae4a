"""The order: a bijection, the same for ever, random enough, at any size from any position."""

from __future__ import annotations

import hashlib
import math

import numpy as np
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
    make_order,
    wrapped_ids,
)
from durable_core.errors import UnsupportedError, UsageError

MASK = (1 << 64) - 1


class Oracle:
    """``full_prp_v1`` again, one position at a time in plain Python, from the words of its docstring."""

    def __init__(self, size: int, *, dataset_id: str, seed: int, source: str = "") -> None:
        self.size, self.context = size, (dataset_id, source, seed)

    def keys(self, epoch: int) -> list[int]:
        digest = hashlib.blake2b(digest_size=64)
        dataset_id, source, seed = self.context
        for kind, field in (
            ("s", "full_prp_v1"),
            ("s", dataset_id),
            ("s", source),
            ("i", epoch),
            ("i", seed),
        ):
            text = str(field).encode()
            digest.update(kind.encode() + len(text).to_bytes(8, "little") + text)
        raw = digest.digest()
        return [int.from_bytes(raw[i : i + 8], "little") for i in range(0, 64, 8)]

    @staticmethod
    def mix(word: int) -> int:
        word ^= word >> 33
        word = word * 0xFF51AFD7ED558CCD & MASK
        word ^= word >> 33
        word = word * 0xC4CEB9FE1A85EC53 & MASK
        return word ^ word >> 33

    def at(self, epoch: int, position: int) -> int:
        keys = self.keys(epoch)
        if self.size <= 65_536:
            words = [self.mix(self.mix(i + keys[0] & MASK) ^ keys[1]) for i in range(self.size)]
            return sorted(range(self.size), key=words.__getitem__)[position]
        rows = math.isqrt(self.size)
        rows += rows * rows < self.size
        columns = -(-self.size // rows)
        value = position
        while True:
            left, right = divmod(value, columns)
            for i in range(0, 8, 2):
                left = (left + ((self.mix(right ^ keys[i]) >> 32) * rows >> 32)) % rows
                right = (right + ((self.mix(left ^ keys[i + 1]) >> 32) * columns >> 32)) % columns
            value = left * columns + right
            if value < self.size:
                return value


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
    slow = Oracle(size, dataset_id="d", seed=seed, source="s")
    assert fast.tolist() == [slow.at(epoch, p) for p in range(position, stop)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1000, SMALL, SMALL + 1, 99_991, 2**17, 262_145])
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


# --- random enough: sanity, not a proof; the seeds are fixed, so these never flicker ------------


def chi_square_z(counts: np.ndarray, expected: float) -> float:
    """Standardised chi-square (Wilson and Hilferty)."""
    freedom = counts.size - 1
    value = float(((counts - expected) ** 2 / expected).sum())
    return ((value / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


@pytest.mark.parametrize("size", [100_000, 10**9, 10**12])
def test_a_window_looks_random(size: int) -> None:
    count = 50_000
    ids = (
        FullPermutation(size, dataset_id="d", seed=3).ids(1, size // 3, size // 3 + count).astype(float)
        / size
    )
    cells = np.bincount((ids * 256).astype(int), minlength=256)
    if size > 10**6:  # half of a small set is not drawn independently
        assert abs(chi_square_z(cells, count / 256)) < 4
    for lag in (1, 2, math.isqrt(size) % count or 3):
        r = np.corrcoef(ids[:-lag], ids[lag:])[0, 1]
        assert abs(r) * math.sqrt(count - lag) < 4.5, lag
    other = FullPermutation(size, dataset_id="d", seed=3).ids(2, size // 3, size // 3 + count) / size
    assert abs(np.corrcoef(ids, other)[0, 1]) * math.sqrt(count) < 4.5


def test_all_permutations_of_five_are_equally_likely() -> None:
    seeds = 12_000
    places = [
        FullPermutation(5, dataset_id="d", seed=s).ids(0, 0, 5) @ [1, 5, 25, 125, 625] for s in range(seeds)
    ]
    counts = np.unique(places, return_counts=True)[1]
    assert counts.size == 120
    assert abs(chi_square_z(counts, seeds / 120)) < 4
