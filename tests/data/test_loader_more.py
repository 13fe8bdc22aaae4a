"""``more()``: the end is known at the last batch, also where only the end tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset

from durable_core.data import DurableLoader


class Counted(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < 10:
            self.position += 1
            yield self.position - 1
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def made(kind: str, size: int, workers: int = 0) -> DurableLoader:
    if kind == "stream":
        return DurableLoader(Stream(), size, seed=1, num_workers=workers)
    return DurableLoader(Counted(), size, seed=1, shuffle=False)


def told(loader: DurableLoader) -> list[bool]:
    return [loader.more() for _ in loader]


@pytest.mark.parametrize("kind", ["stream", "counted"])
@pytest.mark.parametrize("size", [2, 4, 10])
def test_only_the_last_batch_has_none_after_it(kind: str, size: int) -> None:
    batches = -(-10 // size)
    assert told(made(kind, size)) == [True] * (batches - 1) + [False]


def test_workers_are_asked_too() -> None:
    assert told(made("stream", 4, workers=1)) == [True, True, False]


def test_asking_changes_nothing() -> None:
    asked, plain = made("stream", 3), made("stream", 3)
    for mine, other in zip(asked, plain, strict=True):
        asked.more()
        there_are = asked.more()
        assert mine.tolist() == other.tolist()
        assert asked.outstanding == plain.outstanding
        asked.acknowledge(asked.outstanding, step=1)
        plain.acknowledge(plain.outstanding, step=1)
        if there_are:
            assert asked.state_dict() == plain.state_dict()
    assert (asked.cursor.epoch, asked.cursor.batch) == (1, 0)


def test_a_restart_between_asking_and_taking_loses_nothing() -> None:
    first = made("stream", 3)
    batches = iter(first)
    next(batches)
    first.acknowledge(1, step=1)
    assert first.more()
    second = made("stream", 3)
    second.load_state_dict(first.state_dict())
    assert [batch.tolist() for batch in second] == [[3, 4, 5], [6, 7, 8], [9]]


def test_an_epoch_left_early_begins_the_next_with_its_first() -> None:
    loader = made("stream", 3)
    for _ in loader:
        assert loader.more()
        loader.acknowledge(loader.outstanding, step=1)
        break
    plain = made("stream", 3)
    for _ in plain:
        plain.acknowledge(plain.outstanding, step=1)
        break
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in plain]


def test_before_the_first_batch_nobody_asks() -> None:
    loader = made("stream", 3)
    assert not loader.more()
