"""What a loader says about reading: its own figures, and its dataset's, from any number of workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from durable_core.data import DurableLoader
from durable_core.data.physical.metrics import Metrics


class Measured(Dataset[Any]):
    """Counts its own reads, as a dataset on a remote store does."""

    def __init__(self) -> None:
        self.metrics = Metrics()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        self.metrics.measure("read", 0.001)
        self.metrics.count(records=1, nbytes=4, retries=index == 7)
        return torch.tensor(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_sums_what_its_workers_measured(workers: int) -> None:
    loader = DurableLoader(Measured(), 4, seed=1, num_workers=workers)
    for step, _ in enumerate(loader):
        loader.acknowledge(step=step)
    found = loader.metrics().summary()
    assert found["records"] == 20 and found["nbytes"] == 80 and found["retries"] == 1
    assert found["read"]["count"] == 20 and found["read"]["max"] == 0.001
    assert found["fetch"]["count"] == 5 and found["fetch"]["p50"] > 0
    assert found["wait"]["count"] >= 5 and found["lead"] == 0


def test_lead_is_what_was_handed_over_and_not_trained() -> None:
    loader = DurableLoader(list(range(20)), 4, seed=1)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    loader.acknowledge(step=0)
    assert loader.metrics().lead == 2
    assert loader.metrics().records == 0  # this dataset measures nothing
