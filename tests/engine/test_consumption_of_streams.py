"""Streams and samplers in the audit: what can be judged by places alone, and what nobody can know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset, get_worker_info

from durable_core.data import DurableLoader
from durable_core.engine.audit.consumption import Consumption, consume
from durable_core.engine.audit.ordinals import Ordinals
from durable_core.engine.audit.segments import Segment
from durable_core.format.ledger import Row

EVERY = 3


class Parts(IterableDataset[int]):
    dataset_id = "sha256:parts"

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        while self.at < (22, 9)[0 if info is None else info.id]:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Some:
    """A sampler of other than all records, whose state is not asked for here."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, 3 * self.count, 3))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def run(loader: DurableLoader, steps: int = 17) -> list[Segment]:
    """Several epochs, a checkpoint every few steps."""
    segments = [Segment(0, -1, 0, {}, loader.cursor)]
    step, batches = 0, iter(loader)
    while step < steps:
        if next(batches, None) is None:
            batches = iter(loader)
            continue
        step += 1
        loader.acknowledge(step=step)
        if step % EVERY == 0 or step == steps:
            rows = {"dp0": loader.drain_rows()}
            segments.append(Segment(len(segments), segments[-1].through, step, rows, loader.cursor))
    return segments


def stream(workers: int = 0, batch_size: int | None = 4, **more: Any) -> DurableLoader:
    return DurableLoader(Parts(), batch_size, seed=1, num_workers=workers, collate_fn=list, **more)


def changed(segments: list[Segment], c: int, index: int, change: Callable[[Row], Row | None]) -> Consumption:
    rows = list(segments[c].rows["dp0"])
    other = change(rows[index])
    rows[index : index + 1] = [] if other is None else [other]
    return consume([replace(s, rows={"dp0": rows}) if s.c == c else s for s in segments])


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_item_of_every_worker_once_is_sound(workers: int, drop_last: bool) -> None:
    found = consume(run(stream(workers, drop_last=drop_last)))
    assert found.sound and not found.repeated and not found.skipped and not found.ids_checked
    assert sum(epoch.closed for epoch in found.epochs) >= 1


@pytest.mark.parametrize("batch_size", [1, 2])
def test_batches_of_few_items_are_sound_too(batch_size: int) -> None:
    assert consume(run(stream(2, batch_size), steps=50)).sound


@pytest.mark.parametrize("workers", [0, 2])
def test_items_that_came_twice_or_never_are_found(workers: int) -> None:
    segments = run(stream(workers))
    wide = max(workers, 1)
    twice = changed(segments, 1, 2, lambda row: replace(row, ids=row.ids - wide))
    assert (twice.repeated, [f.kind for f in twice.findings][:1]) == (1, ["repeat"])
    never = changed(segments, 1, 2, lambda row: replace(row, ids=row.ids + 2 * wide))
    assert never.skipped >= 2 and {f.kind for f in never.findings} >= {"skip"}
    again = changed(segments, 2, 0, lambda row: replace(row, ids=segments[1].rows["dp0"][0].ids))
    assert again.repeated >= 4
    gone = changed(segments, 1, 1, lambda row: None)
    assert gone.skipped == 4 and not gone.repeated


def test_a_lineage_that_begins_within_an_epoch() -> None:
    segments = run(stream())
    later = [replace(segments[1], rows={}), *segments[2:]]
    assert consume(later).sound


@pytest.mark.parametrize("count", [7, 30])
def test_a_sampler_of_other_than_all_records_is_no_skip(count: int) -> None:
    class Records:
        dataset_id = "sha256:records"

        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> int:
            return index

    found = consume(run(DurableLoader(Records(), 4, sampler=Some(count), seed=1)))
    assert found.sound and not found.skipped and found.epochs[0].samples == count


def test_ordinals_by_hand() -> None:
    def judged(*batches: list[int], whole: bool = True) -> tuple[int | None, int, int]:
        counted = Ordinals(whole)
        for ids in batches:
            counted.take(np.array(ids, dtype=np.int64))
        return counted.workers, counted.repeated, counted.skipped

    assert judged([0, 3, 6], [1, 4, 7], [9, 12]) == (3, 0, 0)
    assert judged([0, 3, 6], [1, 4, 7], [6, 9]) == (3, 1, 0)
    assert judged([0, 1], [4, 5]) == (1, 0, 2)
    assert judged([4, 5], [6]) == (1, 0, 4)
    assert judged([4, 5], [6], whole=False) == (1, 0, 0)
    assert judged([0], [1], [2], [4], [4]) == (None, 1, 0)
    assert judged([0], [1], [2, 4], [3]) == (2, 0, 0)
