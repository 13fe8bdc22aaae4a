"""What a worker_init_fn finds as the dataset is the user's, whatever its attributes are called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from data_samples import Plain, interrupted, listed, train
from torch.utils.data import IterableDataset, get_worker_info

from durable_core.data import DurableLoader

NAMES = [
    "_dataset", "_seeder", "_collate", "_packing", "_batched", "_prefetch", "_measures",  # of what reads it
    "_records", "_samples", "_packs", "_batch", "_piece", "fetch", "handle", "dataset",
]  # fmt: skip


class Named(Plain):
    """Sample i is (i, what lies in its attribute ``name``); its attribute ``gone`` is to be deleted."""

    def __init__(self, size: int, name: str) -> None:
        super().__init__(size)
        self.name = name
        self.gone = "not yet"
        setattr(self, name, "closed")

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        assert not hasattr(self, "gone")
        return index, getattr(self, self.name)


@pytest.mark.parametrize("name", NAMES)
def test_attributes_of_a_dataset_are_its_own(name: str) -> None:
    def opening(worker: int) -> None:
        found: Any = get_worker_info()
        dataset = found.dataset
        assert getattr(dataset, name) == "closed" and len(dataset) == 4
        setattr(dataset, name, "open")
        del dataset.gone

    loader = DurableLoader(
        Named(4, name), 4, seed=1, shuffle=False, num_workers=1, worker_init_fn=opening, collate_fn=listed
    )
    assert list(loader) == [[(i, "open") for i in range(4)]]


class Range(IterableDataset[int]):
    """``start`` to ``stop``, which each worker is given a part of, as torch's manual has it."""

    def __init__(self, stop: int) -> None:
        self.start, self.stop, self.at = 0, stop, -1
        self.reader = self.epoch = self.resume = "its own"

    def __iter__(self) -> Iterator[int]:
        self.at = self.start if self.at < 0 else self.at
        while self.at < self.stop:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"start": self.start, "stop": self.stop, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.__dict__.update(state)


def shared_out(worker: int) -> None:
    info: Any = get_worker_info()
    dataset = info.dataset
    assert dataset.reader == dataset.epoch == dataset.resume == "its own"
    each = (dataset.stop - dataset.start) // info.num_workers
    dataset.start, dataset.stop = worker * each, (worker + 1) * each
    del dataset.reader


def test_a_stream_may_be_shared_out_by_a_worker_init_fn() -> None:
    def make() -> DurableLoader:
        stream = Range(24)
        return DurableLoader(
            stream, 4, seed=1, num_workers=2, worker_init_fn=shared_out, collate_fn=listed, drop_last=True
        )

    whole = train(make())
    assert sorted(i for batch in whole for i in batch) == list(range(24))
    for stop in range(1, 6):
        assert interrupted(make, stop, 6) == whole
