"""A user's own sampler with a state: over the ends of epochs, epochs left early, lengths that are guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from data_samples import Counting, Generating, Plain, interrupted, listed, train
from torch.utils.data import BatchSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from durable_core.data import DurableLoader, DurableSampler
from durable_core.errors import SpecMismatchError

SIZE = 12


def make(sampler: Any, workers: int = 0, **more: Any) -> DurableLoader:
    batching = {"batch_size": 4, **more}
    return DurableLoader(
        Plain(SIZE), sampler=sampler, seed=1, num_workers=workers, collate_fn=listed, **batching
    )


class Kept(Generating):
    """Takes note of its end only at the next ``iter``, as generators do whose last item was just taken."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        if not self.order:
            self.order, self.at = self.generator.sample(range(self.size), self.size), 0
        while self.at < self.size:
            self.at += 1
            yield self.order[self.at - 1]
        self.order = []

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.at = state["at"]


class Once(Counting):
    """Its state at an end says that nothing is left, until it is iterated again; no ``set_epoch``."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.loaded: int | None = None

    def __iter__(self) -> Iterator[int]:
        self.position, self.loaded = self.loaded or 0, None
        while self.position < self.size:
            self.position += 1
            yield self.position - 1

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["position"]


def torchdatas(size: int) -> Any:
    return StatefulDistributedSampler(Plain(size), num_replicas=1, rank=0, seed=3)


def ours(size: int) -> Any:
    return DurableSampler(size, batch_size=4, seed=3)


SAMPLERS: list[Callable[[int], Any]] = [Generating, Kept, Counting, Once, torchdatas, ours]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [12, 10])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_killed_after_any_batch_the_epochs_go_on(sampler: Any, size: int, drop_last: bool) -> None:
    def loader() -> DurableLoader:
        return make(sampler(size), drop_last=drop_last)

    first = loader()
    whole = [batch for _ in range(3) for batch in train(first)]
    assert len(whole) == 3 * (size // 4 if drop_last else 3)
    if not drop_last:
        assert all(len({i for b in whole[e : e + 3] for i in b}) == size for e in (0, 3, 6))
    for stop in range(len(whole)):
        for ahead in (0, 1):
            assert interrupted(loader, stop, len(whole), ahead=ahead) == whole, stop


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_epoch_left_early_is_left_alike_by_any_number_of_workers(sampler: Any) -> None:
    def lives(workers: int, restarted: bool) -> list[Any]:
        loader, taken = make(sampler(SIZE), workers), []
        for epoch in range(3):
            taken.append(train(loader, 2 if epoch < 2 else None, step=10 * epoch, ahead=epoch))
            loader.end_epoch()
            if restarted:
                state = loader.state_dict()
                loader = make(sampler(SIZE), workers)
                loader.load_state_dict(state)
        return taken

    alone = lives(0, restarted=False)
    assert lives(0, restarted=True) == alone
    assert lives(2, restarted=False) == alone


def test_a_pass_of_which_nothing_was_trained_is_the_same_again() -> None:
    loader = make(Generating(SIZE))
    first = next(iter(loader))
    assert next(iter(loader)) == first
    assert len(train(loader)) == 3


def test_a_new_order_in_every_epoch() -> None:
    for sampler in (Generating, torchdatas, ours):
        loader = make(sampler(SIZE))
        epochs = [train(loader) for _ in range(3)]
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


class Guessing(BatchSampler):
    """A batch sampler whose length is an estimate, as those that make batches by length have one."""

    def __init__(self, guess: int) -> None:
        self.guess = guess

    def __len__(self) -> int:
        return self.guess

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], [3], [4, 5], [6, 7, 8], [9, 10, 11]])


@pytest.mark.parametrize("guess", [1, 4, 5, 9])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_length_that_is_a_guess_cuts_nothing_off(guess: int, workers: int) -> None:
    def loader() -> DurableLoader:
        return make(Guessing(guess), workers, batch_size=None, promise="distribution")

    first = loader()
    whole = train(first) + train(first)
    assert (len(first), len(whole), first.cursor.epoch) == (guess, 10, 2)
    for stop in range(10) if not workers else (4, 5):
        assert interrupted(loader, stop, 10) == whole, stop


def test_an_epoch_that_has_nothing_is_passed_over() -> None:
    class Sometimes(Counting):
        def set_epoch(self, epoch: int) -> None:
            self.size = 0 if epoch == 1 else SIZE

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.size))

    loader = make(Sometimes(SIZE))
    assert [len(train(loader, 1 if epoch == 0 else None, step=9 * epoch)) for epoch in range(3)] == [1, 0, 3]
    rows = [(row.epoch, row.batch, row.abandoned) for row in loader.drain_rows()]
    assert rows == [(0, 0, False), (0, 1, True), *((2, k, False) for k in range(3))]


def test_a_state_that_was_not_recorded_is_missed_at_the_beginning_of_an_epoch_too() -> None:
    loader = make(Generating(SIZE))
    train(loader)
    again = make(Generating(SIZE))
    again.load_state_dict({**loader.state_dict(), "source": {"workers": None, "state": None}})
    with pytest.raises(SpecMismatchError, match="no state was recorded"):
        train(again)


def test_the_state_after_the_last_batch_is_that_at_the_samplers_end() -> None:
    loader = make(Generating(10), drop_last=True)
    assert len(train(loader)) == 2
    assert loader.state_dict()["source"]["state"]["order"] == []  # two were left, and dropped
