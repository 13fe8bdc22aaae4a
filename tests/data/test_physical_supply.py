"""Need against supply, gated on the tail; what holds reading back is named. And histograms that add up."""

from __future__ import annotations

import pickle
import random
import statistics

import pytest

from durable_core.data.physical.metrics import STEPS, Histogram, Metrics
from durable_core.data.physical.supply import Need, attribute, judge
from durable_core.errors import UsageError


def metrics(*fetches: float, **counts: int) -> Metrics:
    made = Metrics()
    for seconds in fetches:
        made.measure("fetch", seconds)
    made.count(**counts)
    return made


# --- need and supply ---------------------------------------------------------------------------


def test_the_rate_is_tokens_over_seconds() -> None:
    assert Need(tokens=1000, step_s=0.5, batches=4).rate == 8000


def test_a_steady_supply_is_enough_or_not() -> None:
    measured = metrics(*[0.1] * 100)
    assert judge(Need(1000, 0.06), measured, workers=2, cpus=2).sufficient
    verdict = judge(Need(1000, 0.03), measured, workers=2, cpus=2)
    assert not verdict.sufficient and verdict.required > verdict.mean
    assert "on average: held back by decode" in verdict.reason


def test_two_humps_pass_the_mean_and_fail_the_tail() -> None:
    """97 % of fetches take 10 ms, 3 % take 0.5 s: the mean is fine, and steps stop all the same."""
    measured = metrics(*[0.01] * 97, *[0.5] * 3)
    need = Need(tokens=1000, step_s=0.05)
    verdict = judge(need, measured, workers=1, cpus=1)
    assert verdict.mean > verdict.required > verdict.tail
    assert not verdict.sufficient and "slow ones stop the step" in verdict.reason
    assert judge(need, measured, workers=1, cpus=1, q=0.9).sufficient
    assert judge(need, metrics(*[0.01] * 100), workers=1, cpus=1).sufficient


def test_nothing_measured_is_not_sufficient() -> None:
    verdict = judge(Need(1000, 0.05), Metrics(), workers=2, cpus=2)
    assert not verdict.sufficient and "no fetch" in verdict.reason and verdict.bottleneck is None


def test_without_workers_the_verdict_says_what_it_leaves_out() -> None:
    assert "added to its step" in judge(Need(1000, 0.05), metrics(0.01), workers=0, cpus=2).reason


def test_without_workers_a_slow_fetch_is_no_more_than_its_part_of_the_mean() -> None:
    """Every fetch blocks the loop then: a hiccup of one in fifty is not what a loop waits for."""
    need = Need(tokens=1000, step_s=0.05)
    hiccups, slow = metrics(*[0.01] * 98, *[0.5] * 2), metrics(*[0.1] * 100)
    assert judge(need, hiccups, workers=0, cpus=2).sufficient
    assert not judge(need, hiccups, workers=1, cpus=2).sufficient
    assert not judge(need, slow, workers=0, cpus=2).sufficient


@pytest.mark.parametrize("fields", [(0, 1), (1, 0), (1, float("inf")), (float("nan"), 1), (1, 1, 0)])
def test_a_need_that_makes_no_sense_is_refused(fields: tuple[float, ...]) -> None:
    with pytest.raises(UsageError):
        Need(*fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fetch", "read", "decode", "held", "workers", "expected"),
    [
        (1.0, 4.0, 0.1, 0, 2, "I/O"),  # reads overlap, and are waited for
        (1.0, 0.9, 0.1, 0, 2, "parallelism"),  # one read after another
        (1.0, 4.0, 0.1, 90, 2, "memory"),  # reads would have been further ahead with more room
        (1.0, 0.1, 0.9, 0, 2, "decode"),
        (1.0, 0.1, 0.9, 90, 2, "decode"),  # being held is right when decoding is what is slow
        (1.0, 0.1, 0.9, 0, 1, "parallelism"),  # a CPU has no worker
        (1.0, 0.2, None, 0, 2, "decode"),  # what is not reading is computing
        (0.0, 0.0, None, 0, 2, None),
    ],
)
def test_the_throttled_part_is_named(
    fetch: float, read: float, decode: float | None, held: int, workers: int, expected: str | None
) -> None:
    measured = metrics(*[fetch] * bool(fetch), records=100, held=held)
    measured.measure("read", read)
    if decode is not None:
        measured.measure("decode", decode)
    assert attribute(measured, workers=workers, cpus=2) == expected


# --- histograms --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_right_within_a_bucket(seed: int) -> None:
    chance = random.Random(seed)
    values = sorted(chance.lognormvariate(-5, 2) for _ in range(2000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for q in (0.0, 0.5, 0.95, 0.99, 1.0):
        true = values[max(0, -(-int(q * 1000) * len(values) // 1000) - 1)]
        found = histogram.quantile(q)
        assert found is not None and true <= found <= true * (1 + 1 / STEPS)
    assert histogram.mean == pytest.approx(statistics.fmean(values))
    assert histogram.quantile(1.0) == values[-1] == histogram.greatest


def test_parts_added_up_are_the_whole() -> None:
    whole, parts = Histogram(), [Histogram() for _ in range(3)]
    for number in range(300):
        value = (number % 37) / 1000
        whole.add(value)
        parts[number % 3].add(value)
    total = Histogram()
    for part in parts:
        total.merge(part)
    assert total.counts == whole.counts and total.count == 300
    assert total.summary() | {"mean": 0} == whole.summary() | {"mean": 0}


def test_a_histogram_of_nothing_and_of_no_time() -> None:
    empty = Histogram()
    assert empty.quantile(0.5) is None and empty.mean is None
    empty.add(0.0)
    empty.add(-1.0)
    assert empty.quantile(0.99) == 0.0 and empty.count == 2
    with pytest.raises(UsageError):
        empty.quantile(1.5)


def test_metrics_travel_and_add_up() -> None:
    worker, total = Metrics(), Metrics()
    worker.measure("read", 0.25)
    worker.count(records=3, nbytes=100, hits=3, misses=1)
    worker.depth = 4
    total.merge(pickle.loads(pickle.dumps(worker.take())))
    assert worker.records == 0 and worker.read.count == 0
    worker.count(records=2)
    total.merge(worker.take())
    summary = total.summary()
    assert summary["records"] == 5 and summary["hit_rate"] == 0.75 and summary["depth"] == 4
    assert summary["read"]["count"] == 1 and summary["read"]["p99"] == 0.25
    assert Metrics().summary()["hit_rate"] is None
