"""Every stream continues where it was, from bytes and numbers alone."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from durable_core.errors import PromiseError, UsageError
from durable_core.format import canonical
from durable_core.state import rng
from durable_core.state.tree import flatten, rebuild


def draw() -> list[Any]:
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.standard_normal(3).tolist(),
        torch.randn(3).tolist(),
        torch.nn.functional.dropout(torch.ones(16)).tolist(),
    ]


def stored(tree: Any) -> Any:
    flat = flatten(tree, prefix="roles/dp0")
    return rebuild(canonical.loads(canonical.dumps(flat.doc), key="doc"), flat.tensors)


def test_all_global_streams_continue_even_within_a_pair_of_gaussians() -> None:
    random.gauss(0, 1)  # leaves the second of the pair behind, in python and in numpy
    np.random.standard_normal()
    tree = stored(rng.capture())
    expected = [draw() for _ in range(3)]
    random.seed(99), np.random.seed(99), torch.manual_seed(99)
    assert rng.restore(tree) == ()
    assert [draw() for _ in range(3)] == expected


def test_capturing_draws_nothing() -> None:
    tree = rng.capture()
    rng.capture()
    expected = draw()
    rng.restore(tree)
    assert draw() == expected


def test_a_stream_of_a_device_that_is_not_here() -> None:
    tree = {**rng.capture(), "cuda:7": bytes(16)}
    before = rng.capture()
    random.random()
    moved = rng.capture()
    with pytest.raises(PromiseError, match="cuda:7"):
        rng.restore(tree)
    assert rng.capture() == moved != before
    assert rng.restore(tree, strict=False) == ("cuda:7",)
    assert rng.capture() == before


@pytest.mark.parametrize("stream", ["python", "numpy", "torch"])
@pytest.mark.parametrize("bad", [b"", b"short", {}, None, {"version": 3, "words": b"", "gauss": None}])
def test_one_bad_stream_leaves_all_streams_alone(stream: str, bad: Any) -> None:
    tree = {**rng.capture(), stream: bad}
    draw()
    moved = rng.capture()
    with pytest.raises(UsageError, match=stream):
        rng.restore(tree)
    assert rng.capture() == moved


GENERATORS: dict[str, Any] = {
    "torch": lambda seed: torch.Generator().manual_seed(seed),
    "python": random.Random,
    "pcg": lambda seed: np.random.Generator(np.random.PCG64(seed)),
    "philox": lambda seed: np.random.Generator(np.random.Philox(seed)),
    "sfc": lambda seed: np.random.Generator(np.random.SFC64(seed)),
    "twister": lambda seed: np.random.Generator(np.random.MT19937(seed)),
    "old": np.random.RandomState,
}


def draw_from(generator: Any) -> list[float]:
    if isinstance(generator, torch.Generator):
        return torch.rand(5, generator=generator).tolist()  # type: ignore[no-any-return]
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1) for _ in range(5)]
    return [float(generator.standard_normal()) for _ in range(5)]


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_a_named_generator_is_restored_in_place(name: str) -> None:
    one, two = GENERATORS[name](1), GENERATORS[name](2)
    draw_from(one)
    state = stored(rng.Named(one).state_dict())
    rng.Named(two).load_state_dict(state)
    assert draw_from(two) == draw_from(one)


def test_a_named_generator_refuses_the_state_of_another_kind() -> None:
    state = rng.Named(random.Random(1)).state_dict()
    with pytest.raises(UsageError):
        rng.Named(torch.Generator()).load_state_dict(state)
    with pytest.raises(UsageError):
        rng.Named(random.SystemRandom())


def test_the_state_is_plain_and_small() -> None:
    text = json.dumps(flatten(rng.capture(), prefix="r").doc)
    assert len(text) < 32_000
    assert not flatten(rng.capture(), prefix="r").tensors
