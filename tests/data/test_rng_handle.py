"""``sample_rng()``: generators of the sample being fetched."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import durable_core.data
from durable_core.data.loader.reading.seeding import Seeder
from durable_core.data.rng import SampleRng, SampleSeeds, sample_rng, seed_streams
from durable_core.errors import UsageError

SEEDS = SampleSeeds(dataset_id="golden", seed=7, transform_version="v")


def fetched(seeder: Seeder, ids: Sequence[int], read: Any, epochs: Any = 3) -> list[Any]:
    return seeder.run(lambda: [read(index) for index in seeder.each(ids, epochs)])


def draw(index: int) -> tuple[Any, ...]:
    rng = sample_rng()
    return (
        rng.python.random(),
        rng.python.getrandbits(70),
        int(rng.numpy.bit_generator.random_raw()),
        torch.rand((), generator=rng.torch).item(),
    )


def test_golden_draws_never_change() -> None:
    assert fetched(Seeder(SEEDS), (41,), draw) == [GOLDEN]


GOLDEN = (0.7724985955097033, 331704578476697832867, 8300233988667327623, 0.8213847875595093)


def test_draws_belong_to_the_sample_and_its_epoch() -> None:
    seeder = Seeder(SEEDS)
    first = dict(zip((5, 6, 7, 8), fetched(seeder, (5, 6, 7, 8), draw), strict=True))
    assert len(set(first.values())) == 4
    assert fetched(seeder, (8, 6), draw) == [first[8], first[6]]
    assert fetched(Seeder(SEEDS), [7], draw) == [first[7]]
    assert fetched(seeder, (5, 5), draw, epochs=(3, 4))[0] == first[5]
    assert fetched(seeder, (5, 5), draw, epochs=(3, 4))[1] != first[5]


def test_uses_within_a_sample_continue_one_another() -> None:
    def read(index: int) -> list[float]:
        return [float(sample_rng().numpy.random()) for _ in range(3)]

    (three,) = fetched(Seeder(SEEDS), (5,), read)
    assert len(set(three)) == 3
    (again,) = fetched(Seeder(SEEDS), (5,), lambda index: sample_rng().numpy.random(3).tolist())
    assert three == again


def test_torch_begins_like_the_global_stream() -> None:
    (mine,) = fetched(Seeder(SEEDS), (5,), lambda index: torch.rand(4, generator=sample_rng().torch))
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_streams(SEEDS.sample(3, 5), torch.default_generator)
    assert torch.equal(mine, torch.rand(4))
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def test_a_sample_read_again_begins_anew() -> None:
    """A batch that drew from an unseeded global stream is fetched again: the handle must not go on."""
    seeder = Seeder(SEEDS)
    (wanted,) = fetched(Seeder(SEEDS), (5,), draw)
    fetched(seeder, (1,), draw)
    found: list[Any] = []

    def read(index: int) -> Any:
        found.append(draw(index))
        random.random()
        return found[-1]

    assert fetched(seeder, (5,), read) == [wanted]
    assert found == [wanted, wanted]


def test_parts_have_generators_of_their_own() -> None:
    seeder = Seeder(SEEDS)

    def attempt() -> tuple[Any, Any]:
        (sample,) = [draw(index) for index in seeder.each((5,), 3)]
        seeder.part(lambda: SEEDS.collate(3, 0, 0))
        return sample, draw(0)

    sample, whole = seeder.run(attempt)
    assert sample == fetched(seeder, (5,), draw)[0] != whole


def test_the_global_streams_play_no_part() -> None:
    before = random.getstate(), torch.get_rng_state()
    seeder = Seeder(SEEDS)
    for batch in range(3):
        fetched(seeder, (batch,), draw)
    assert seeder._process is not None and seeder._process._seeded == ()
    assert before[0] == random.getstate() and torch.equal(before[1], torch.get_rng_state())


def test_outside_a_fetch_it_is_refused() -> None:
    with pytest.raises(UsageError, match="no sample is being fetched"):
        durable_core.data.sample_rng()
    kept: list[SampleRng] = []
    fetched(Seeder(SEEDS), (5,), lambda index: kept.append(sample_rng()))
    for name in ("python", "numpy", "torch"):
        with pytest.raises(UsageError, match="no sample is being fetched"):
            getattr(kept[0], name)


def test_one_fetch_inside_another_has_its_own() -> None:
    inner, outer = Seeder(SampleSeeds(dataset_id="inner", seed=1)), Seeder(SEEDS)

    def read(index: int) -> tuple[Any, Any, Any]:
        before = sample_rng().numpy.random()
        within = fetched(inner, (index,), draw)
        return before, within, sample_rng().numpy.random()

    ((before, within, after),) = fetched(outer, (5,), read)
    assert within == fetched(inner, (5,), draw)
    (both,) = fetched(outer, (5,), lambda index: sample_rng().numpy.random(2).tolist())
    assert both == [before, after]


def test_the_spare_of_a_pair_of_normals_is_not_passed_on() -> None:
    seeder = Seeder(SEEDS)
    pair = fetched(seeder, (5, 6), lambda index: sample_rng().python.gauss(0, 1))
    assert pair[1:] == fetched(Seeder(SEEDS), (6,), lambda index: sample_rng().python.gauss(0, 1))


def test_python_methods_work_and_words_are_uniform() -> None:
    def read(index: int) -> list[Any]:
        rng = sample_rng().python
        items = list(range(10))
        rng.shuffle(items)
        assert sorted(items) == list(range(10)) and 3 <= rng.randint(3, 4) <= 4
        assert len(rng.randbytes(5)) == 5 and 0 <= rng.random() < 1 and rng.getrandbits(1) in (0, 1)
        return [rng.random() for _ in range(1000)]

    values = [value for sample in fetched(Seeder(SEEDS), tuple(range(20)), read) for value in sample]
    counts = np.histogram(values, 16, (0, 1))[0]
    assert ((counts - 1250) ** 2 / 1250).sum() < 50  # chi-square with 15 degrees: 1e-5
