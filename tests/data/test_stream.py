"""Iterable datasets with a state of their own: exact per batch handed over, not per batch fetched."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest
import torch
from data_samples import Anew, Stateless, Stream, interrupted, listed, train
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from durable_core.data import DurableLoader, sample_rng
from durable_core.data.loader.sources.iterable import StreamFetcher
from durable_core.errors import SpecMismatchError, UnsupportedError, UsageError
from durable_core.types import Promise


def make(workers: int = 0, size: int = 23, batch_size: int | None = 4, **more: Any) -> DurableLoader:
    kind = more.pop("kind", DataLoader)
    given = kind(
        more.pop("dataset", None) or Stream(size),
        batch_size,
        num_workers=workers,
        collate_fn=None if batch_size is None else listed,
        **more,
    )
    return DurableLoader.from_dataloader(given, seed=5)


def epochs(count: int, *args: Any, **more: Any) -> list[Any]:
    loader = make(*args, **more)
    return [batch for _ in range(count) for batch in train(loader)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_resume_after_every_batch_with_batches_fetched_ahead(workers: int, ahead: int) -> None:
    whole = epochs(2, workers, size=15)
    stops = range(len(whole)) if workers == 0 else (0, 1, len(whole) // 2, len(whole) // 2 + 2)
    for stop in stops:
        taken = interrupted(lambda: make(workers, size=15), stop, len(whole), ahead=ahead)
        assert taken == whole, stop


def test_every_sample_once_and_ids_unique() -> None:
    for workers in (0, 2):
        loader = make(workers)
        batches = train(loader)
        assert sorted(value for batch in batches for value, *_ in batch) == list(range(23))
        ids = [i for row in loader.drain_rows() for i in row.ids.tolist()]
        assert len(set(ids)) == 23
        assert (loader.cursor.epoch, loader.cursor.batch, loader.cursor.consumed_samples) == (1, 0, 23)


def test_a_stateful_loader_and_drop_last_are_read_too() -> None:
    assert epochs(2, kind=StatefulDataLoader) == epochs(2)
    assert len(epochs(1, drop_last=True)) == 5


def test_draws_do_not_depend_on_what_the_training_draws() -> None:
    random.seed(1), torch.manual_seed(1)
    expected = random.random(), torch.rand(()).item()
    random.seed(1), torch.manual_seed(1)
    first = epochs(1)
    assert (random.random(), torch.rand(()).item()) == expected
    assert first == epochs(1)
    draws = [sample[2:] for batch in epochs(2) for sample in batch]
    assert len(set(draws)) == 46


def test_a_dataset_that_makes_its_own_batches() -> None:
    loader = make(batch_size=None)
    values = [value for value, *_ in train(loader)]
    assert values == list(range(23))
    assert (loader.global_batch, loader.cursor.consumed_samples) == (1, 23)


def test_the_length_is_not_known() -> None:
    loader = make()
    with pytest.raises(TypeError):
        len(loader)
    assert loader.streaming and loader.guarantees is Promise.BITWISE


def test_a_save_at_the_unknown_end_of_an_epoch() -> None:
    loader = make()
    train(loader, 6)  # all there are, but only the next call would tell
    again = make()
    again.load_state_dict(loader.state_dict())
    assert train(again) == [] and (again.cursor.epoch, again.cursor.batch) == (1, 0)
    assert train(again) == epochs(2)[6:]

    unread = make()
    unread.load_state_dict(loader.state_dict())
    iter(unread)
    unread.end_epoch()  # left without reading: its position must not leak into the next epoch
    assert train(unread) == epochs(2)[6:]


def test_another_number_of_workers_is_refused_by_name() -> None:
    loader = make(2)
    train(loader, 2)
    with pytest.raises(SpecMismatchError, match=r"2 workers and now by 1.*num_workers=2"):
        make(0).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("dataset", [Stream, lambda size: OwnIterator()])
def test_one_worker_and_none_are_the_same(dataset: Any) -> None:
    whole = epochs(2, 0, dataset=dataset(23))
    assert epochs(2, 1, dataset=dataset(23)) == whole
    for stop in (0, 1, 2, len(whole) // 2, len(whole) // 2 + 1):
        for lives in ((0, 1), (1, 0)):
            workers = iter(lives)

            def next_life(workers: Any = workers) -> DurableLoader:
                return make(next(workers), dataset=dataset(23))

            assert interrupted(next_life, stop, len(whole), ahead=1) == whole, (stop, lives)


def test_a_state_as_earlier_versions_wrote_it_is_read() -> None:
    loader = make()
    train(loader, 2)
    state = loader.state_dict()
    old = {"fetcher_state": {"dataset_iter_state": state["source"]["state"], "fetcher_ended": False}}
    again = make()
    again.load_state_dict({**state, "source": {"workers": 0, "state": old}})
    assert train(again) == epochs(1)[2:]


@pytest.mark.parametrize("workers", [0, 2])
def test_replicas_that_read_it_all_share_each_global_batch(workers: int) -> None:
    def part(replica: int, replicas: int) -> DurableLoader:
        return DurableLoader(
            Stream(40), 12 // replicas, seed=5, num_workers=workers, collate_fn=listed, drop_last=True,
            stream_shares=True, replica=replica, replicas=replicas,
        )  # fmt: skip

    one = part(0, 1)
    whole = train(one)
    for replicas in (2, 3):
        shares = []
        for replica in range(replicas):
            before = part(0, 1)
            train(before, 1)
            after = part(replica, replicas)
            after.load_state_dict(before.state_dict())
            shares.append(train(after))
            assert after.cursor.consumed_samples == one.cursor.consumed_samples
        assert [list(chain(*parts)) for parts in zip(*shares, strict=True)] == whole[1:]


def test_a_stream_is_shared_only_on_demand_and_in_full_batches() -> None:
    with pytest.raises(UnsupportedError, match="stream_shares=True"):
        DurableLoader(Stream(9), 2, replicas=2, seed=5)
    with pytest.raises(UnsupportedError, match="drop_last=True"):
        DurableLoader(Stream(9), 2, replicas=2, seed=5, stream_shares=True)


class Handled(IterableDataset[float]):
    """Draws through the handle."""

    def __iter__(self) -> Any:
        return (sample_rng().python.random() for _ in range(6))


@pytest.mark.parametrize("workers", [0, 1])
def test_items_of_a_stream_have_generators_of_their_own(workers: int) -> None:
    given = DataLoader(Handled(), 3, num_workers=workers, collate_fn=listed)
    loader = DurableLoader.from_dataloader(given, seed=5, promise="distribution")
    draws = [value for batch in train(loader) for value in batch]
    assert len(set(draws)) == 6
    again = DurableLoader.from_dataloader(given, seed=5, promise="distribution")
    assert [value for batch in train(again) for value in batch] == draws


def test_an_epoch_left_early_begins_anew() -> None:
    for workers in (0, 2):
        loader = make(workers)
        train(loader, 2)
        assert train(loader) == epochs(2, workers)[6:]


class OwnIterator(IterableDataset[int]):
    """The iterator has the state; the dataset only remembers nothing."""

    class Walk:
        def __init__(self) -> None:
            self.position = 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            if self.position == 10:
                raise StopIteration
            self.position += 1
            return self.position - 1

        def state_dict(self) -> dict[str, int]:
            return {"position": self.position}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.position = state["position"]

    def __iter__(self) -> Any:
        return self.Walk()

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {}


def test_an_iterator_with_its_own_state() -> None:
    loader = make(dataset=OwnIterator())
    assert train(loader, 1) == [[0, 1, 2, 3]]
    again = make(dataset=OwnIterator())
    again.load_state_dict(loader.state_dict())
    assert train(again) == [[4, 5, 6, 7], [8, 9]]


class Carrying(Stream):
    """Goes on where it stopped, for ever, unless its state is put back."""

    def __iter__(self) -> Any:
        self.loaded = True
        return super().__iter__()


def test_every_epoch_begins_from_the_dataset_as_given() -> None:
    values = [[value for value, *_ in batch] for batch in epochs(2, dataset=Carrying(8))]
    assert values == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


class Once(IterableDataset[int]):
    def __init__(self) -> None:
        self.iterator = iter(range(3))

    def __iter__(self) -> Any:
        return self.iterator


def test_an_iterator_that_cannot_begin_anew_is_an_error_not_an_empty_epoch() -> None:
    given = DataLoader(Once(), 2, collate_fn=listed)
    loader = DurableLoader.from_dataloader(given, seed=5, promise="distribution")
    train(loader)
    with pytest.raises(UsageError, match="begin anew"):
        train(loader)


class Epochs(Stream):
    """Another order in every epoch, as told by ``set_epoch``."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return ((value + 100 * self.epoch, *rest) for value, *rest in super().__iter__())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_dataset_is_told_the_epoch(workers: int) -> None:
    whole = epochs(3, workers, dataset=Epochs(7))
    assert sorted(value for batch in whole for value, *_ in batch) == [
        i + 100 * e for e in range(3) for i in range(7)
    ]
    for stop in (2, 3):
        assert interrupted(lambda: make(workers, dataset=Epochs(7)), stop, len(whole)) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_without_state_items_are_passed_over_under_the_weakest_promise(workers: int) -> None:
    def loader() -> DurableLoader:
        given = DataLoader(Stateless(9), 2, num_workers=workers, collate_fn=listed)
        return DurableLoader.from_dataloader(given, seed=5, promise="distribution")

    whole = train(loader())
    first = loader()
    train(first, 3)
    again = loader()
    again.load_state_dict(first.state_dict())
    assert train(again) == whole[3:]
    assert again.guarantees is Promise.DISTRIBUTION


