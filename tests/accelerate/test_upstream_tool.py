"""``tools/upstream.py``: what it makes of what became of the tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def upstream() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "upstream.py"
    spec = importlib.util.spec_from_file_location("upstream_tool", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module


FAILED = ["failed", "AssertionError"]


def test_what_is_explained_is_an_exception_and_what_is_not_is_a_failure(upstream: ModuleType) -> None:
    reports = {
        "A::one": ["passed", ""],
        "A::two": FAILED,
        "B::three": FAILED,
        "B::four": ["skipped", "no GPU"],
    }
    outcome = upstream.Outcome.of("1.0", reports, {"A::t*": "by design"})
    assert (outcome.run, outcome.passed, outcome.skipped) == (3, 1, {"B::four": "no GPU"})
    assert (outcome.exceptions, outcome.failed) == ({"A::two": "by design"}, {"B::three": "AssertionError"})
    assert not outcome.good


@pytest.mark.parametrize(
    ("reports", "expected", "good"),
    [
        ({"A::one": ["passed", ""]}, {}, True),
        ({"A::one": FAILED, "A::two": ["passed", ""]}, {"A::one": "by design"}, True),
        ({"A::one": ["passed", ""]}, {"A::one": "by design"}, False),  # no exception any more: say so
        ({"A::one": ["skipped", "no GPU"]}, {}, False),  # nothing was run
        ({}, {}, False),
    ],
)
def test_when_it_is_good(
    upstream: ModuleType, reports: dict[str, list[str]], expected: dict[str, str], good: bool
) -> None:
    assert upstream.Outcome.of("1.0", reports, expected).good is good
