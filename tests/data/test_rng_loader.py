"""Per-sample randomness through the loader: the same for any workers, also when drawing begins late."""

from __future__ import annotations

import random
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from durable_core.data import DurableLoader, sample_rng
from durable_core.errors import UsageError

Row = tuple[int, float, float, float, float]


class Draws(Dataset[Row]):
    """Draws from a global stream for a few samples only, so that a worker learns of it late."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Row:
        numpy = float(np.random.randn()) if index % 7 == 3 else 0.0
        python = random.gauss(0, 1) if index % 11 == 5 else 0.0
        handle = float(sample_rng().numpy.random())
        return index, handle, numpy, python, torch.rand(()).item()


class Batched(Draws):
    def __getitems__(self, ids: list[int]) -> list[Row]:
        return [self[index] for index in ids]


def collate(rows: list[Row]) -> Any:
    return rows, random.random() if rows[0][0] % 2 else None, sample_rng().python.random()


def passes(dataset: Dataset[Row], workers: int, choice: bool | Literal["always"] = True) -> list[Any]:
    loader = DurableLoader(
        dataset, 4, seed=5, num_workers=workers, collate_fn=collate, sample_rng=choice, dataset_id="d"
    )
    found = []
    for step, batch in enumerate(batch for _ in range(2) for batch in loader):
        torch.rand(1)  # the training step draws too
        loader.acknowledge(step=step)
        found.append(batch)
    return found


@pytest.mark.parametrize("dataset", [Draws(), Batched()], ids=["one by one", "batched"])
def test_draws_do_not_depend_on_workers_nor_on_when_they_are_seen(dataset: Dataset[Row]) -> None:
    wanted = passes(dataset, 0, "always")
    assert len(wanted) == 30
    for workers in (0, 1, 3):
        assert passes(dataset, workers) == wanted


def test_the_training_process_draws_as_if_there_were_no_loader() -> None:
    torch.manual_seed(3)
    wanted = [torch.rand(1).item() for _ in range(30)]
    drawn = []
    torch.manual_seed(3)
    loader = DurableLoader(Draws(), 4, seed=5, collate_fn=collate)
    for _ in (batch for _ in range(2) for batch in loader):
        drawn.append(torch.rand(1).item())
    assert drawn == wanted


def test_without_sample_rng_the_handle_is_refused() -> None:
    loader = DurableLoader(Draws(), 4, seed=5, sample_rng=False)
    with pytest.raises(UsageError, match="no sample is being fetched"):
        next(iter(loader))
