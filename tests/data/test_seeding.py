"""Seeding what is drawn from gives what seeding everything gives, and leaves the user's streams alone."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from durable_core.data.loader.reading.global_streams import (
    NumpyStream,
    PythonStream,
    Stream,
    TorchStream,
    Watch,
    process_streams,
)
from durable_core.data.loader.reading.seeding import Seeder
from durable_core.data.rng import SampleSeeds, sample_rng, seed_streams
from durable_core.errors import UsageError

SEEDS = SampleSeeds(dataset_id="d", seed=7)
Draw = Callable[[int], Any]

#: every way to draw that a transform uses, the spare of a pair of normals among them
DRAWS: dict[str, Draw] = {
    "nothing": lambda i: i,
    "python": lambda i: random.random(),
    "python choice": lambda i: random.choice("abcdefgh"),
    "python gauss": lambda i: random.gauss(0, 1),
    "python shuffle": lambda i: random.sample(range(100), 5),
    "numpy": lambda i: float(np.random.rand()),
    "numpy normal": lambda i: float(np.random.randn()),
    "numpy normals": lambda i: np.random.randn(3).tolist(),
    "numpy integers": lambda i: int(np.random.randint(1000)),
    "torch": lambda i: torch.rand(()).item(),
    "torch normal": lambda i: torch.randn(()).item(),
    "torch permutation": lambda i: torch.randperm(5).tolist(),
    "all": lambda i: (random.random(), float(np.random.randn()), torch.randn(2).tolist()),
}


def fetched(seeder: Seeder, epoch: int, ids: Sequence[int], draw: Draw, collate: Draw) -> Any:
    def attempt() -> Any:
        samples = [draw(i) for i in seeder.each(ids, epoch)]
        seeder.part(lambda: SEEDS.collate(epoch, ids[0], 0))
        return samples, collate(-1)

    return seeder.run(attempt)


def expected(epoch: int, ids: Sequence[int], draw: Draw, collate: Draw) -> Any:
    """What seeding every stream before every part gives."""
    saved = states()
    samples = []
    for index in ids:
        seed_streams(SEEDS.sample(epoch, index), torch.default_generator)
        samples.append(draw(index))
    seed_streams(SEEDS.collate(epoch, ids[0], 0), torch.default_generator)
    result = samples, collate(-1)
    random.setstate(saved[0])
    np.random.set_state(saved[1])
    torch.set_rng_state(saved[2])
    return result


def states() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def comparable(state: tuple[Any, Any, Any]) -> Any:
    legacy = state[1]
    return state[0], legacy[1].tolist(), legacy[2:4], legacy[4] if legacy[3] else None, state[2].tolist()


def disturb(step: int) -> None:
    """What a training step may do to its own streams, leaving the spare of a pair behind at times."""
    for function in (random.random, lambda: random.gauss(0, 1), np.random.randn, lambda: torch.randn(())):
        if step % 3:
            function()
        step //= 2


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("collate", ["nothing", "python gauss", "numpy normal", "torch normal"])
@pytest.mark.parametrize("kind", DRAWS)
def test_the_draws_are_those_of_seeding_everything(kind: str, collate: str, late: int) -> None:
    seeder = Seeder(SEEDS)
    for batch in range(6):
        disturb(batch)
        draw, join = (DRAWS[kind], DRAWS[collate]) if batch >= late else (DRAWS["nothing"], DRAWS["nothing"])
        ids = range(4 * batch, 4 * batch + 4)
        wanted = expected(1, tuple(ids), draw, join)
        before = comparable(states())
        assert fetched(seeder, 1, tuple(ids), draw, join) == wanted
        assert comparable(states()) == before


def test_one_draw_of_one_sample_in_a_late_batch_is_seen() -> None:
    for kind, draw in DRAWS.items():
        seeder = Seeder(SEEDS)
        for ids in ((1, 2, 3), (4, 5, 6), (7, 8, 9)):
            rarely: Draw = lambda i, draw=draw: draw(i) if i == 8 else i  # type: ignore[misc]  # noqa: E731
            wanted = expected(0, ids, rarely, DRAWS["nothing"])
            np.random.randn()  # a spare: the next normal moves no word of the generator
            assert fetched(seeder, 0, ids, rarely, DRAWS["nothing"]) == wanted, kind


def test_a_batch_is_fetched_again_once_for_each_stream_and_then_never() -> None:
    asked: list[int] = []
    draws = ["nothing", "nothing", "python", "numpy", "numpy", "torch", "all", "all"]

    def draw(index: int) -> Any:
        asked.append(index)
        return DRAWS[draws[index]](index)

    seeder = Seeder(SEEDS)
    for index in range(len(draws)):
        fetched(seeder, 0, (index,), draw, DRAWS["nothing"])
    assert asked == [0, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7]


def test_what_is_drawn_in_the_first_batch_needs_no_second_fetch() -> None:
    asked: list[int] = []

    def draw(index: int) -> Any:
        asked.append(index)
        return DRAWS["all"](index)

    seeder = Seeder(SEEDS)
    for ids in ((0, 1), (2, 3)):
        fetched(seeder, 0, ids, draw, DRAWS["nothing"])
    assert asked == [0, 1, 2, 3]


def test_a_fetch_that_failed_on_numbers_it_should_not_have_drawn_is_tried_again() -> None:
    seeder = Seeder(SEEDS)
    fetched(seeder, 0, (0,), DRAWS["nothing"], DRAWS["nothing"])
    good = expected(0, (1,), DRAWS["python"], DRAWS["nothing"])

    def draw(index: int) -> float:
        value = random.random()
        if value != good[0][0]:
            raise ValueError(value)
        return value

    assert fetched(seeder, 0, (1,), draw, DRAWS["nothing"]) == good


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_fetch_that_fails_leaves_the_streams_as_they_were(failure: type[BaseException]) -> None:
    def draw(index: int) -> Any:
        if index > 1:
            DRAWS["all"](index)
            raise failure
        return index

    for first in (0, 2):  # 2: in the first batch
        seeder = Seeder(SEEDS)
        before = comparable(states())
        if not first:
            fetched(seeder, 0, (0, 1), draw, DRAWS["nothing"])
        with pytest.raises(failure):
            fetched(seeder, 0, (2, 3), draw, DRAWS["nothing"])
        assert comparable(states()) == before


def test_code_that_seeds_for_itself_is_left_its_draws() -> None:
    def draw(index: int) -> Any:
        if index > 1:
            random.seed(index), np.random.seed(index), torch.manual_seed(index)
        return DRAWS["all"](index) if index > 1 else index

    seeder = Seeder(SEEDS)
    for ids in ((0, 1), (2, 3), (4, 5)):
        wanted = expected(0, ids, draw, DRAWS["nothing"])
        before = comparable(states())
        assert fetched(seeder, 0, ids, draw, DRAWS["nothing"]) == wanted
        assert comparable(states()) == before


def test_a_state_that_is_only_read_needs_always() -> None:
    """The declared limit, and its way out."""

    def draw(index: int) -> int:
        return torch.initial_seed()

    found = []
    for always in (False, True):
        seeder = Seeder(SEEDS, always=always)
        fetched(seeder, 0, (0,), DRAWS["nothing"], DRAWS["nothing"])
        found.append(fetched(seeder, 0, (1,), draw, DRAWS["nothing"]))
    wanted = expected(0, (1,), draw, DRAWS["nothing"])
    assert found[0] != wanted and found[1] == wanted


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_draw_that_comes_round_to_the_same_position_is_seen(rounds: int) -> None:
    """A whole turn is 624 words: 312 doubles, or 624 floats of torch's."""
    draws: list[tuple[Stream, Callable[[], Any]]] = [
        (PythonStream(), lambda: random.getrandbits(624 * 32 * rounds)),
        (NumpyStream(), lambda: np.random.random_sample(312 * rounds)),
        (TorchStream(), lambda: torch.rand(624 * rounds)),
    ]
    for stream, draw in draws:
        before = stream.peek()
        draw()
        assert stream.peek() != before


