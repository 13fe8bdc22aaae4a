"""A mixture that does as its policy says is never accused; one that does not is named, with its numbers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from durable_core.data import DurableLoader, Mixture, Packing
from durable_core.data.mixture import check_between, gone, mixture_in
from durable_core.errors import FormatError


class Numbers:
    def __init__(self, name: str, size: int) -> None:
        self.dataset_id = f"sha256:{name}"
        self.lengths = np.array([1 + i * 5 % 9 for i in range(size)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return np.full(self.lengths[index], index)


def mixed(**more: Any) -> Mixture:
    sources = {"a": Numbers("a", 300), "b": Numbers("b", 200)}
    return Mixture(sources, {"a": 0.7, "b": 0.3}, **more)


def states(mixture: Mixture, batches: int, count: int = 25) -> list[Any]:
    sequence = mixture.sequence(seed=5)
    found = [sequence.start(0)]
    for _ in range(batches):
        found.append(sequence.take(found[-1], count)[1])
    return found


def skewed(state: Any, by: int, name: str = "draws") -> Any:
    """As if ``by`` of what the second source had was the first one's."""
    a, b = state[name]
    return {**copy.deepcopy(state), name: [a + by, b - by]}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"schedule": "categorical"},
        {"unit": "token"},
        {"unit": "token", "schedule": "categorical"},
        {"weight_schedule": [(7, {"a": 0.2, "b": 0.8}), (11, {"a": 0.5, "b": 0.5})]},
        {"exhaustion": "renormalize"},
    ],
)
def test_what_was_drawn_by_the_policy_is_not_accused(how: dict[str, Any]) -> None:
    mixture = mixed(**how)
    found = states(mixture, 18)
    for first in range(0, 18, 3):
        for last in range(first, 19, 2):
            assert not check_between(mixture.policy, found[first], found[last])


@pytest.mark.parametrize(
    ("how", "name", "by", "allowed"),
    [
        ({}, "draws", 4, "1.00 is allowed"),
        ({"schedule": "categorical"}, "draws", 60, "4.00 is allowed"),
        ({"unit": "token"}, "units", 80, "is allowed"),
    ],
)
def test_a_skewed_source_is_named_with_target_and_count(
    how: dict[str, Any], name: str, by: int, allowed: str
) -> None:
    mixture = mixed(**how)
    found = states(mixture, 18)
    findings = check_between(mixture.policy, found[4], skewed(found[-1], by, name))
    assert [finding.source for finding in findings] == ["a", "b"]
    first = findings[0]
    assert first.window == (100, 450) and first.observed > first.expected
    assert allowed in str(first) and "draws 100 to 450" in str(first)


def test_a_debt_beyond_its_limit_is_found_where_counts_cannot_be_compared() -> None:
    mixture = mixed(weight_schedule=[(7, {"a": 0.2, "b": 0.8})])
    found = states(mixture, 18)
    broken = {**found[-1], "debts": [3 * found[-1]["limit"], -3 * found[-1]["limit"]]}
    assert not check_between(mixture.policy, found[2], found[-1])
    assert {each.source for each in check_between(mixture.policy, found[2], broken)} == {"a", "b"}


def test_sources_that_ran_out_are_told_with_what_they_gave() -> None:
    mixture = mixed(exhaustion="renormalize")
    found = states(mixture, 19)
    assert gone(mixture.policy, found[3]) == {}
    assert gone(mixture.policy, found[-1]) == {"a": 300}


@pytest.mark.parametrize("unit", ["sample", "document", "packed"])
def test_the_mixture_of_a_loader_is_found_in_its_position(unit: Any) -> None:
    packing = None if unit == "sample" else Packing(16)
    collate = list
    loader = DurableLoader(mixed(unit=unit), 4, packing=packing, seed=3, collate_fn=collate)
    assert mixture_in(loader.state_dict()) is None  # nothing was drawn
    batches = iter(loader)
    for step in range(1, 4):
        next(batches)
        loader.acknowledge(step=step)
    found = mixture_in(loader.state_dict())
    assert found is not None
    policy, state = found
    assert policy == loader.dataset.policy
    drawn = sum(state["draws"])
    assert drawn >= 12 or unit == "document"  # which counts them by the chunk, once all of it is packed


def test_other_positions_have_no_mixture() -> None:
    plain = DurableLoader(list(range(8)), 2, seed=1)
    packs = DurableLoader(Numbers("a", 30), 2, packing=Packing(16), seed=1)
    assert mixture_in(plain.state_dict()) is None and mixture_in(packs.state_dict()) is None
    assert mixture_in({}) is None
    with pytest.raises(FormatError, match="mixture"):
        mixture_in({"plan": {"name": "quota_v1"}, "source": {"state": {"debts": []}}})
