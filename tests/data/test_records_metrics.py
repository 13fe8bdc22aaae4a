"""What reading records costs: measured in every process once, added up over workers and sources."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

from durable_core.data import DurableLoader, Mixture
from durable_core.data.cache import DataCache
from durable_core.data.manifest import build
from durable_core.data.physical.metrics import Histogram, Metrics, PerProcess
from durable_core.data.physical.retry import RetryCounts
from durable_core.data.records import SAMPLED, RecordDataset

OBJECTS, EACH = 3, 8
TOTAL = OBJECTS * EACH


def made(root: Path, **how: Any) -> RecordDataset:
    root.mkdir(exist_ok=True)
    for number in range(OBJECTS):
        lines = [json.dumps({"i": number * EACH + i}) + "\n" for i in range(EACH)]
        (root / f"part-{number}.jsonl").write_text("".join(lines))
    return RecordDataset(build([str(root)]).manifest, root, **how)


def measured(dataset: Any) -> Metrics:
    found = dataset.metrics
    assert isinstance(found, Metrics)
    return found


def stored(dataset: RecordDataset) -> int:
    return sum(item.nbytes // item.records * item.records for item in dataset.manifest.objects)


def test_records_read_where_they_are_asked_for(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data")
    for i in range(TOTAL):
        dataset[i]
    metrics = dataset.metrics
    assert (metrics.records, metrics.read.count, metrics.nbytes) == (TOTAL, TOTAL, stored(dataset))
    assert metrics.decode.count == -(-TOTAL // SAMPLED) * SAMPLED  # each of those measured stands for many
    assert metrics.read.total > 0 and metrics.hits == metrics.misses == 0
    assert dataset.metrics is metrics and dataset.metrics.records == TOTAL  # looked at, not taken


def test_records_read_ahead_are_counted_once(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", read_ahead=2, ahead_items=4)
    dataset.prefetch(range(TOTAL))
    for i in range(TOTAL):
        dataset[i]
    metrics = dataset.metrics
    assert (metrics.records, metrics.read.count, metrics.decode.count) == (TOTAL, TOTAL, TOTAL)
    assert metrics.nbytes == stored(dataset)
    assert metrics.held and metrics.depth
    dataset.close()


def test_cache_hits_and_misses_are_of_objects_opened(tmp_path: Path) -> None:
    cache = DataCache(tmp_path / "cache", 1 << 20)
    for hits, misses in ((0, OBJECTS), (OBJECTS, 0)):
        dataset = made(tmp_path / "data", cache=cache, read_ahead=0)
        for i in range(TOTAL):
            dataset[i]
        assert (dataset.metrics.hits, dataset.metrics.misses) == (hits, misses)
        dataset.close()


def test_retries_of_the_store_are_told_once(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data")
    dataset._location.counts.add(attempts=5, retries=3)
    assert dataset.metrics.take().retries == 3
    assert dataset.metrics.retries == 0
    again = pickle.loads(pickle.dumps(RetryCounts(retries=4)))
    assert again.retries == 4 and again.news() == 0  # told, or to be told, where they happened


def test_a_copy_has_measured_nothing(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data")
    mixture = Mixture({"a": dataset}, {"a": 1})
    dataset[0]
    assert measured(mixture).records == 1
    for copied in (pickle.loads(pickle.dumps(dataset)), pickle.loads(pickle.dumps(mixture))):
        assert measured(copied).records == 0 and measured(copied).read.count == 0


def test_a_mixture_of_what_measures_nothing_measures_nothing() -> None:
    assert Mixture({"a": [1, 2]}, {"a": 1}).metrics is None


def test_a_fork_has_measured_nothing() -> None:
    mine = PerProcess()
    mine.here().count(records=3)
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    child = context.Process(target=lambda: found.put(mine.here().records))
    child.start()
    assert found.get() == 0
    child.join()
    assert mine.here().records == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_adds_up_workers_and_sources(tmp_path: Path, workers: int) -> None:
    sources = {name: made(tmp_path / name) for name in ("a", "b")}
    mixture = Mixture(sources, {"a": 1, "b": 1}, epoch_size=2 * TOTAL)
    loader = DurableLoader(mixture, 6, seed=1, num_workers=workers)
    sources["a"][0]  # before, and not by the loader: told once all the same, where it happened
    measured(mixture).take()
    assert sum(len(batch["i"]) for batch in loader) == 2 * TOTAL
    metrics = loader.metrics()
    assert (metrics.records, metrics.read.count) == (2 * TOTAL, 2 * TOTAL)
    assert metrics.nbytes == stored(sources["a"]) + stored(sources["b"])
    assert metrics.fetch.count == 2 * TOTAL // 6
    assert metrics.compute.count == (metrics.fetch.count if workers else 0)


def test_what_came_between_two_looks() -> None:
    metrics = Metrics()
    for seconds in (0.5, 0.001, 3.0):
        metrics.measure("read", seconds)
    before = metrics.copy()
    metrics.measure("read", 0.25)
    metrics.measure("read", 0.0)
    metrics.count(records=2)
    later = metrics.since(before)
    assert (later.read.count, later.records, later.fetch.count) == (2, 2, 0)
    assert later.read.total == pytest.approx(0.25)
    assert 0.25 <= later.read.greatest <= 0.25 * 9 / 8 and later.read.quantile(0.5) == 0.0
    assert before.read.count == 3


def test_values_added_together_and_for_others_are_as_one_by_one() -> None:
    together, single, standing = Histogram(), Histogram(), Histogram()
    values = [0.0, 1e-6, 0.3, 0.3, 0.3, 7.0]
    together.add_all(values)
    for each in values:
        single.add(each)
    for each, times in ((0.0, 1), (1e-6, 1), (0.3, 3), (7.0, 1)):
        standing.add(each, times)
    assert together.counts == single.counts == standing.counts
    assert together.summary() == single.summary()
    assert standing.total == pytest.approx(single.total) and standing.count == single.count