# --- streams that begin anew after their end ------------------------------------------------------


def anew(workers: int, size: int, batch_size: int | None = 4, **more: Any) -> DurableLoader:
    return DurableLoader(Anew(size), batch_size, seed=5, num_workers=workers, collate_fn=listed, **more)


@pytest.mark.parametrize("size", [30, 32])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_ended_is_not_read_again(workers: int, drop_last: bool, size: int) -> None:
    def make() -> DurableLoader:
        return anew(workers, size, drop_last=drop_last)

    first = make()
    whole = [batch for _ in range(2) for batch in train(first)]
    for stop in range(len(whole)) if not workers else (len(whole) // 2, len(whole) // 2 + 1):
        assert interrupted(make, stop, len(whole)) == whole, stop
        assert interrupted(make, stop, len(whole), ahead=2) == whole, stop


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than there are processors
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_worker_that_ended_before_the_others_does_not_read_its_part_again(
    workers: int, drop_last: bool
) -> None:
    def make() -> DurableLoader:
        return anew(workers, 18, drop_last=drop_last)

    first = make()
    whole = [batch for _ in range(2) for batch in train(first)]
    for stop in range(1, len(whole) // 2 + 2):
        assert interrupted(make, stop, len(whole), ahead=stop % 2) == whole, stop


def test_a_stream_that_makes_its_own_batches_is_not_read_again_either() -> None:
    def make() -> DurableLoader:
        return DurableLoader(Anew(6), None, seed=5)

    whole = [batch for first in (make(),) for _ in range(2) for batch in train(first)]
    for stop in range(1, 8):
        assert interrupted(make, stop, 12) == whole, stop


def test_the_state_of_an_iterator_at_its_end_says_so() -> None:
    iterator = iter(StreamFetcher(Anew(2), None))
    assert not iterator.state_dict()["ended"]
    assert len(list(iterator)) == 2 and list(iterator) == []  # not even in the same life
    state = iterator.state_dict()
    assert (state["ended"], state["ordinal"]) == (True, 2)
    again = iter(StreamFetcher(Anew(2), None))
    again.load_state_dict(state)
    assert list(again) == [] and again.state_dict() == state
