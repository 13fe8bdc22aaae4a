"""A user's plain DataLoader made durable, or refused with the way out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from data_samples import Backwards, Counting, Drawing, Plain, Stateless, Stream, interrupted, listed, train
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from durable_core.data import DurableLoader
from durable_core.errors import SpecMismatchError, UnsupportedError
from durable_core.types import Promise

SIZE = 20


def plain(**more: Any) -> DataLoader[Any]:
    return DataLoader(more.pop("dataset", None) or Drawing(SIZE), **{"collate_fn": listed, **more})


def same(loader: DurableLoader, **more: Any) -> bool:
    """Whether it gives what a DurableLoader made by hand gives."""
    hand = DurableLoader(Drawing(SIZE), **{"collate_fn": listed, "batch_size": 4, "seed": 5, **more})
    return train(loader) == train(hand)


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_a_plain_loader_keeps_its_batches_and_settings(kind: Any, shuffle: bool, drop_last: bool) -> None:
    size = 22
    given = kind(
        Plain(size),
        4,
        shuffle=shuffle,
        drop_last=drop_last,
        num_workers=1,
        prefetch_factor=3,
        collate_fn=listed,
    )
    loader = DurableLoader.from_dataloader(given, seed=5)
    hand = DurableLoader(Plain(size), 4, shuffle=shuffle, drop_last=drop_last, seed=5, collate_fn=listed)
    assert len(loader) == len(given) == len(hand)
    assert (loader.num_workers, loader.batch_size, loader.dataset) == (1, 4, given.dataset)
    assert train(loader) == train(hand)


@pytest.mark.parametrize("kind", [DistributedSampler, StatefulDistributedSampler])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_distributed_sampler_names_the_replica_and_gives_way(kind: Any, shuffle: bool) -> None:
    data = Drawing(SIZE)
    shares = []
    for rank in range(2):
        sampler = kind(data, num_replicas=2, rank=rank, shuffle=shuffle, seed=5)
        loader = DurableLoader.from_dataloader(plain(dataset=data, batch_size=2, sampler=sampler))
        assert (loader.replica, loader.replicas, loader.seed, loader.global_batch) == (rank, 2, 5, 4)
        shares.append(train(loader))
    whole = DurableLoader(Drawing(SIZE), 4, shuffle=shuffle, seed=5, collate_fn=listed)
    assert [a + b for a, b in zip(*shares, strict=True)] == train(whole)


def test_a_given_place_goes_before_the_samplers() -> None:
    sampler = DistributedSampler(Drawing(SIZE), num_replicas=4, rank=3, seed=1)
    loader = DurableLoader.from_dataloader(
        plain(batch_size=2, sampler=sampler), replica=0, replicas=2, seed=9
    )
    assert (loader.replica, loader.replicas, loader.seed) == (0, 2, 9)


@pytest.mark.parametrize(
    ("kind", "drop_last", "drop_tail", "remainder"),
    [
        (21, False, False, "wrap"),
        (22, False, False, "short"),
        (21, True, False, "drop"),
        (21, False, True, "drop"),
    ],
)
def test_a_last_batch_that_replicas_cannot_share(
    kind: int, drop_last: bool, drop_tail: bool, remainder: str
) -> None:
    data = Plain(kind)
    sampler = DistributedSampler(data, num_replicas=2, rank=0, drop_last=drop_tail)
    given = DataLoader(data, 2, sampler=sampler, drop_last=drop_last)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DurableLoader.from_dataloader(given)
    assert loader.cursor.remainder == remainder
    assert [("3 samples are seen twice" in str(w.message)) for w in caught] == [True] * (remainder == "wrap")


def test_a_remainder_that_is_given_is_not_warned_of() -> None:
    given = DataLoader(Plain(9), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DurableLoader.from_dataloader(given, replica=0, replicas=2, seed=1, remainder="wrap")
    assert loader.cursor.remainder == "wrap"


def test_a_batch_sampler_that_is_an_ordinary_one_is_read() -> None:
    sampler = BatchSampler(RandomSampler(Drawing(SIZE)), 4, True)
    assert same(DurableLoader.from_dataloader(plain(batch_sampler=sampler), seed=5))


def test_default_collation_and_seed() -> None:
    torch.manual_seed(77)
    loader = DurableLoader.from_dataloader(DataLoader(Plain(SIZE), 4, shuffle=True))
    assert loader.seed == 77
    assert isinstance(next(iter(loader)), torch.Tensor)


def test_a_durable_loader_is_bound() -> None:
    mine = DurableLoader(Drawing(SIZE), 2, seed=1, collate_fn=listed)
    assert DurableLoader.from_dataloader(mine, replica=0, replicas=2, seed=5) is mine
    assert (mine.global_batch, mine.seed) == (4, 5)


class OwnWay(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([1, 2])


class OwnCollate(DataLoader[Any]):
    """What graph libraries do: a subclass that only sets things up."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, 4, shuffle=True, collate_fn=listed)


