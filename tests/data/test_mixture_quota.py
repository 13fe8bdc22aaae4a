"""Exact quotas: the bound, the rule as it is stated, tokens, debts carried over; and checks that can fail."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.data.mixture.categorical import scaled, thresholds
from durable_core.data.mixture.policy import carry, exact_weights, normalised, settle
from durable_core.data.mixture.quota import choose, debt_bound, draw_rule, limit, unit_rule
from durable_core.errors import UsageError
from tests.torture.mixture import (
    NegativeQuota,
    Tally,
    by_greatest_debt,
    by_largest_remainder,
    campaign,
    check,
    configurations,
    debts_along,
)

WEIGHTS = st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any).map(normalised)


def test_thousands_of_random_configurations_keep_the_bound() -> None:
    tally = campaign(1000, seed=3, oracle_every=10, changes_every=2)
    assert tally.faults == []
    assert (tally.configurations, tally.oracle, tally.changes) == (1000, 100, 500)
    assert tally.at_bound > 0, "no configuration reached the bound: the check is not sharp"


def test_the_greatest_debt_first_breaks_the_bound() -> None:
    tally = Tally()
    for configuration in configurations(seed=3, count=300):
        check(configuration, by_greatest_debt, tally)
    assert len(tally.faults) > 10


def test_floors_and_largest_remainders_give_negative_quotas() -> None:
    refused = 0
    for configuration in configurations(seed=3, count=300):
        try:
            check(configuration, by_largest_remainder(configuration.window), Tally())
        except NegativeQuota:
            refused += 1
    assert refused > 10


def test_the_draws_of_a_version_never_change() -> None:
    weights = exact_weights("abc", {"a": "1/2", "b": "1/3", "c": "1/6"})
    picks = choose(weights, [0, 0, 0], draw_rule(weights), 24)
    assert "".join("abc"[i] for i in picks) == "abacba" * 4
    weights = exact_weights("abcd", {"a": 0.7, "b": 0.2, "c": 0.07, "d": 0.03})
    picks = choose(weights, [0] * 4, draw_rule(weights), 40)
    assert "".join("abcd"[i] for i in picks) == "aabaaabaacaabaaabaacaabaaadabaaabaaabaac"


def test_one_source_has_no_debt_and_two_never_more_than_half() -> None:
    assert (debt_bound(1), debt_bound(2), debt_bound(12)) == (
        Fraction(0),
        Fraction(1, 2),
        Fraction(21, 22),
    )
    assert choose((1 << 20,), [0], draw_rule((1 << 20,)), 5) == [0] * 5


@settings(max_examples=60, deadline=None)
@given(WEIGHTS, st.integers(0, 80), st.integers(0, 80))
def test_debts_alone_say_how_it_goes_on(weights: tuple[int, ...], before: int, after: int) -> None:
    zeros = [0] * len(weights)
    whole = choose(weights, zeros, draw_rule(weights), before + after)
    counts = np.bincount(whole[:before], minlength=len(weights)).tolist()
    assert whole[before:] == choose(weights, settle(zeros, weights, counts), draw_rule(weights), after)


@settings(max_examples=60, deadline=None)
@given(WEIGHTS, st.integers(1, 60), st.integers(0, 2**32))
def test_no_debt_of_tokens_exceeds_the_longest_record(
    weights: tuple[int, ...], longest: int, seed: int
) -> None:
    stream, m = random.Random(seed), len(weights)
    short = stream.choice([0, longest - 1])
    sizes: list[tuple[int, int]] = []

    def size_of(source: int) -> int:
        sizes.append((source, stream.randint(short, longest)))
        return sizes[-1][1]

    picks = choose(weights, [0] * m, unit_rule(longest), 200, size_of)
    assert [source for source, _ in sizes] == picks
    debts = [0] * m
    for source, size in sizes:
        debts = settle(debts, weights, [size if i == source else 0 for i in range(m)])
        assert max(map(abs, debts)) <= longest * sum(weights)


def test_tokens_end_with_the_source_that_has_no_more() -> None:
    left = {0: 3, 1: 100}

    def size_of(source: int) -> int | None:
        left[source] -= 1
        return 5 if left[source] >= 0 else None

    picks = choose((1 << 19, 1 << 19), [0, 0], unit_rule(5), 50, size_of)
    assert picks == [0, 1, 0, 1, 0, 1, 0]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_carried_debt_sums_to_zero_and_keeps_to_its_limit(seed: int) -> None:
    stream = random.Random(seed)
    m = stream.randint(2, 8)
    weights = normalised([stream.randint(1, 9) for _ in range(m)])
    picks = choose(weights, [0] * m, draw_rule(weights), stream.randint(1, 40))
    debts = debts_along(weights, [0] * m, picks)[-1].tolist()
    given_ = [0 if stream.random() < 0.4 else stream.randint(1, 10**6) for _ in range(m)]
    after = normalised(given_ if any(given_) else [1] * m)
    carried = carry(debts, weights, after)
    assert sum(carried) == 0
    assert all(new or not debt for debt, new in zip(carried, after, strict=True))
    if all(after):
        moved = [
            abs(Fraction(new, sum(after)) - Fraction(old, sum(weights)))
            for old, new in zip(debts, carried, strict=True)
        ]
        assert max(moved) < Fraction(1, 1 << 20)
    along = debts_along(after, carried, choose(after, carried, draw_rule(after), 200))
    assert int(np.abs(along).max()) <= limit(carried, after)


@pytest.mark.parametrize(
    "value", [-1, -0.25, "-1/3", float("nan"), float("inf"), "a third", "1/0", None, True, [1]]
)
def test_what_is_no_weight_is_refused_by_name_and_value(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        exact_weights(("web", "code"), {"web": 1, "code": value})  # type: ignore[dict-item]  # on purpose
    assert "'code'" in str(caught.value) and repr(value) in str(caught.value)


def test_weights_are_what_their_text_says() -> None:
    tenth = exact_weights("ab", {"a": 0.1, "b": 0.2})
    assert Fraction(tenth[0], sum(tenth)) == Fraction(1, 3)  # 0.1 / (0.1 + 0.2) as floats is not
    assert (
        exact_weights("ab", {"a": "1/3", "b": Fraction(2, 3)})
        == tenth
        == exact_weights("ab", {"a": 1, "b": 2})
    )
    assert sum(tenth) >= 1 << 20
    with pytest.raises(UsageError, match="all weights are zero: a, b"):
        exact_weights("ab", {"a": 0, "b": 0.0})
    with pytest.raises(UsageError, match="no source is called 'c'; no weight is given for 'b'"):
        exact_weights("ab", {"a": 1, "c": 1})
    with pytest.raises(UsageError, match="round them"):
        exact_weights(
            "abcd", {name: f"1/{10**9 + odd}" for name, odd in zip("abcd", (7, 9, 21, 33), strict=True)}
        )


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=9), st.integers(1, 2**48))
def test_words_are_scaled_without_rounding(words: list[int], size: int) -> None:
    words += [0, 2**64 - 1, 2**32, 2**32 - 1]
    expected = [word * size >> 64 for word in words]
    assert scaled(np.array(words, dtype=np.uint64), size).tolist() == expected


@given(st.lists(st.integers(0, 2**60), min_size=1, max_size=9).filter(any))
def test_thresholds_give_each_source_its_share_of_all_words(weights: list[int]) -> None:
    bounds = [0, *thresholds(weights).tolist()]
    bounds += [2**64] * (len(weights) + 1 - len(bounds))
    for weight, begin, end in zip(weights, bounds, bounds[1:], strict=False):
        assert abs(Fraction(end - begin, 2**64) - Fraction(weight, sum(weights))) < Fraction(1, 2**64)
        assert weight or begin == end
