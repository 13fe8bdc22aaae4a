"""Seeds per sample: the same for ever, and never shared between contexts."""

from __future__ import annotations

import pickle
import random

import numpy as np
import torch

from durable_core.data.loader.reading.global_streams import Preserved
from durable_core.data.rng import SampleSeeds, seed_streams


def test_golden_seeds_never_change() -> None:
    seeds = SampleSeeds(dataset_id="golden", seed=7, transform_version="v")
    assert tuple(seeds.sample(3, 41)) == GOLDEN_SAMPLE
    assert tuple(seeds.collate(3, 41, 0)) == GOLDEN_COLLATE


GOLDEN_SAMPLE = (7957152385308177569, 16410504008977301722, 1200989277)
GOLDEN_COLLATE = (13954426046069561872, 14096192201080177852, 3077905286)


def test_no_two_contexts_share_a_seed() -> None:
    found = set()
    for more in ({}, {"seed": 8}, {"dataset_id": "e"}, {"transform_version": "2"}):
        seeds = SampleSeeds(**{"dataset_id": "d", "seed": 7, **more})  # type: ignore[arg-type]
        for epoch in range(3):
            found.add(seeds.sample(epoch, 1))
            found.add(seeds.sample(epoch, 2))
            for kind in (seeds.collate, seeds.fetch, seeds.stream, seeds.stream_collate):
                found.add(kind(epoch, 1, 0))
            found.add(seeds.collate(epoch, 1, 4))
            found.add(seeds.sampler(epoch, 1))
    assert len(found) == 4 * 3 * 8


def test_going_back_to_an_epoch_gives_the_same() -> None:
    seeds = SampleSeeds(dataset_id="d", seed=7)
    first = [seeds.sample(epoch, 5) for epoch in (0, 1, 0)]
    assert first[0] == first[2] != first[1]
    assert pickle.loads(pickle.dumps(seeds)).sample(1, 5) == first[1]


def test_streams_are_seeded_and_put_back() -> None:
    def draw() -> tuple[float, float, float]:
        return random.gauss(0, 1), float(np.random.randn()), torch.randn(()).item()

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    draw()  # leaves a half-used gaussian pair behind in each
    state = random.getstate(), np.random.get_state()[1:], torch.get_rng_state()
    seeds = SampleSeeds(dataset_id="d", seed=7)
    drawn = []
    preserved = Preserved()
    for _ in range(2):
        with preserved:
            seed_streams(seeds.sample(0, 1), torch.default_generator)
            drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert random.getstate() == state[0] and torch.equal(torch.get_rng_state(), state[2])
    after = np.random.get_state()[1:]
    assert np.array_equal(after[0], state[1][0]) and after[1:] == state[1][1:]
