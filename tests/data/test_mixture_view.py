"""The mixture as a dataset: its ids, its identity, loss weights, what it refuses; reports and alarms."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

from durable_core.data import DurableLoader
from durable_core.data.mixture import MixedSequence, Mixture, check_debts, check_draws, check_window
from durable_core.errors import FormatError, UnsupportedError, UsageError


class Texts:
    """A map-style dataset of dicts, with or without the attributes that a mixture passes on."""

    def __init__(self, name: str, size: int, **attributes: Any) -> None:
        self.name, self.size, self.asked = name, size, []  # type: ignore[var-annotated]
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return {"text": f"{self.name}{index}"}


class Eager(Texts):
    def prefetch(self, ids: Any) -> None:
        self.asked.append(ids.tolist())


def pair(**options: Any) -> Mixture:
    sources = {"a": Texts("a", 3, dataset_id="sha256:a"), "b": Texts("b", 5, dataset_id="sha256:b")}
    return Mixture(sources, {"a": 1, "b": 3}, **options)


# --- the dataset ----------------------------------------------------------------------------


def test_its_ids_are_those_of_one_source_after_another() -> None:
    view = pair()
    assert (len(view), view.bases) == (8, (0, 3))
    assert [view[i]["text"] for i in range(8)] == ["a0", "a1", "a2", "b0", "b1", "b2", "b3", "b4"]
    assert view[np.int64(3)] == {"text": "b0"} and view.locate(7) == (1, 4)
    assert view.sources_of(np.array([0, 2, 3, 7])).tolist() == [0, 0, 1, 1]
    for outside in (-1, 8):
        with pytest.raises(IndexError):
            view[outside]


def test_it_travels_to_workers_without_what_it_put_together() -> None:
    lengths = np.arange(1, 4), np.arange(1, 6)
    sources = {
        name: Texts(name, len(n), lengths=n, blocks=n[:2]) for name, n in zip("ab", lengths, strict=True)
    }
    view = Mixture(sources, {"a": 1, "b": 1})
    assert view.lengths.tolist() == [1, 2, 3, 1, 2, 3, 4, 5] and view.blocks.tolist() == [1, 2, 1, 2]
    assert not hasattr(view, "loss_lengths")
    again = pickle.loads(pickle.dumps(view))
    assert "lengths" in view.__dict__ and "lengths" not in again.__dict__
    assert again.lengths.tolist() == view.lengths.tolist() and again[5] == view[5]


def test_reading_ahead_is_passed_on_in_the_ids_of_each_source() -> None:
    eager, lazy = Eager("a", 3), Texts("b", 5)
    Mixture({"a": eager, "b": lazy}, {"a": 1, "b": 1}).prefetch([7, 2, 3, 0])  # type: ignore[arg-type]
    assert (eager.asked, lazy.asked) == ([[2, 0]], [])


def test_its_identity_is_that_of_the_sources_and_the_policy() -> None:
    view = pair()
    assert view.dataset_id == pair().dataset_id and view.dataset_id.startswith("sha256:")
    others = [
        pair(schedule="categorical"),
        pair(exhaustion="stop"),
        pair(replacement=True),
        pair(loss_weights={"a": 2.0}),
        pair(weight_schedule=[(3, {"a": 1, "b": 1})]),
        pair(epoch_size=3),
    ]
    changed = copy.copy(view.sources)
    changed["b"] = Texts("b", 5, dataset_id="sha256:other")
    others.append(Mixture(changed, {"a": 1, "b": 3}))
    others.append(Mixture(dict(reversed(view.sources.items())), {"a": 1, "b": 3}))
    assert len({view.dataset_id, *(other.dataset_id for other in others)}) == 1 + len(others)
    assert pair(window=7).dataset_id == view.dataset_id  # what is only watched is no part of it
    assert pair(dataset_id="mine").dataset_id == "mine"


def test_sources_without_identity_make_it_unverified() -> None:
    view = Mixture({"x": Texts("x", 2), "b": Texts("b", 5, dataset_id="sha256:b")}, {"x": 1, "b": 1})
    assert view.dataset_id.startswith("unverified:mixture:sha256:")
    assert view[1] == {"text": "x1"}


def test_a_mixture_inside_of_another_dataset_is_refused() -> None:
    inner: Any = pair()
    other: Any = Texts("c", 2)
    subset: Any
    chained: Any
    subset, chained = Subset(inner, range(4)), ConcatDataset([other, Subset(inner, range(2))])
    for data in (inner, subset, chained):
        with pytest.raises(UnsupportedError, match="source 'in' reads a mixture record by record"):
            Mixture({"in": data, "b": Texts("b", 5)}, {"in": 1, "b": 1})
    for data in (subset, chained):
        with pytest.raises(UnsupportedError, match="weights would be ignored"):
            DurableLoader(data, 2, seed=1)
    around = Texts("around", 3)
    around.dataset = around  # type: ignore[attr-defined]  # of itself, and nothing else
    assert len(Mixture({"a": around}, {"a": 1})) == 3
    assert next(iter(DurableLoader(Subset(other, [1]), 1, seed=1, collate_fn=list))) == [{"text": "c1"}]


def test_numbers_of_numpy_are_numbers() -> None:
    plain = pair(epoch_size=6, window=9, weight_schedule=[(3, {"a": "0.5", "b": 2})], loss_weights={"a": 2.0})
    given = pair(
        epoch_size=np.int64(6),
        window=np.int32(9),
        weight_schedule=[(np.int64(3), {"a": np.float32(0.5), "b": np.int8(2)})],
        loss_weights={"a": np.float32(2)},
    )
    assert json.dumps(given.policy.to_json()) == json.dumps(plain.policy.to_json())
    assert given.dataset_id == plain.dataset_id
    text = json.dumps(given.sequence(seed=1).take(given.sequence(seed=1).start(0), 6)[1])
    assert "left" in text


def test_loss_weights_are_put_into_mappings_only() -> None:
    view = pair(loss_weights={"b": 0.5})
    assert (view[0], view[3]) == ({"text": "a0", "loss_weight": 1.0}, {"text": "b0", "loss_weight": 0.5})
    tensors = Mixture({"t": [1.5, 2.5]}, {"t": 1}, loss_weights={"t": 2.0})
    with pytest.raises(UnsupportedError, match=r"record 1 of source 't' is a float.*return a dict"):
        tensors[1]


# --- what is refused ------------------------------------------------------------------------

A, B = Texts("a", 3), Texts("b", 5)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: Mixture({}, {}), "at least one source"),
    "empty": (lambda: Mixture({"a": A, "b": []}, {"a": 1, "b": 1}), "source 'b' is empty: it has 0 records"),
    "unsized": (lambda: Mixture({"a": iter([1])}, {"a": 1}), "source 'a' has no length"),
    "never": (
        lambda: Mixture({"a": A, "b": B}, {"a": 1, "b": 0}),
        "'b' has weight 0 and would never be drawn",
    ),
    "negative": (lambda: Mixture({"a": A, "b": B}, {"a": 1, "b": -2}), "source 'b' is -2, which is negative"),
    "nan": (lambda: Mixture({"a": A}, {"a": float("nan")}), "source 'a' is nan, which is not a finite"),
    "zero": (lambda: Mixture({"a": A}, {"a": 0}), "all weights are zero: a"),
    "unknown": (lambda: Mixture({"a": A}, {"a": 1, "c": 1}), "no source is called 'c'"),
    "schedule": (lambda: pair(schedule="random"), "schedule 'random' is not one of quota, categorical"),
    "unit": (lambda: pair(unit="byte"), "unit 'byte' is not one of"),
    "exhaustion": (lambda: pair(exhaustion="loop"), "exhaustion 'loop' is not one of"),
    "replacement": (lambda: pair(replacement={"c": True}), "replacement is given for 'c'"),
    "loss": (lambda: pair(loss_weights={"b": float("inf")}), "loss weight of source 'b' is inf"),
    "loss name": (lambda: pair(loss_weights={"c": 1.0}), "loss_weights is given for 'c'"),
    "order": (lambda: pair(weight_schedule=[(5, {"a": 1, "b": 1})] * 2), r"\[5, 5\]; they must rise"),
    "batch 0": (lambda: pair(weight_schedule=[(0, {"a": 1, "b": 1})]), r"\[0\]; they must rise"),
    "change": (lambda: pair(weight_schedule=[(5, {"a": 1})]), "no weight is given for 'b'"),
    "epoch": (lambda: pair(epoch_size=0), "epoch_size must be 1 or more, not 0"),
    "epoch of a half": (lambda: pair(epoch_size=20.5), "epoch_size must be a whole number, not 20.5"),
    "epoch of truth": (lambda: pair(epoch_size=True), "epoch_size must be a whole number, not True"),
    "window": (lambda: pair(window=0), "window must be 1 or more, not 0"),
    "window of text": (lambda: pair(window="9"), "window must be a whole number, not '9'"),
    "list": (lambda: Mixture([A], {"a": 1}), "sources are datasets by name"),  # type: ignore[arg-type]
    "names": (lambda: Mixture({0: A}, {0: 1}), "sources are datasets by name"),  # type: ignore[dict-item]
    "weights": (lambda: Mixture({"a": A}, [1]), r"names of the sources, not as \[1\]"),  # type: ignore[arg-type]
    "mixed names": (
        lambda: Mixture({"a": A}, {"a": 1, 5: 1, "c": 1}),  # type: ignore[dict-item]
        "no source is called 'c', 5",
    ),
    "none": (lambda: Mixture({"a": A}, {"a": None}), "source 'a' is None"),  # type: ignore[dict-item]
    "far": (lambda: Mixture({"a": A}, {"a": "1e9999999"}), "source 'a' is '1e9999999'"),
    "near": (lambda: Mixture({"a": A}, {"a": "1e-9_999_999"}), "source 'a' is '1e-9_999_999'"),
    "large": (lambda: Mixture({"a": A, "b": B}, {"a": "1e9999", "b": 1}), r"denominator of more than 2\^33"),
    "loss list": (lambda: pair(loss_weights=[1.0]), "loss_weights are given by the names"),
    "loss text": (lambda: pair(loss_weights={"a": "2"}), "loss weight of source 'a' is '2'"),
    "schedule of numbers": (lambda: pair(weight_schedule=[3]), r"weight_schedule is \[3\], not pairs"),
    "schedule of none": (lambda: pair(weight_schedule=5), "weight_schedule is 5, not pairs"),
    "schedule at a half": (
        lambda: pair(weight_schedule=[(1.5, {"a": 1, "b": 1})]),
        "a whole number, not 1.5",
    ),
    "change to none": (lambda: pair(weight_schedule=[(5, None)]), "names of the sources, not as None"),
    "no lengths": (lambda: pair(unit="token"), r"source 'a' has no lengths.*--tokens COLUMN.*load_lengths"),
    "few lengths": (lambda: weighed([1, 2]), "source 'a' has 3 records and 2 lengths"),
    "negative length": (lambda: weighed([1, -2, 1]), "record 1 of source 'a' has length -2"),
    "no tokens": (lambda: weighed([0, 0, 0]), "no record of source 'a' has a token"),
    "fractions": (lambda: weighed([1.0, 2.0, 3.0]), "lengths of source 'a' are float64"),
}


def weighed(lengths: list[Any]) -> Mixture:
    return Mixture({"a": Texts("a", 3, lengths=np.array(lengths))}, {"a": 1}, unit="token")


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_by_name_and_value(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        make()


def test_a_weight_of_zero_holds_for_the_time_being() -> None:
    view = Mixture({"a": A, "b": B}, {"a": 1, "b": 0}, weight_schedule=[(2, {"a": 0, "b": 1})])
    sequence = view.sequence(seed=1)
    state, drawn = sequence.start(0), []
    for _ in range(4):
        batch, state = sequence.take(state, 3)
        drawn.append(set(view.sources_of(batch.ids).tolist()))
    assert drawn == [{0}, {0}, {1}, {1}]


# --- reports and alarms ---------------------------------------------------------------------


def test_a_report_has_target_and_actual_counts() -> None:
    view = pair()
    sequence = view.sequence(seed=1)
    state = sequence.start(0)
    assert view.report(state)["b"].deviation == 0
    _, state = sequence.take(state, 10)
    report = view.report(state)
    assert (report["a"].draws, report["b"].draws) == (3, 7) or (report["a"].draws, report["b"].draws) == (
        2,
        8,
    )
    assert report["a"].target == 0.25 and report["a"].share == report["a"].draws / 10
    assert report["a"].debt == pytest.approx(2.5 - report["a"].draws)
    assert report["a"].deviation == pytest.approx(-report["a"].debt / 10)
    assert report["b"].epoch == (report["b"].draws - 1) // 5 and not report["b"].removed
    assert view.report({"batches": 1, "sequence": {"inner": state, "used": 0}}) == report
    with pytest.raises(FormatError, match="no state of a mixture"):
        view.report({"epoch": 0})
    with pytest.raises(FormatError, match="'lanes' in its state is 'missing'"):
        view.report({name: item for name, item in state.items() if name != "lanes"})


def test_a_removed_source_is_reported() -> None:
    view = pair(exhaustion="renormalize")
    sequence = view.sequence(seed=1)
    state = sequence.take(sequence.start(0), 8)[1]
    report = view.report(state)
    assert report["b"].removed and report["b"].target == 0 and report["a"].target == 1


@pytest.mark.parametrize("schedule", ["quota", "categorical"])
def test_a_skewed_source_sounds_the_alarm_and_a_sound_one_does_not(schedule: Any) -> None:
    view = Mixture(
        {"a": Texts("a", 10**6), "b": Texts("b", 10**6)}, {"a": 1, "b": 3}, schedule=schedule, window=500
    )
    sequence = view.sequence(seed=5)
    batch, state = sequence.take(sequence.start(0), 20_000)
    drawn = view.sources_of(batch.ids)
    assert check_draws(view.policy, drawn) == [] and check_debts(view.policy, state) == []
    skewed = drawn.copy()
    skewed[4000:4500][:90] = 0  # ninety draws of one window went to the wrong source
    found = check_draws(view.policy, skewed)
    assert [(f.source, f.window) for f in found] == [("a", (4000, 4500)), ("b", (4000, 4500))]
    assert found[0].score > found[0].allowed and "source 'a' had" in str(found[0])


def test_quotas_are_off_by_one_draw_and_that_is_seen() -> None:
    policy = pair().policy
    assert check_window(policy, policy.weights, [250, 750], (0, 1000)) == []
    assert len(check_window(policy, policy.weights, [249, 751], (0, 1000))) == 2
    assert check_window(policy, policy.weights, [249, 751], (1000, 2000)) == []
    assert len(check_window(policy, policy.weights, [248, 752], (1000, 2000))) == 2


def test_a_debt_beyond_its_limit_is_a_finding() -> None:
    view = pair()
    sequence = view.sequence(seed=1)
    assert isinstance(sequence, MixedSequence)
    state = sequence.take(sequence.start(0), 10)[1]
    assert check_debts(view.policy, state) == []
    wrong = {**state, "debts": [state["limit"] + 1, -state["limit"] - 1]}
    assert [finding.source for finding in check_debts(view.policy, wrong)] == ["a", "b"]


def test_draws_weighed_by_tokens_are_in_no_declared_ratio() -> None:
    view = weighed([1, 2, 3])
    with pytest.raises(UnsupportedError, match="check_debts"):
        check_draws(view.policy, np.zeros(1000, dtype=np.int64))


def test_a_weight_schedule_may_be_a_mapping() -> None:
    listed, mapped = [(2, {"a": 1, "b": 0})], {2: {"a": 1, "b": 0}}
    assert pair(weight_schedule=mapped).dataset_id == pair(weight_schedule=listed).dataset_id
