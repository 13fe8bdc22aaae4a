"""buffered_v1: a bounded shuffle whose buffer is its state, resumed from any batch as if nothing had been."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import order_oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.data.order import MAX_SIZE
from durable_core.data.order.blocks import MAX_RUNS
from durable_core.data.order.buffered import BUFFERED, MAX_STATE, BufferedSequence
from durable_core.data.sequence import State
from durable_core.errors import FormatError, SpecMismatchError, UnsupportedError, UsageError

BLOCKS = [7, 0, 12, 1, 30, 5, 0, 22]
SIZE = sum(BLOCKS)


def made(blocks: Any = BLOCKS, buffer: int = 10, seed: int = 3, dataset_id: str = "d") -> BufferedSequence:
    return BufferedSequence(blocks, buffer=buffer, dataset_id=dataset_id, seed=seed)


def run(sequence: BufferedSequence, state: State, count: int) -> tuple[list[list[int]], list[State]]:
    """Batches of ``count`` to the end of the epoch, and the state before each."""
    batches, states = [], [state]
    while True:
        batch, state = sequence.take(states[-1], count)
        if not len(batch):
            return batches, states[:-1]
        batches.append(batch.ids.tolist())
        states.append(state)


GOLDEN = {
    # (epoch, buffer): the first twelve ids of BLOCKS for dataset "golden", seed 7
    (0, 1): [55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66],
    (0, 10): [12, 11, 8, 10, 17, 57, 7, 15, 13, 9, 14, 60],
    (1, 10): [24, 30, 21, 26, 25, 22, 29, 32, 36, 33, 37, 31],
    (0, 1000): [5, 57, 71, 65, 14, 67, 31, 43, 35, 61, 0, 20],
}


@pytest.mark.parametrize(("where", "ids"), GOLDEN.items())
def test_golden_vectors_never_change(where: tuple[int, int], ids: list[int]) -> None:
    epoch, buffer = where
    sequence = made(buffer=buffer, seed=7, dataset_id="golden")
    assert sequence.take(sequence.start(epoch), 12)[0].ids.tolist() == ids


@given(
    blocks=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    buffer=st.integers(1, 80),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=100, deadline=None)
def test_the_scalar_twin_agrees(blocks: list[int], buffer: int, seed: int) -> None:
    sequence = made(blocks, buffer, seed)
    ids = sequence.take(sequence.start(3), 100)[0].ids.tolist()
    assert ids == order_oracles.buffered(blocks, 3, buffer=buffer, dataset_id="d", seed=seed)


@pytest.mark.parametrize("buffer", [1, 2, 10, SIZE - 1, SIZE, SIZE + 50])
@pytest.mark.parametrize("count", [1, 4, 100])
def test_every_record_once_in_every_epoch(buffer: int, count: int) -> None:
    sequence = made(buffer=buffer)
    epochs = []
    for epoch in (0, 1):
        batches, _ = run(sequence, sequence.start(epoch), count)
        epochs.append([i for batch in batches for i in batch])
        assert sorted(epochs[-1]) == list(range(SIZE))
        assert [len(batch) for batch in batches[:-1]] == [count] * (len(batches) - 1)
        assert len(batches) == sequence.batches(count)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("buffer", [1, 10, SIZE])
def test_killed_after_any_batch_the_rest_is_the_same(buffer: int) -> None:
    sequence = made(buffer=buffer)
    whole, states = run(sequence, sequence.start(2), 4)
    filled = 0
    for k, state in enumerate(states):
        saved = json.loads(json.dumps(state))  # what a checkpoint keeps
        filled += len(saved["buffer"]) == buffer
        assert run(made(buffer=buffer), saved, 4)[0] == whole[k:]
    assert filled  # the buffer was full at some of the kills


def test_take_changes_no_state_and_batch_sizes_do_not_matter() -> None:
    sequence = made()
    state = sequence.start(0)
    before = json.dumps(state)
    first = sequence.take(state, 30)
    again = sequence.take(state, 30)
    assert json.dumps(state) == before
    assert first[0].ids.tolist() == again[0].ids.tolist() and first[1] == again[1]
    ones, _ = run(sequence, state, 1)
    assert [i for batch in ones[:30] for i in batch] == first[0].ids.tolist()
    assert first[0].epochs.tolist() == [0] * 30


def test_beyond_the_end_there_is_nothing() -> None:
    sequence = made()
    batch, state = sequence.take(sequence.start(0), SIZE + 5)
    assert len(batch) == SIZE and state == {"epoch": 0, "position": SIZE, "buffer": []}
    assert len(sequence.take(state, 3)[0]) == 0


def test_mixing_distance_is_what_is_documented() -> None:
    size, buffer = 20_000, 500
    sequence = made([size], buffer=buffer)  # one object: the stream is 0, 1, 2, ...
    ids = sequence.take(sequence.start(0), size)[0].ids
    moved = np.arange(size) - ids  # positive: later than its place in the stream
    assert moved.min() == 1 - buffer
    steady = moved[ids < size - 10 * buffer]
    steady = steady[buffer:]
    assert abs(steady.mean()) < 0.1 * buffer  # waits B on average, after entering B places ahead
    assert 0.9 < steady.std() / buffer < 1.1
    assert moved.max() > 4 * buffer  # no bound behind


def test_it_is_no_full_permutation() -> None:
    """A first batch only ever holds records that were read first: why the name does not say permutation."""
    reach = set()
    for seed in range(200):
        sequence = made([1000], buffer=20, seed=seed)
        reach |= set(sequence.take(sequence.start(0), 10)[0].ids.tolist())
    assert max(reach) < 30


def test_places_of_the_buffer_are_drawn_evenly() -> None:
    sequence = made([200_000], buffer=64)
    draws = sequence._draws(0, 0, 100_000)
    counts = np.bincount(draws, minlength=64)
    chi = float(((counts - 100_000 / 64) ** 2 / (100_000 / 64)).sum())
    assert 63 - 4 * (2 * 63) ** 0.5 < chi < 63 + 4 * (2 * 63) ** 0.5
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4 / 100_000**0.5


def test_seed_and_epoch_never_alias() -> None:
    taken = set()
    for seed, epoch, dataset in ((0, 1, "d"), (1, 0, "d"), (1, 1, "d"), (0, 1, "e")):
        sequence = made(seed=seed, dataset_id=dataset)
        taken.add(tuple(sequence.take(sequence.start(epoch), SIZE)[0].ids.tolist()))
    assert len(taken) == 4


def test_its_description_makes_it_again() -> None:
    sequence = made(seed=9)
    said = json.loads(json.dumps(sequence.description))
    again = BufferedSequence.from_description(said, seed=9)
    assert (again.name, again.description) == (sequence.name, said)
    assert (
        again.take(again.start(1), 20)[0].ids.tolist() == sequence.take(sequence.start(1), 20)[0].ids.tolist()
    )
    assert sequence.name.startswith(f"{BUFFERED}:10:")
    with pytest.raises(SpecMismatchError, match="another window, or other objects"):
        BufferedSequence.from_description({**said, "blocks": [[1, SIZE]]}, seed=9)
    with pytest.raises(FormatError):
        BufferedSequence.from_description({**said, "name": BUFFERED}, seed=9)


def test_too_many_objects_to_say_are_asked_for() -> None:
    blocks = np.arange(1, MAX_RUNS + 2)
    said = made(blocks).description
    assert said["blocks"] is None
    with pytest.raises(UnsupportedError, match="blocks="):
        BufferedSequence.from_description(said, seed=3)
    assert BufferedSequence.from_description(said, seed=3, blocks=blocks).name == said["name"]


def test_nonsense_is_refused() -> None:
    for call in (
        lambda: made(buffer=0),
        lambda: made([0, 0]),
        lambda: made([3, -1]),
        lambda: made([1.5]),
        lambda: made([[1, 2]]),
        lambda: made([MAX_SIZE, 1]),
    ):
        with pytest.raises(UsageError):
            call()
    sequence = made()
    with pytest.raises(FormatError, match="3 ids in the buffer at position 4"):
        sequence.take({"epoch": 0, "position": 4, "buffer": [1, 2, 3]}, 2)


@pytest.mark.parametrize("size", [10**6, 10**6 + 1, 10**12])
def test_what_a_checkpoint_would_hold_is_bounded(size: int) -> None:
    """To the byte: the least that is refused would be more than the bound as JSON."""
    digits = len(str(size - 1))
    most = MAX_STATE // (digits + 1)
    BufferedSequence([size], buffer=most, dataset_id="data", seed=1)
    with pytest.raises(UsageError, match=f"use {most} or fewer"):
        BufferedSequence([size], buffer=most + 1, dataset_id="data", seed=1)
    full = json.dumps({"buffer": [size - 1] * most}, separators=(",", ":"))
    assert MAX_STATE - digits < len(full) - len('{"buffer":[]}') + 1 <= MAX_STATE


def test_a_buffer_larger_than_a_small_dataset_is_no_larger_state() -> None:
    BufferedSequence([1000], buffer=1 << 30, dataset_id="data", seed=1)
