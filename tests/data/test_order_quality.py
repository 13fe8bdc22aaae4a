"""Random enough: sanity, not a proof. Seeds are fixed, so nothing ever flickers; planted faults are found.

Every score is a standardised statistic: about normal(0, 1) for a uniform permutation. Some two
hundred are taken in all, so the mark is 4.5 (odds of one in 150,000 each).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from durable_core.data.order import BlockPermutation, FullPermutation, Order, arithmetic
from durable_core.data.order.arithmetic import Bijection, derive_keys

MARK = 4.5
COUNT = 50_000
Floats = npt.NDArray[np.float64]


def chi_square(counts: npt.ArrayLike, freedom: int | None = None) -> float:
    """Standardised chi-square of equally likely cells (Wilson and Hilferty, 1931)."""
    cells = np.asarray(counts, dtype=float)
    freedom = cells.size - 1 if freedom is None else freedom
    value = float(((cells - cells.mean()) ** 2 / cells.mean()).sum())
    return ((value / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def correlation(a: Floats, b: Floats) -> float:
    return float(np.corrcoef(a, b)[0, 1]) * math.sqrt(len(a))


def joint(a: Floats, b: Floats, cells: int = 16) -> float:
    pairs = (a * cells).astype(int) * cells + (b * cells).astype(int)
    return chi_square(np.bincount(pairs, minlength=cells * cells))


def scores(order: Order, *, whole: bool = False) -> dict[str, float]:
    """Every statistic of a run of ids. ``whole``: of all of a set, whose cells are full by necessity."""
    start = 0 if whole else order.size // 3
    count = order.size if whole else COUNT
    ids = order.ids(1, start, start + count)
    u = ids / order.size
    found: dict[str, float] = {}
    if not whole:
        found["positions"] = chi_square(np.bincount((u * 256).astype(int), minlength=256))
        found["low bits"] = chi_square(np.bincount(ids % 64, minlength=64))
    columns = -(-order.size // (math.isqrt(order.size - 1) + 1))
    for lag in {1, 2, 3, 7, 64, columns if columns < count // 2 else 1}:
        found[f"serial {lag}"] = correlation(u[:-lag], u[lag:])
        found[f"joint {lag}"] = joint(u[:-lag], u[lag:])
        found[f"difference {lag}"] = chi_square(
            np.bincount(((u[lag:] - u[:-lag]) % 1 * 64).astype(int), minlength=64)
        )
    runs = np.count_nonzero(np.diff(u) > 0)  # n/2 ascents, variance n/12
    found["ascents"] = (runs - (count - 1) / 2) / math.sqrt((count + 1) / 12)
    later = order.ids(2, start, start + count) / order.size
    found["epochs"], found["epochs joint"] = correlation(u, later), joint(u, later)
    if whole:
        found["place"] = correlation(u, np.arange(count))
    return found


def worst(found: dict[str, float]) -> float:
    return max(map(abs, found.values()))


def full(size: int, seed: int = 3) -> Order:
    return FullPermutation(size, dataset_id="d", seed=seed)


def one_window(size: int, objects: int = 100, seed: int = 3) -> Order:
    """A block permutation whose one window holds all: it must look like a full one."""
    return BlockPermutation(np.full(objects, size // objects), window=objects, dataset_id="d", seed=seed)


@pytest.mark.parametrize("make", [full, one_window])
@pytest.mark.parametrize("size", [10**6, 10**9, 10**12])
def test_a_run_of_positions_looks_random(make: Callable[[int], Order], size: int) -> None:
    found = scores(make(size))
    assert worst(found) < MARK, found


@pytest.mark.parametrize("make", [full, one_window])
@pytest.mark.parametrize("size", [65_500, 65_600, 100_000])
def test_a_whole_epoch_looks_random_on_both_sides_of_the_table(
    make: Callable[[int], Order], size: int
) -> None:
    found = scores(make(size), whole=True)
    assert worst(found) < MARK, found


def test_block_order_looks_random_where_it_should() -> None:
    """Objects over the epoch; records within the window they share. (Nothing more is promised.)"""
    order = BlockPermutation(np.full(1000, 500), window=8, dataset_id="d", seed=3)
    ids = order.ids(1, 0, order.size)
    windows = (ids // 500).reshape(125, 8 * 500)
    first = np.array([np.unique(window).mean() for window in windows]) / 1000
    assert abs(correlation(first[:-1], first[1:])) < MARK
    assert abs(correlation(first, np.arange(125.0))) < MARK
    ranks = np.concatenate([np.argsort(np.argsort(ids.reshape(125, -1)[w])) for w in range(125)]) / 4000
    for lag in (1, 2, 7, 64):
        assert abs(correlation(ranks[:-lag], ranks[lag:])) < MARK
        assert abs(joint(ranks[:-lag], ranks[lag:])) < MARK
    later = order.ids(2, 0, order.size)
    assert abs(correlation(ids.astype(float), later.astype(float))) < 500**0.5 * MARK  # objects move whole
    same = np.count_nonzero(ids == later)
    assert same < 10  # one fixed point is expected


@pytest.mark.parametrize("make", [full, lambda n, seed: one_window(n, n, seed)], ids=["full", "block"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_permutations_of_a_few_are_equally_likely(make: Callable[..., Order], size: int) -> None:
    seeds = 60 * math.factorial(size)
    places = {permutation: i for i, permutation in enumerate(itertools.permutations(range(size)))}
    drawn = [places[tuple(make(size, seed=s).ids(0, 0, size).tolist())] for s in range(seeds)]
    counts = np.bincount(drawn, minlength=len(places))
    assert counts.min() > 0
    assert abs(chi_square(counts)) < MARK


@pytest.mark.parametrize("make", [full, lambda n, seed: one_window(n, n // 2, seed)], ids=["full", "block"])
@pytest.mark.parametrize("size", [8, 16, 100])
def test_every_id_is_equally_likely_at_every_place(make: Callable[..., Order], size: int) -> None:
    matrix = np.zeros((size, size))
    for seed in range(2000):
        matrix[np.arange(size), make(size, seed=seed).ids(seed % 3, 0, size)] += 1
    assert abs(chi_square(matrix, (size - 1) ** 2)) < MARK  # rows and columns are full by necessity


def alias(order_of: Callable[[int, int], npt.NDArray[np.int64]]) -> float:
    """The greatest correlation among nearby (seed, epoch): seed 0 in epoch 1 against seed 1 in epoch 0..."""
    rows = [order_of(seed, epoch).astype(float) for seed in range(4) for epoch in range(4)]
    return max(abs(correlation(a, b)) for a, b in itertools.combinations(rows, 2))


@pytest.mark.parametrize("make", [full, lambda n, seed: one_window(n, 50, seed)], ids=["full", "block"])
@pytest.mark.parametrize("size", [10_000, 10**9])
def test_seed_and_epoch_share_nothing(make: Callable[..., Order], size: int) -> None:
    assert alias(lambda seed, epoch: make(size, seed=seed).ids(epoch, 0, 10_000)) < MARK


# --- the statistics can fail -----------------------------------------------------------------


class Planted:
    """An order from a plain function of the epoch and the positions."""

    name = "planted"

    def __init__(self, size: int, ids: Callable[[int, npt.NDArray[np.int64]], npt.NDArray[np.int64]]) -> None:
        self.size, self._ids = size, ids
        self.description: dict[str, object] = {}

    def ids(self, epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        return self._ids(epoch, np.arange(start, stop, dtype=np.int64))


@pytest.mark.parametrize("rounds", [2, 4])
def test_too_few_rounds_are_found(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "ROUNDS", rounds)
    monkeypatch.setattr(arithmetic, "SMALL", 0)
    keys = {epoch: np.resize(derive_keys("d", epoch), 8) for epoch in (1, 2)}
    size = 100_000
    order = Planted(size, lambda epoch, at: Bijection(size, keys[epoch]).values(int(at[0]), int(at[-1]) + 1))
    assert np.array_equal(np.sort(order.ids(1, 0, size)), np.arange(size))  # a bijection, and yet
    found = scores(order, whole=True)
    assert worst(found) > MARK, found


def test_planted_orders_are_found() -> None:
    size = 10**6 + 3
    good = full(size)
    for name, bad in (
        ("affine", lambda e, at: (at * 618_033 + e) % size),
        (
            "neighbours stay neighbours",
            lambda e, at: good.ids(e, int(at[0]), int(at[-1]) + 1) // 2 * 2 % size,
        ),
        ("same every epoch", lambda e, at: good.ids(0, int(at[0]), int(at[-1]) + 1)),
        ("upper half first", lambda e, at: np.sort(good.ids(e, int(at[0]), int(at[-1]) + 1))),
    ):
        assert worst(scores(Planted(size, bad))) > 2 * MARK, name


def test_seed_plus_epoch_as_the_key_is_found() -> None:
    assert alias(lambda seed, epoch: full(10_000, seed + epoch).ids(0, 0, 10_000)) > 10 * MARK


def test_a_feistel_network_over_five_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why small sets are sorted."""
    monkeypatch.setattr(arithmetic, "SMALL", 0)
    places = {permutation: i for i, permutation in enumerate(itertools.permutations(range(5)))}
    drawn = [places[tuple(full(5, s).ids(0, 0, 5).tolist())] for s in range(7200)]
    assert chi_square(np.bincount(drawn, minlength=120)) > MARK
