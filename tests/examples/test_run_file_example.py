"""The run file that people copy: complete, and it says what it seems to say."""

from __future__ import annotations

from pathlib import Path

from durable_core.spec import runfile

EXAMPLE = Path(__file__).parents[2] / "examples" / "run.yaml"


def test_the_example_leaves_nothing_open(tmp_path: Path) -> None:
    declared = runfile.freeze(EXAMPLE, tmp_path / "frozen.json")
    assert declared.spec.membership is not None and declared.spec.membership.fixed == 2
    assert declared.spec.may_cancel("oncall")


def test_every_line_that_is_marked_needed_is() -> None:
    text = EXAMPLE.read_text()
    marked = {line.split(":")[0].strip() for line in text.splitlines() if "# needed" in line}
    stated = {names[0].split(".")[-1] for names in runfile.MANDATORY}
    assert {
        "owner",
        "cancel_authority",
        "membership",
        "goals",
        "max_restarts",
        "artifacts",
    } <= marked & stated
