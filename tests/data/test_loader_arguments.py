"""Arguments of DurableLoader: numpy's numbers are numbers too, and what makes no sense is said at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from data_samples import Counting, Plain, Stream, listed, train
from sequence_samples import Tokens, Walked
from torch.utils.data import DataLoader

from durable_core.data import BlockShuffle, BufferedShuffle, DurableLoader, Mixture, Packing
from durable_core.errors import UsageError
from durable_core.types import Promise


class Blocked(Plain):
    blocks = np.array([10, 10, 3])


def make(dataset: Any = None, batch_size: Any = 4, **more: Any) -> DurableLoader:
    data = Blocked(23) if dataset is None else dataset
    return DurableLoader(data, batch_size, **{"seed": 5, "collate_fn": listed, **more})


def mixture() -> Mixture:
    return Mixture({"a": Plain(50), "b": Plain(31)}, {"a": "0.5", "b": "0.5"})


NUMBERS: dict[str, tuple[Callable[[], DurableLoader], Callable[[], DurableLoader]]] = {
    "batch_size": (lambda: make(batch_size=np.int64(4)), make),
    "seed": (lambda: make(seed=np.uint8(5)), make),
    "accumulate": (lambda: make(accumulate=np.int64(2)), lambda: make(accumulate=2)),
    "replicas": (
        lambda: make(batch_size=2, replica=np.int64(0), replicas=np.int64(2), drop_last=True),
        lambda: make(batch_size=2, replica=0, replicas=2, drop_last=True),
    ),
    "window": (lambda: make(order=BlockShuffle(np.int64(2))), lambda: make(order=BlockShuffle(2))),
    "size": (lambda: make(order=BufferedShuffle(np.int32(2))), lambda: make(order=BufferedShuffle(2))),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_numpy_are_numbers(name: str) -> None:
    given, plain = (build() for build in NUMBERS[name])
    assert train(given, 3) == train(plain, 3)
    assert json.dumps(given.state_dict()) == json.dumps(plain.state_dict())


def test_a_place_may_be_bound_in_numbers_of_numpy() -> None:
    loader = make(batch_size=2, drop_last=True)
    loader.bind(replica=np.int64(1), replicas=np.int64(2), seed=np.int64(7))
    assert json.loads(json.dumps(loader.state_dict()))["seed"] == 7


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "batch_size 4.0": ({"batch_size": 4.0}, "batch_size .* 4.0"),
    "batch_size '4'": ({"batch_size": "4"}, "batch_size .* '4'"),
    "batch_size True": ({"batch_size": True}, "batch_size .* True"),
    "batch_size 0": ({"batch_size": 0}, "batch_size .* 0"),
    "seed '3'": ({"seed": "3"}, "seed .* '3'"),
    "seed 3.0": ({"seed": 3.0}, "seed .* 3.0"),
    "seed True": ({"seed": True}, "seed .* True"),
    "replica 2 of 2": ({"replica": 2, "replicas": 2}, "replica 2"),
    "replicas 0": ({"replicas": 0}, "replicas .* 0"),
    "replicas '2'": ({"replicas": "2"}, "replicas .* '2'"),
    "accumulate 1.5": ({"accumulate": 1.5}, "accumulate .* 1.5"),
    "accumulate None": ({"accumulate": None}, "accumulate .* None"),
    "num_workers -1": ({"num_workers": -1}, "num_workers .* -1"),
    "num_workers '2'": ({"num_workers": "2"}, "num_workers .* '2'"),
    "promise": ({"promise": "foo"}, "promise 'foo' .* bitwise"),
    "remainder": ({"remainder": "foo"}, "remainder 'foo'"),
    "order": ({"order": 5}, "order 5"),
    "packing": ({"packing": 5}, "packing .* 5"),
    "sample_rng": ({"sample_rng": "never"}, "sample_rng .* 'never'"),
    "transform_version": ({"transform_version": 2}, "transform_version .* 2"),
    "collate_fn": ({"collate_fn": 5}, "collate_fn .* 5"),
    "worker_init_fn": ({"worker_init_fn": 5, "num_workers": 1}, "worker_init_fn .* 5"),
    "sampler": ({"sampler": 5}, "int is no sampler"),
    "a set": ({"dataset": {1, 2, 3}}, "set is neither map-style"),
    "a dict by name": ({"dataset": {"a": 2, "b": 3}}, "keys are not 0"),
    "prefetch_factor without workers": ({"prefetch_factor": 2}, "prefetch_factor without workers"),
    "prefetch_factor 0": ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor .* 0"),
    "persistent_workers without workers": ({"persistent_workers": True}, "persistent_workers without"),
    "timeout -1": ({"timeout": -1, "num_workers": 1}, "timeout .* -1"),
    "timeout without workers": ({"timeout": 5}, "timeout without workers"),
    "a context": ({"multiprocessing_context": "threads", "num_workers": 1}, "context .* 'threads'"),
    "max_skipped -1": ({"max_skipped": -1}, "max_skipped .* -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_makes_no_sense_is_named_at_once(name: str) -> None:
    arguments, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        make(**arguments)


def test_a_mapping_by_number_is_a_dataset() -> None:
    assert make({0: "a", 1: "b"}, shuffle=False, batch_size=2).dataset[1] == "b"


@pytest.mark.parametrize("name", ["timeout 5", "promise foo"])
def test_a_loader_of_torchs_is_checked_too(name: str) -> None:
    argument, value = name.split()
    timeout = 5 if argument == "timeout" else 0
    more: dict[str, Any] = {"promise": value} if argument == "promise" else {}
    with pytest.raises(UsageError, match=argument):
        DurableLoader.from_dataloader(DataLoader(Plain(9), 4, timeout=timeout), **more)


def test_streams_and_samplers_are_checked_alike() -> None:
    with pytest.raises(UsageError, match="batch_size"):
        make(Stream(9), batch_size=2.0)
    with pytest.raises(UsageError, match="accumulate"):
        make(Plain(9), sampler=Counting(9), accumulate="1")


@pytest.mark.parametrize(
    "thirds",
    [
        {"a": Fraction(1, 3), "b": Fraction(2, 3)},
        {"a": np.int64(1), "b": np.int32(2)},
        {"a": np.float32(0.25), "b": np.float64(0.5)},
        {"a": "1/3", "b": "2/3"},
    ],
)
def test_weights_of_any_exact_kind_are_kept_in_the_state(thirds: dict[str, Any]) -> None:
    one, plain = make(mixture()), make(mixture())
    assert one.update_weights(thirds, lead=np.int64(2)) == plain.update_weights({"a": 1, "b": 2}, lead=2)
    again = make(mixture())
    again.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert train(again, 20) == train(plain, 20)


@pytest.mark.parametrize("weights", [None, [1, 2], 5, {"a": 1}, {"a": 0, "b": 0}, {"a": True, "b": 1}])
def test_weights_that_make_no_sense_are_refused_where_they_are_given(weights: Any) -> None:
    loader = make(mixture())
    with pytest.raises(UsageError, match="weight"):
        loader.update_weights(weights)
    assert json.dumps(loader.state_dict()) == json.dumps(make(mixture()).state_dict())


@pytest.mark.parametrize("lead", ["x", None, 2.0, True, 0, -5])
def test_a_lead_is_a_whole_number(lead: Any) -> None:
    with pytest.raises(UsageError, match="lead"):
        make(mixture()).update_weights({"a": 1, "b": 2}, lead=lead)


@pytest.mark.parametrize("given", [{"n": 1.5}, {"n": "1"}, {"n": 0}, {"step": None}, {"step": -1}])
def test_what_is_acknowledged_is_a_whole_number_of_batches(given: dict[str, Any]) -> None:
    loader = make()
    next(iter(loader))
    with pytest.raises(UsageError, match=next(iter(given))):
        loader.acknowledge(**{"n": 1, "step": 1, **given})
    assert loader.outstanding == 1


def test_objects_that_do_not_hold_the_dataset_are_refused() -> None:
    class Less(Plain):
        blocks = np.array([3, 4])

    for order in (BufferedShuffle(2), BlockShuffle(2)):
        with pytest.raises(UsageError, match="7 records, and the dataset has 20"):
            make(Less(20), order=order)


@pytest.mark.parametrize("lengths", [[3, 3], [3] * 50, [1.5] * 40, np.ones((40, 1), int)])
def test_lengths_that_are_not_one_for_each_record_are_refused(lengths: Any) -> None:
    class Lengths(Plain):
        pass

    data = Lengths(40)
    data.lengths = lengths  # type: ignore[attr-defined]
    for dataset in (data, Mixture({"a": Tokens(10), "b": data}, {"a": 1, "b": 1}, unit="document")):
        with pytest.raises(UsageError, match="lengths"):
            make(dataset, packing=Packing(8))


def test_a_sequence_takes_the_promise_by_name() -> None:
    assert make(Walked(), promise="exact-order").guarantees is Promise.BITWISE


AGAINST: dict[str, tuple[Callable[[], object], str]] = {
    "remainder": (lambda: DurableLoader(Plain(9), 2, remainder="short", drop_last=True), "drop_last=True"),
    "order": (lambda: DurableLoader(Plain(9), 2, order="full_prp_v1", shuffle=False), "shuffle=False"),
    "no order": (lambda: DurableLoader(Plain(9), 2, order="sequential_v1", shuffle=True), "shuffle=True"),
    "stream": (lambda: DurableLoader(Stream(9), 2, shuffle=True), "WindowShuffle"),
    "packs": (lambda: DurableLoader(Stream(9), 2, packing=Packing(4)), "PackedStream"),
}


@pytest.mark.parametrize("case", AGAINST)
def test_arguments_that_say_different_things(case: str) -> None:
    make, words = AGAINST[case]
    with pytest.raises(UsageError, match=words):
        make()


def test_arguments_that_say_the_same_twice() -> None:
    assert len(DurableLoader(Plain(9), 2, remainder="drop", drop_last=True)) == 4
    assert len(DurableLoader(Plain(9), 2, order="sequential_v1", shuffle=False)) == 5
    plain = DataLoader(list(range(9)), 2, drop_last=True)
    more: dict[str, Any] = {"order": "full_prp_v1", "remainder": "pad"}
    assert len(DurableLoader.from_dataloader(plain, seed=1, **more)) == 5


def test_the_length_of_a_mixture_without_end_says_what_ends_it() -> None:
    with pytest.raises(TypeError, match="epoch_size="):
        len(DurableLoader(Mixture({"a": [1, 2]}, {"a": 1}), 2))
