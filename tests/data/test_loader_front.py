"""What a worker_init_fn finds as the dataset is the user's, whatever its attributes are called."""

from __future__ import annotations

from typing import Any

import pytest
from data_samples import Plain, listed
from torch.utils.data import get_worker_info

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
