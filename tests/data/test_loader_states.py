"""States of DurableLoader: copies nobody else changes, refused when edited; they say what draws depend on."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from data_samples import Counting, Drawing, Plain, Stream, listed, train
from sequence_samples import Tokens, Walked

from durable_core.data import BufferedShuffle, DurableLoader, Mixture, Packing
from durable_core.engine.audit import positions
from durable_core.errors import DurableError, FormatError, SpecMismatchError


class Blocked(Plain):
    def __init__(self, size: int = 130) -> None:
        super().__init__(size)
        self.blocks = np.array([10] * (size // 10))


def make(dataset: Any = None, batch_size: int = 4, **more: Any) -> DurableLoader:
    data = Drawing(23) if dataset is None else dataset
    return DurableLoader(data, batch_size, **{"seed": 5, "collate_fn": listed, **more})


def mixture(**more: Any) -> Mixture:
    return Mixture({"a": Plain(50), "b": Plain(50)}, {"a": 1, "b": 1}, **more)


def saved(loader: DurableLoader) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


# --- nobody's but the loader's --------------------------------------------------------------


def spoilt(tree: Any) -> Any:
    """Every list and dict in it emptied, from the inside."""
    for inner in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(inner, (dict, list)):
            spoilt(inner)
    tree.clear()
    return tree


KINDS: dict[str, Callable[[], DurableLoader]] = {
    "buffered": lambda: make(Blocked(), order=BufferedShuffle(20)),
    "mixture": lambda: make(mixture()),
    "packs": lambda: make(Tokens(), 2, packing=Packing(8)),
    "stream": lambda: make(Stream(30)),
    "sampler": lambda: make(Plain(23), sampler=Counting(23)),
    "walk": lambda: make(Walked()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_a_copy_on_the_way_out_and_in(kind: str) -> None:
    loader, whole = KINDS[kind](), KINDS[kind]()
    if kind == "mixture":
        assert loader.update_weights({"a": 1, "b": 2}, lead=3) == whole.update_weights({"a": 1, "b": 2}, 3)
    train(loader, 2)
    state = saved(loader)
    spoilt(loader.state_dict())
    assert saved(loader) == state
    again, given = KINDS[kind](), copy.deepcopy(state)
    again.load_state_dict(given)
    spoilt(given)
    assert saved(again) == state
    assert flat(train(again, 3)) == flat(train(whole, 5)[2:])


def test_a_state_is_taken_at_one_price_however_often_weights_were_changed() -> None:
    loader = make(mixture())
    for lead in range(2, 600):
        loader.update_weights({"a": 1, "b": lead}, lead=lead)
    early = loader.state_dict()["updates"]
    loader.update_weights({"a": 1, "b": 1}, lead=1)
    late = loader.state_dict()["updates"]
    assert [at for at, _ in late] == list(range(1, 600)) and len(early) == 598
    assert all(ours is theirs for ours, theirs in zip(early, late[1:], strict=True))  # not made again
    hash(late[7])  # nor can they be changed


# --- edited ---------------------------------------------------------------------------------

EDITS: dict[str, tuple[tuple[str, ...], Any]] = {
    "no source": (("source",), None),
    "no state": (("source", "state"), None),
    "an empty state": (("source", "state"), {}),
    "a source that is a list": (("source",), [1]),
    "batches": (("source", "state", "batches"), "1"),
    "batches below 0": (("source", "state", "batches"), -1),
    "a sequence that is a list": (("source", "state", "sequence"), []),
    "updates 5": (("updates",), 5),
    "updates of one": (("updates",), [[1]]),
    "updates at no number": (("updates",), [["x", {}]]),
    "updates to no weights": (("updates",), [[1, [2]]]),
    "updates to no source": (("updates",), [[1, [[2, 3]]]]),
    "updates in the source": (("source", "updates"), []),
    "a plan that is a list": (("plan",), [1]),
    "replicas": (("replicas",), "2"),
    "draws": (("draws",), {"seeded": True}),
    "batch below 0": (("batch",), -1),
    "seed": (("seed",), 1 << 70),
    "version": (("version",), True),
    "version 9": (("version",), 9),
    "dataset_id": (("dataset_id",), ""),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_state_is_refused_by_type(name: str) -> None:
    loader = make(mixture())
    train(loader, 1)
    state = saved(loader)
    (*path, last), value = EDITS[name]
    inner = state
    for part in path:
        inner = inner[part]
    inner[last] = value
    again = make(mixture())
    with pytest.raises(FormatError):
        again.load_state_dict(state)
    assert again.cursor.batch == 0


@pytest.mark.parametrize("value", [None, [1], 5, "state", {}, {"a": 1, 2: 3}, {"version": 1, 2: 3}])
def test_what_is_no_state_is_refused_by_type(value: Any) -> None:
    with pytest.raises(FormatError):
        make().load_state_dict(value)


# --- what draws depend on -------------------------------------------------------------------


class Rolling(Plain):
    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        return index, random.randrange(1000)


ROLLS = {
    "map": lambda: {"dataset": Rolling(23)},
    "sequence": lambda: {"dataset": mixture()},
    "sampler": lambda: {"dataset": Rolling(23), "sampler": Counting(23)},
    "stream": lambda: {"dataset": Stream(40)},
}


@pytest.mark.parametrize("kind", ROLLS)
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"transform_version": "b"}, "transform_version was 'a' and is now 'b'"),
        ({"transform_version": ""}, "transform_version was 'a' and is now ''"),
        ({"sample_rng": False}, "seeded was True and is now False"),
    ],
)
def test_other_draws_are_refused_or_said(kind: str, change: dict[str, Any], field: str) -> None:
    options = {"transform_version": "a"}
    loader = make(**ROLLS[kind](), **options)
    train(loader, 2)
    state = saved(loader)
    for promise in ("bitwise", "exact-order"):
        with pytest.raises(SpecMismatchError, match=field) as caught:
            make(**ROLLS[kind](), **{**options, **change, "promise": promise}).load_state_dict(state)
        assert caught.value.fields == tuple(change)
    with pytest.warns(UserWarning, match=field):
        make(**ROLLS[kind](), **{**options, **change, "promise": "coverage"}).load_state_dict(state)


def test_the_audit_finds_the_cursor_whatever_stands_beside_it() -> None:
    for loader in (make(Rolling(23), transform_version="a"), make(mixture(), sample_rng=False)):
        train(loader, 2)
        (found,) = positions({"data": saved(loader)})
        assert found.cursor == loader.cursor


def test_ways_to_seed_that_draw_the_same_are_the_same() -> None:
    loader = make(Rolling(23), transform_version="a")
    whole = train(make(Rolling(23), transform_version="a"))
    train(loader, 2)
    always = make(Rolling(23), transform_version="a", sample_rng="always")
    always.load_state_dict(saved(loader))
    assert train(always) == whole[2:]


@pytest.mark.parametrize("options", [{}, {"transform_version": "a"}, {"sample_rng": False}])
def test_draws_that_were_not_recorded_are_compared_with_nothing(options: dict[str, Any]) -> None:
    loader = make(Plain(23), **options)
    whole = train(make(Plain(23), **options))
    train(loader, 2)
    state = saved(loader)
    assert set(state.pop("draws")) == {"transform_version", "seeded"}  # earlier versions wrote none
    again = make(Plain(23), **options)
    again.load_state_dict(state)
    assert train(again) == whole[2:]


# --- batches of another size ----------------------------------------------------------------

RESCALED: dict[str, tuple[dict[str, Any], str]] = {
    "buffered, its end dropped": (
        {"dataset": Blocked(130), "order": BufferedShuffle(7)}, "other samples of its end",
    ),
    "a mixture of 90, its end dropped": ({"dataset": mixture(epoch_size=90)}, "other samples of its end"),
    "a mixture that stops": ({"dataset": mixture(exhaustion="stop")}, "only known there"),
    "packs": ({"dataset": Tokens(400), "packing": Packing(8)}, "only known there"),
    "a sampler": ({"dataset": Plain(130), "sampler": Counting(130)}, "only known there"),
    "a stream": ({"dataset": Stream(130)}, "only known there"),
    "a stream by turns": ({"dataset": Stream(130), "num_workers": 2, "drop_last": False}, "take turns"),
}  # fmt: skip


@pytest.mark.parametrize("name", RESCALED)
def test_batches_that_would_change_what_an_epoch_uses_are_refused(name: str) -> None:
    options, message = RESCALED[name]
    common = {"drop_last": True, "promise": "exact-order", **options}
    loader = make(batch_size=12, **common)
    train(loader, 2)
    with pytest.raises(SpecMismatchError, match=message):
        make(batch_size=6, accumulate=2, **copy.deepcopy(common)).load_state_dict(saved(loader))


GOOD: dict[str, Callable[[], dict[str, Any]]] = {
    "buffered, nothing to drop": lambda: {
        "dataset": Blocked(120), "order": BufferedShuffle(7), "drop_last": True,
    },
    "buffered, its end short": lambda: {"dataset": Blocked(130), "order": BufferedShuffle(7)},
    "a mixture of 96": lambda: {"dataset": mixture(epoch_size=96), "drop_last": True},
    "a mixture that stops": lambda: {"dataset": mixture(exhaustion="stop")},
    "a mixture without end": lambda: {"dataset": mixture(), "drop_last": True},
    "packs": lambda: {"dataset": Tokens(400), "packing": Packing(8)},
    "a sampler": lambda: {"dataset": Plain(130), "sampler": Counting(130)},
    "a stream": lambda: {"dataset": Stream(130), "num_workers": 1},
}  # fmt: skip


def flat(batches: list[Any]) -> list[str]:
    return [str(sample) for batch in batches for sample in batch]


@pytest.mark.parametrize("name", GOOD)
def test_batches_of_another_size_use_the_same_samples_in_the_same_order(name: str) -> None:
    common: dict[str, Any] = {"promise": "exact-order", "sample_rng": True}
    limit = None if "without end" not in name else 20
    whole = train(make(batch_size=12, **common, **GOOD[name]()), limit)
    loader = make(batch_size=12, **common, **GOOD[name]())
    taken = train(loader, 2)
    again = make(batch_size=6, accumulate=2, **common, **GOOD[name]())
    with pytest.warns(UserWarning, match="are now of 6"):
        again.load_state_dict(saved(loader))
    taken += train(again, None if limit is None else 2 * (limit - 2))
    assert flat(taken) == flat(whole)


def test_a_refusal_is_one_of_ours() -> None:
    with pytest.raises(DurableError):
        make(mixture()).load_state_dict({"version": 1})
