"""DurableSampler in plain and stateful DataLoaders."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from data_samples import Plain, listed
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from durable_core.data import DurableLoader, DurableSampler
from durable_core.errors import FormatError, SpecMismatchError, UnsupportedError, UsageError


def loader(kind: Any, batched: bool, workers: int = 0, **more: Any) -> tuple[DurableSampler, Any]:
    data = Plain(22)
    sampler = DurableSampler(data, batch_size=4, batched=batched, seed=5, **more)
    how: dict[str, Any] = {"batch_sampler": sampler} if batched else {"sampler": sampler, "batch_size": 4}
    return sampler, kind(data, collate_fn=listed, num_workers=workers, **how)


def expected(epochs: int) -> list[list[int]]:
    durable = DurableLoader(Plain(22), 4, seed=5, collate_fn=listed)
    return [batch for _ in range(epochs) for batch in durable]


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_it_gives_the_same_order_as_the_loader(kind: Any, batched: bool, workers: int) -> None:
    sampler, given = loader(kind, batched, workers)
    assert [batch for _ in range(2) for batch in given] == expected(2)
    assert len(sampler) == (6 if batched else 22)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 5])
def test_a_stateful_loader_resumes_through_it(batched: bool, workers: int, stop: int) -> None:
    _, first = loader(StatefulDataLoader, batched, workers)
    list(first)
    iterator = iter(first)
    taken = [next(iterator) for _ in range(stop)]
    state = first.state_dict()
    _, second = loader(StatefulDataLoader, batched, workers)
    second.load_state_dict(state)
    assert taken + list(second) == expected(2)[6:]


@pytest.mark.parametrize("batched", [True, False])
def test_a_plain_loader_resumes_through_the_samplers_own_state(batched: bool) -> None:
    sampler, first = loader(DataLoader, batched)
    iterator = iter(first)
    taken = [next(iterator) for _ in range(3)]
    state = sampler.state_dict()
    other, second = loader(DataLoader, batched)
    other.load_state_dict(state)
    assert taken + list(second) + list(second) == expected(2)


def test_replicas_share() -> None:
    parts = [list(DurableSampler(24, batch_size=2, batched=True, replica=r, replicas=3)) for r in range(3)]
    whole = list(DurableSampler(24, batch_size=6, batched=True))
    assert [a + b + c for a, b, c in zip(*parts, strict=True)] == whole
    assert len(DurableSampler(22, batch_size=2, replica=0, replicas=2)) == 11


def test_set_epoch_moves_only_when_it_is_another() -> None:
    sampler, _ = loader(DataLoader, True)
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 1, "batch": 2})
    sampler.set_epoch(1)
    assert list(sampler) == expected(2)[8:]
    sampler.set_epoch(0)
    assert list(sampler) == expected(1)


def test_refusals() -> None:
    sampler, _ = loader(DataLoader, True)
    state = sampler.state_dict()
    with pytest.raises(SpecMismatchError, match="size was 22 and is now 23"):
        DurableSampler(Plain(23), batch_size=4, seed=5).load_state_dict(state)
    with pytest.raises(FormatError, match="outside the epoch"):
        sampler.load_state_dict({**state, "batch": 6})
    with pytest.raises(FormatError, match="outside the epoch"):
        sampler.load_state_dict({**state, "within": 5})
    with pytest.raises(UsageError, match="replica 2"):
        DurableSampler(10, replica=2, replicas=2)
    with pytest.raises(UnsupportedError, match="evenly"):
        DurableSampler(11, batch_size=2, replicas=2)


def test_the_recorded_seed_wins() -> None:
    sampler, _ = loader(DataLoader, True)
    other = DurableSampler(Plain(22), batch_size=4, batched=True, seed=6)
    other.load_state_dict(sampler.state_dict())
    assert list(other) == list(sampler)


@pytest.mark.parametrize("batched", [True, False])
def test_batches_may_run_on_over_the_end_of_an_epoch(batched: bool) -> None:
    def take(sampler: DurableSampler, epochs: int) -> list[Any]:
        taken: list[Any] = []
        for _ in range(epochs):
            taken += list(sampler)
        return taken

    def make(**more: Any) -> DurableSampler:
        return DurableSampler(10, batch_size=4, batched=batched, seed=3, remainder="straddle", **more)

    whole = DurableSampler(10, batch_size=10, seed=3)
    plain = [i for _ in range(3) for i in whole]
    taken = take(make(), 2)
    assert len(taken) == 2 * len(make()) - (1 if batched else 4)  # an epoch of 3 batches, one of 2
    assert ([i for batch in taken for i in batch] if batched else taken) == plain[:20]
    first = make()
    iterator = iter(first)
    before = [next(iterator) for _ in range(2)]
    again = make()
    again.load_state_dict(first.state_dict())
    assert before + take(again, 2) == taken


def test_a_sampler_cannot_mask() -> None:
    with pytest.raises(UsageError, match="padding"):
        DurableSampler(10, remainder="pad")


def test_what_makes_no_sense_is_named_and_numbers_of_numpy_are_numbers() -> None:
    sampler = DurableSampler(np.int64(20), batch_size=np.int64(4), seed=np.int64(3), replicas=np.int64(2))
    plain = DurableSampler(20, batch_size=4, seed=3, replicas=2)
    assert list(sampler) == list(plain) and json.dumps(sampler.state_dict()) == json.dumps(plain.state_dict())
    for name, value in (("batch_size", 4.0), ("seed", "3"), ("replica", None), ("replicas", True)):
        with pytest.raises(UsageError, match=f"{name} must be a whole number"):
            DurableSampler(20, **{name: value})
    for data in (20.0, "", None):
        with pytest.raises(UsageError):
            DurableSampler(data)
    for state in (None, [1], {**plain.state_dict(), "within": "1"}):
        with pytest.raises(FormatError):
            DurableSampler(20, batch_size=4, replicas=2).load_state_dict(state)
