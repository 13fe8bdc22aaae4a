"""A run in full is started with the record of a pilot that passed, or with a reason why not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from controller_world import World

from durable_core.cli.app import run
from durable_core.errors import FormatError, UsageError
from durable_core.format.record import Kind
from durable_core.launch.agent import flags
from durable_core.launch.pilot import Part, PilotRecord, gate, subject_of


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    return str(path)


@pytest.fixture
def record(tmp_path: Path, script: str) -> Path:
    """Of a pilot of that script, which passed."""
    path = tmp_path / "pilot.json"
    made = PilotRecord(subject_of((script, "--steps", "10")), 1e9, 3, (), (Part("output", "succeeded"),))
    made.write(path)
    return path


def change(record: Path, **changes: object) -> None:
    replace(PilotRecord.read(record), **changes).write(record)  # type: ignore[arg-type]


def test_a_record_comes_through_its_file(record: Path) -> None:
    found = PilotRecord.read(record)
    assert found.passed and found.parts == (Part("output", "succeeded"),)


def test_what_passed_at_small_scale_may_start_in_full(record: Path, script: str) -> None:
    assert gate(str(record), (script, "--steps=1000000")).startswith("passed, 3 kills")
    assert gate("", (script,)) == "", "nobody asked for a pilot"


def test_a_pilot_that_failed_opens_nothing(record: Path, script: str) -> None:
    change(record, faults=("2 tensors differ",))
    with pytest.raises(UsageError, match="2 tensors differ"):
        gate(str(record), (script, "--steps", "10"))


def test_a_pilot_is_of_one_script_with_its_options(record: Path, script: str) -> None:
    with pytest.raises(UsageError, match="another script"):
        gate(str(record), (script, "--steps", "10", "--compile"))
    Path(script).write_text("print('something else')\n")
    with pytest.raises(UsageError, match="another script"):
        gate(str(record), (script, "--steps", "10"))


def test_a_module_is_known_by_its_content() -> None:
    modules = (("-m", "json.tool"), ("-m", "json.decoder"))
    assert subject_of(modules[0]) != subject_of(modules[1])
    assert subject_of(list(modules[0])) == subject_of(modules[0])


def test_no_record_is_no_pilot(tmp_path: Path, script: str) -> None:
    with pytest.raises(UsageError, match="durable pilot"):
        gate(str(tmp_path / "none.json"), (script,))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"v": 1}', '{"v": 2, "parts": [], "faults": []}'])
def test_another_file_is_no_record(record: Path, script: str, content: str) -> None:
    record.write_text(content)
    with pytest.raises(FormatError):
        gate(str(record), (script,))


def test_a_waiver_needs_its_reason(script: str) -> None:
    assert gate("waive: the same as last week ", (script,)) == "waived: the same as last week"
    with pytest.raises(UsageError, match="reason"):
        gate("waive: ", (script,))


def test_the_subject_is_the_script_and_not_how_a_launcher_runs_it(script: str) -> None:
    ids = iter(("id",))
    found = flags.parse(["--nproc-per-node", "2", script, "--steps", "7"], lambda: next(ids))
    assert found.script == (script, "--steps", "7")
    assert flags.parse(["--no-python", "prog", "-x"], lambda: "id").script == ("prog", "-x")


def test_a_launch_without_the_record_that_it_asks_for_starts_nothing(
    tmp_path: Path, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["launch", "--pilot", str(tmp_path / "none.json"), script]) == 2
    assert "no pilot record" in capsys.readouterr().err


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "root", tmp_path / "dir")
    with made.stack:
        yield made


def test_the_journal_says_that_a_pilot_was_waived(world: World) -> None:
    world.running(world.controller(pilot="waived: the same as last week"))
    said = [record.payload["evidence"]["pilot"] for record in world.records(Kind.RUN_STATE)]
    assert said and set(said) == {"waived: the same as last week"}


def test_of_a_pilot_that_nobody_asked_for_it_says_nothing(world: World) -> None:
    world.running(world.controller())
    assert "pilot" not in json.dumps([record.payload for record in world.records(Kind.RUN_STATE)])
