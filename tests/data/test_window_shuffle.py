"""window_shuffle_v1: a stream without ids, mixed in windows, resumed after any item without saving any."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import Anew, Stateless, Stream, interrupted, listed, train
from test_stream import OwnIterator
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from durable_core.data import DurableLoader
from durable_core.data.loader.window_shuffle import WindowShuffle
from durable_core.errors import OrderError, SpecMismatchError, UnsupportedError, UsageError
from durable_core.types import Promise

SIZE = 23


def shuffled(window: int = 5, size: int = SIZE, seed: int = 3, dataset: Any = None) -> WindowShuffle:
    return WindowShuffle(dataset or Stream(size), window=window, seed=seed)


def values(items: Any) -> list[int]:
    return [item[0] for item in items]


def loader(workers: int = 0, window: int = 5, size: int = SIZE, **more: Any) -> DurableLoader:
    given = DataLoader(shuffled(window, size, **more), 4, num_workers=workers, collate_fn=listed)
    return DurableLoader.from_dataloader(given, seed=5)


def epochs(count: int, *args: Any) -> list[Any]:
    one = loader(*args)
    return [batch for _ in range(count) for batch in train(one)]


def test_golden_vector_never_changes() -> None:
    golden = [0, 5, 6, 2, 3, 1, 7, 4, 9, 14, 11, 12, 10, 13, 8, 15, 20, 18, 21, 17, 19, 22, 16]
    assert values(shuffled(8, seed=7)) == golden


@pytest.mark.parametrize("window", [1, 2, 5, 22, 23, 24, 100])
def test_every_item_once_and_none_moves_further_than_its_window(window: int) -> None:
    order = values(shuffled(window))
    assert sorted(order) == list(range(SIZE))
    assert all(place // window == value // window for place, value in enumerate(order))
    assert (order == list(range(SIZE))) == (window == 1)


def test_mixing_distance_reaches_the_window_and_no_further() -> None:
    moved = np.array(values(shuffled(50, 5000))) - np.arange(5000)
    assert np.abs(moved).max() == 49
    assert abs(moved.std() - (50**2 / 6) ** 0.5) < 1  # of two independent places in a window


def test_epochs_windows_and_seeds_differ() -> None:
    one = shuffled()
    orders = []
    for epoch in (0, 1):
        one.set_epoch(epoch)
        orders.append(values(one))
    one.set_epoch(0)
    assert values(one) == orders[0] != orders[1]
    within = [tuple(v % 5 for v in orders[0][at : at + 5]) for at in range(0, 20, 5)]
    assert len(set(within)) > 1
    other = shuffled(seed=4)
    other.set_epoch(0)
    assert values(other) not in orders


@pytest.mark.parametrize("window", [1, 5, 100])
def test_resumed_after_every_item_the_rest_is_the_same(window: int) -> None:
    whole = list(shuffled(window))
    for stop in range(SIZE + 1):
        first = iter(shuffled(window))
        taken = [next(first) for _ in range(stop)]
        state = json.loads(json.dumps(first.state_dict()))
        again = shuffled(window)
        rest = iter(again)
        if stop:
            rest.load_state_dict(state)
            assert rest.state_dict() == state
        assert taken + list(rest) == whole, stop


def test_no_item_is_saved_and_at_most_a_window_is_read_again() -> None:
    class Counted(Stream):
        reads = 0

        def __iter__(self) -> Iterator[Any]:
            for item in super().__iter__():
                Counted.reads += 1
                yield item

        def state_dict(self) -> dict[str, Any]:
            return {"next": self.state["next"], "seen": []}

    first = iter(shuffled(50, 1000, dataset=Counted(1000)))
    for _ in range(820):
        next(first)
    state = first.state_dict()
    assert len(json.dumps(state)) < 300
    again = iter(shuffled(50, 1000, dataset=Counted(1000)))
    again.load_state_dict(state)
    Counted.reads = 0
    assert next(again)[0] == next(first)[0]
    assert Counted.reads == 50


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_loader_killed_after_any_batch_goes_on_as_if_nothing_had_been(workers: int, ahead: int) -> None:
    whole = epochs(2, workers)
    stops = range(len(whole)) if workers == 0 else (0, 1, 3, len(whole) // 2 + 1)
    for stop in stops:
        assert interrupted(lambda: loader(workers), stop, len(whole), ahead=ahead) == whole, stop


def test_the_loader_promises_it_bit_for_bit() -> None:
    assert loader().guarantees is Promise.BITWISE
    first, second = epochs(2)[:6], epochs(2)[6:]
    one, two = ([value for batch in part for value in values(batch)] for part in (first, second))
    assert sorted(one) == sorted(two) == list(range(SIZE))
    assert one != two


def test_a_plain_stateful_loader_resumes_too() -> None:
    def plain() -> Any:
        return StatefulDataLoader(shuffled(), 4, collate_fn=listed)

    whole = list(plain())
    for stop in range(1, len(whole)):
        first = plain()
        taken = [batch for _, batch in zip(range(stop), first, strict=False)]
        second = plain()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert taken + list(second) == whole, stop


def test_an_upstream_whose_iterator_has_the_state() -> None:
    whole = list(shuffled(dataset=OwnIterator(), window=4))
    assert sorted(whole) == list(range(10))
    first = iter(shuffled(dataset=OwnIterator(), window=4))
    taken = [next(first) for _ in range(6)]
    again = iter(shuffled(dataset=OwnIterator(), window=4))
    again.load_state_dict(first.state_dict())
    assert taken + list(again) == whole


def test_reading_a_window_draws_nothing_from_the_streams_of_whoever_reads() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = list(shuffled())
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected
    assert list(shuffled()) == first  # and what the upstream draws is its own


def test_what_cannot_continue_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"Stateless.*state_dict"):
        shuffled(dataset=Stateless(5))
    with pytest.raises(UsageError, match="window of 0"):
        shuffled(0)
    with pytest.raises(SpecMismatchError, match=r"'window': 5.*'window': 6"):
        shuffled(6).load_state_dict(shuffled(5).state_dict())
    first = iter(shuffled())
    for _ in range(8):
        next(first)
    later = shuffled()
    later.set_epoch(1)
    with pytest.raises(SpecMismatchError, match="epoch 0, and this is epoch 1"):
        iter(later).load_state_dict(first.state_dict())
    shorter = iter(shuffled(size=7))
    shorter.load_state_dict(first.state_dict())
    with pytest.raises(OrderError, match="window 1 of the stream has 2 items, of which 3"):
        next(shorter)


@pytest.mark.parametrize("size", [30, 32, 36])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_begins_anew_after_its_end_is_not_read_again(workers: int, size: int) -> None:
    def make() -> DurableLoader:
        return loader(workers, window=12, dataset=Anew(size))

    whole = [batch for first in (make(),) for _ in range(2) for batch in train(first)]
    half = len(whole) // 2
    for stop in range(half + 2) if not workers else range(half - 2, half + 2):
        assert interrupted(make, stop, len(whole), ahead=1) == whole, stop


def test_by_hand_a_shuffled_stream_that_ended_has_ended() -> None:
    first = iter(shuffled(5, dataset=Anew(8)))
    assert len(list(first)) == 8 and list(first) == []
    again = iter(shuffled(5, dataset=Anew(8)))
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert list(again) == []
