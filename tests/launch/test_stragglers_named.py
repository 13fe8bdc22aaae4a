"""Who is slow is named by its own times, persistently, and noise names nobody."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from durable_core.engine.beats import OWN_TIMES, Beat, Phase
from durable_core.errors import UsageError
from durable_core.launch.stragglers import Rule, Watch, compare, find


def beat(own: list[float], count: int = 1) -> Beat:
    return Beat(1, Phase.STEP, 1, 5, count, -1, 9.0, 9.0, tuple(own))


def group(seed: int, ranks: int = 8, noise: float = 0.1, slow: dict[int, float] | None = None, count: int = 1,
          times: int = OWN_TIMES) -> dict[int, Beat | None]:  # fmt: skip
    chance = random.Random(seed)
    slow = slow or {}
    return {
        rank: beat([max(0.01, chance.gauss(1.0, noise)) * slow.get(rank, 1.0) for _ in range(times)], count)
        for rank in range(ranks)
    }


@pytest.mark.parametrize("seed", range(20))
def test_one_of_eight_that_is_30_percent_slower_is_named(seed: int) -> None:
    (found,) = find(group(seed, slow={3: 1.3}))
    assert found.rank == 3
    assert 1.2 < found.ratio < 1.4
    assert "rank 3" in found.reason


def test_noise_of_ten_percent_names_nobody() -> None:
    assert [seed for seed in range(300) if find(group(seed))] == []


def test_few_and_wild_times_name_nobody_who_is_not_slow_look_after_look() -> None:
    """Noise of 40 % and eight times: one look in a few tens is wrong, three in a row are not."""
    alarms = 0
    for seed in range(100):
        watch = Watch()
        for look in range(3):
            beats = group(1000 * look + seed, noise=0.4, times=8, count=look + 1)
            alarms += bool(find(beats))
            watch = watch.seen(beats)
        assert watch.named == {}
    assert alarms < 30


def test_the_mean_hides_it() -> None:
    beats = group(1, ranks=64, slow={40: 1.3})
    means = [mean(one.own) for one in beats.values() if one is not None]
    assert mean(means) < 1.02, "by the mean of all nothing is wrong"
    assert [row.rank for row in find(beats)] == [40]


def test_two_of_two_are_told_apart() -> None:
    assert [row.rank for row in find(group(2, ranks=2, slow={1: 1.3}))] == [1]


def test_two_slow_ones_are_both_named_slowest_first() -> None:
    assert [row.rank for row in find(group(3, slow={1: 1.4, 6: 1.8}))] == [6, 1]


def test_a_single_hiccup_is_not_slowness() -> None:
    beats = group(4)
    one = beats[2]
    assert one is not None
    beats[2] = beat([*one.own[:-2], 60.0, 60.0])
    assert find(beats) == ()


def test_without_enough_times_or_others_nothing_is_said() -> None:
    assert compare({0: beat([1.0] * 7), 1: beat([1.0] * 7), 2: None}) == ()
    assert compare({0: beat([1.0] * 32)}) == ()
    assert compare({0: beat([0.0] * 32), 1: beat([0.0] * 32)}) == ()


# --- over time -------------------------------------------------------------------------------


def test_it_is_named_after_three_looks_and_forgotten_after_three() -> None:
    watch, names = Watch(), []
    for look in range(12):
        slow = {5: 1.4} if look < 6 else {}
        watch = watch.seen(group(look, slow=slow, count=look + 1))
        names.append(sorted(watch.named))
    assert names == [[], [], [5], [5], [5], [5], [5], [5], [], [], [], []]


def test_between_the_two_thresholds_it_stays_as_it_was() -> None:
    steady = {rank: beat([1.0] * 32) for rank in range(4)}
    watch = Watch()
    for look in range(20):
        ratio = 1.3 if look < 3 else 1.15
        watch = watch.seen(
            {**{r: beat([1.0] * 32, look + 1) for r in steady}, 2: beat([ratio] * 32, look + 1)}
        )
    assert list(watch.named) == [2] and watch.named[2].ratio == pytest.approx(1.15)


def test_a_look_without_new_beats_is_none() -> None:
    watch = Watch()
    for _ in range(10):
        watch = watch.seen(group(1, slow={5: 1.5}))
    assert watch.named == {}


def test_a_rank_that_is_no_more_is_not_named() -> None:
    watch = Watch()
    for look in range(3):
        watch = watch.seen(group(look, slow={5: 1.5}, count=look + 1))
    assert list(watch.named) == [5]
    assert watch.seen(group(9, ranks=4, count=9)).named == {}


@pytest.mark.parametrize(
    "change", [{"slower": 1.05}, {"recovered": 1.0}, {"windows": 0}, {"least": 1}, {"recovered": 1.3}]
)
def test_a_rule_that_is_none_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Rule(**change)  # type: ignore[arg-type]
