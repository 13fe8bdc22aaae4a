"""An error of the user's own dataset or collate_fn stays what it is, and says which record it is about."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from durable_core.data import DurableLoader
from durable_core.data.loader.reading import notes
from durable_core.data.mixture import Mixture


class BadTransform(Exception):
    """With an argument that torch cannot make it again from."""


class Rows(Dataset[int]):
    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise BadTransform("cannot decode")
        return index


class Batched(Rows):
    def __getitems__(self, ids: list[int]) -> list[int]:
        return [self[index] for index in ids]


def refuse(samples: list[int]) -> torch.Tensor:
    if 6 in samples:
        raise BadTransform("cannot be stacked")
    return torch.tensor(samples)


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "more", "named"),
    [
        (Rows(7), {}, r"at record 7 of the dataset (epoch 0, batch 3)"),
        (Batched(7), {}, r"at record 6, 7 of the dataset (epoch 0, batch 3)"),
        (Rows(-1), {"collate_fn": refuse}, r"at record 6, 7 of the dataset (epoch 0, batch 3)"),
        (
            Mixture({"web": Rows(-1), "code": Rows(3)}, {"web": 1, "code": 1}),
            {},
            "(record 3 of source 'code')",
        ),
    ],
)
def test_the_record_is_named(dataset: Any, more: Any, named: str, workers: int) -> None:
    loader = DurableLoader(dataset, 2, shuffle=False, seed=0, num_workers=workers, dataset_id="d", **more)
    with pytest.raises(BadTransform) as caught:
        for _ in loader:
            pass
    assert told(caught.value).count(named) == 1
    loader.close()


def test_one_error_raised_again_and_again_is_noted_once() -> None:
    error = ValueError("always the same one")
    for _ in range(3):
        notes.note(error, "durable: at record 5")
    assert told(error).count("at record 5") == 1


def test_many_records_are_not_all_named() -> None:
    said = notes.reading(Rows(-1), list(range(20)), 1, 2)
    assert "0, 1, 2, 3, 4, 5, 6, 7 and 12 more" in said


@pytest.mark.skipif(sys.version_info < (3, 11), reason="what the other tests see")
def test_a_python_without_notes_shows_it_above() -> None:
    class Old(ValueError):
        @property
        def add_note(self) -> Any:
            raise AttributeError

    error = Old("boom")
    notes.note(error, "durable: at record 5")
    assert isinstance(error.__cause__, notes.AboutRecords)
    assert "at record 5" in told(error).partition("boom")[0]
    other = ValueError("reason")
    caused = Old("boom")
    caused.__cause__ = other
    notes.note(caused, "durable: at record 5")
    assert caused.__cause__ is other  # which says more than we do