def test_streams_swapped_by_the_user_are_noticed() -> None:
    module: Any = np.random
    before = module.get_bit_generator()
    try:
        stream = NumpyStream()
        first = stream.peek()
        module.set_bit_generator(np.random.MT19937(3))
        second = stream.peek()
        np.random.rand()
        assert len({first, second, stream.peek()}) == 3
        module.set_bit_generator(np.random.PCG64(3))
        third = stream.peek()
        assert stream.peek() == third
        np.random.rand()
        assert stream.peek() != third
    finally:
        module.set_bit_generator(before)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="other interpreters compare states")
def test_here_memory_tells() -> None:
    """Else nothing is wrong, and every batch is dearer: look at the layouts in streams.py."""
    python, numpy, torchs = PythonStream(), NumpyStream(), TorchStream()
    numpy.peek()
    assert None not in (python._words, numpy._words, numpy._spare, torchs._words)


def test_where_memory_tells_nothing_states_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = memoryview(bytes(5000))
    monkeypatch.setattr("durable_core.data.loader.reading.global_streams._at", lambda *_: nothing)
    streams: dict[str, Stream] = {"python": PythonStream(), "numpy": NumpyStream(), "torch": TorchStream()}
    normals = ("python gauss", "numpy normal", "torch normal")
    for name in ("python", "numpy", "torch", *normals, *normals):
        stream = streams[name.split()[0]]
        before = stream.peek()
        assert stream.peek() == before
        DRAWS[name](0)
        assert stream.peek() != before, name


def test_only_what_changed_is_saved_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    streams = process_streams()

    def counted(stream: Stream, name: str) -> Callable[..., Any]:
        function = getattr(stream, name)

        def call(*arguments: Any) -> Any:
            calls.append(f"{type(stream).__name__}.{name}")
            return function(*arguments)

        return call

    for stream in streams:
        for name in ("save", "restore"):
            monkeypatch.setattr(stream, name, counted(stream, name))
    watch = Watch(streams)
    watch.mark(save=True)
    watch.restore(range(3))
    assert calls == ["PythonStream.save", "NumpyStream.save", "TorchStream.save"]
    calls.clear()
    for _ in range(2):
        watch.mark(save=True)
        np.random.randn()
        watch.restore(range(3))
    assert calls == ["NumpyStream.restore"] * 2
    assert TorchStream().peek() == streams[2].peek()


def test_without_seeds_nothing_is_done() -> None:
    seeder = Seeder(None)
    before = random.getstate()
    assert seeder.run(lambda: list(seeder.each((3, 4), 0))) == [3, 4]
    assert random.getstate() == before
    with pytest.raises(UsageError, match="no sample is being fetched"):
        seeder.run(sample_rng)


def test_a_seeder_travels_without_what_it_found_out() -> None:
    seeder = Seeder(SEEDS)
    wanted = expected(0, (1, 2), DRAWS["all"], DRAWS["nothing"])
    fetched(seeder, 0, (0,), DRAWS["nothing"], DRAWS["nothing"])
    other = pickle.loads(pickle.dumps(seeder))
    assert fetched(other, 0, (1, 2), DRAWS["all"], DRAWS["nothing"]) == wanted
    assert other._process._seeded == (0, 1, 2)
