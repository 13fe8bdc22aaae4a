"""From each requirement to the tests that show it: complete, true, and written out as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools import traceability
from tools.traceability import Requirement, faults, load, written


def test_the_table_is_up_to_date() -> None:
    told = "run: python tools/traceability.py"
    assert traceability.WRITTEN.read_text(encoding="utf-8") == written(load()), told


def test_every_named_test_exists() -> None:
    assert not list(faults(load()))


HERE = "tests/traceability/test_traceability.py"
ONE = Requirement("SPEC-01", "one", (f"{HERE}::test_every_named_test_exists",))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (replace(ONE, tests=(f"{HERE}::test_gone",)), "there is no"),
        (replace(ONE, tests=("tests/no/such/test_file.py",)), "there is no"),
        (replace(ONE, tests=()), "no reason why"),
        (replace(ONE, tests=(), note="partly: nothing"), "no reason why"),
        (replace(ONE, tests=(), note="later"), "begins with none of"),
        (replace(ONE, tests=ONE.tests * 2), "twice"),
        (replace(ONE, id="SPEC-99"), "is no requirement"),
        (replace(ONE, id="SPEC-02"), "SPEC-01: is missing"),
    ],
)
def test_a_planted_fault_is_told(changed: Requirement, told: str) -> None:
    assert any(told in each for each in faults((changed,)))
    assert not [each for each in faults((ONE,)) if each.startswith("SPEC-01")]


def test_a_class_of_tests_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("class TestA:\n    def test_b(self): ...\n")
    assert traceability.exists("test_x.py::TestA::test_b", tmp_path)
    assert not traceability.exists("test_x.py::test_b", tmp_path)