class Jumpy(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(sorted(super().__iter__()))


def test_a_subclass_that_only_sets_things_up_is_fine() -> None:
    assert same(DurableLoader.from_dataloader(OwnCollate(Drawing(SIZE)), seed=5))


REFUSED: dict[str, tuple[Any, str]] = {
    "no loader": (lambda: [1, 2, 3], "build a DurableLoader"),
    "own iteration": (lambda: OwnWay(Plain(SIZE)), "plain DataLoader"),
    "out of order": (lambda: plain(num_workers=1, in_order=False), "in_order=True"),
    "no batches": (lambda: DataLoader(Plain(SIZE), batch_size=None), "pass batch_size"),
    "custom sampler": (lambda: plain(sampler=Backwards(SIZE)), r"state_dict\(\).*distribution"),
    "custom batch sampler": (
        lambda: plain(batch_sampler=BatchSampler(Backwards(SIZE), 4, False)),
        r"Backwards.*state_dict\(\)",
    ),
    "random subclass": (lambda: plain(sampler=Jumpy(Plain(SIZE))), "Jumpy.*shuffle=True"),
    "weighted": (lambda: plain(sampler=WeightedRandomSampler([1.0] * SIZE, SIZE)), "Weighted.*distribution"),
    "subset": (lambda: plain(sampler=SubsetRandomSampler([1, 2])), "SubsetRandomSampler"),
    "replacement": (
        lambda: plain(sampler=RandomSampler(Plain(SIZE), replacement=True)),
        "replacement.*limit",
    ),
    "part": (lambda: plain(sampler=RandomSampler(Plain(SIZE), num_samples=5)), "a part of the dataset"),
    "more": (lambda: plain(sampler=RandomSampler(Plain(SIZE), num_samples=50)), "limit the batches"),
    "another dataset": (lambda: plain(sampler=SequentialSampler(Plain(SIZE - 1))), "from another one"),
    "stateless stream": (lambda: DataLoader(Stateless(SIZE)), r"map-style.*distribution"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused_with_the_way_out(name: str) -> None:
    make, message = REFUSED[name]
    for promise in ("bitwise", "exact-order", "coverage"):
        with pytest.raises(UnsupportedError, match=message):
            DurableLoader.from_dataloader(make(), promise=promise, seed=1)


@pytest.mark.parametrize("make", [lambda: Stream(9), lambda: Backwards(SIZE)])
def test_what_orders_itself_cannot_be_shared_out(make: Any) -> None:
    item = make()
    given = DataLoader(item) if isinstance(item, Stream) else plain(sampler=item)
    with pytest.raises(UnsupportedError, match="cannot be shared out"):
        DurableLoader.from_dataloader(given, replica=0, replicas=2, seed=1, promise="distribution")


# --- accepted: samplers with state, and others under the weakest promise ------------------------


def resumed_equals_whole(make: Any, promise: str, epochs: int = 3) -> DurableLoader:
    def loader() -> DurableLoader:
        return DurableLoader.from_dataloader(make(), seed=5, promise=promise)

    first = loader()
    whole = [batch for _ in range(epochs) for batch in train(first)]
    for stop in range(len(whole)):
        assert interrupted(loader, stop, len(whole), ahead=1) == whole, stop
    return first


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_with_state_is_exact(workers: int) -> None:
    loader = resumed_equals_whole(
        lambda: plain(sampler=Counting(SIZE), batch_size=6, num_workers=workers), "bitwise", 2
    )
    assert loader.guarantees is Promise.BITWISE and len(loader) == 4
    assert isinstance(loader.sampler, Counting)


class Lists(Counting):
    """A batch sampler with state."""

    def __iter__(self) -> Iterator[Any]:
        for value in super().__iter__():
            yield [value, (value + 1) % self.size]


def test_a_batch_sampler_with_state_is_exact() -> None:
    loader = resumed_equals_whole(lambda: plain(batch_sampler=Lists(7)), "bitwise")
    assert loader.global_batch == 0 and loader.cursor.order == "sampler_v1:Lists"


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: Backwards(SIZE),
        lambda: WeightedRandomSampler([1.0] * SIZE, 13),
        lambda: SubsetRandomSampler(range(11)),
        lambda: RandomSampler(Plain(SIZE), num_samples=33),
    ],
)
@pytest.mark.parametrize("drop_last", [True, False])
def test_samplers_without_state_go_on_in_place_under_the_weakest_promise(
    sampler: Any, drop_last: bool
) -> None:
    def make() -> DataLoader[Any]:
        return plain(sampler=sampler(), batch_size=4, drop_last=drop_last)

    loader = resumed_equals_whole(make, "distribution", 2)  # they draw from the seeded streams only
    state = torch.get_rng_state()
    train(DurableLoader.from_dataloader(make(), promise="distribution"))
    assert torch.equal(torch.get_rng_state(), state)
    assert loader.guarantees is Promise.DISTRIBUTION and len(loader) == len(make())
    assert loader.cursor.epoch == 2


def test_a_stateful_sampler_needs_its_state_back() -> None:
    def make() -> DurableLoader:
        return DurableLoader.from_dataloader(plain(sampler=Counting(SIZE), batch_size=4), seed=5)

    loader = make()
    train(loader, 2)
    state = loader.state_dict()
    state["source"] = {"workers": None, "state": None}
    again = make()
    again.load_state_dict(state)
    with pytest.raises(SpecMismatchError, match="no state was recorded"):
        train(again)


class Unsized(Counting):
    def __len__(self) -> int:
        raise TypeError("who knows")


def test_a_sampler_whose_length_nobody_knows() -> None:
    loader = resumed_equals_whole(lambda: plain(sampler=Unsized(SIZE), batch_size=6), "bitwise", 2)
    with pytest.raises(TypeError):
        len(loader)
    assert loader.cursor.epoch == 2
