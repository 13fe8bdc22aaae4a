"""A pilot of the plain example: the script as it is, once undisturbed and once with its worker killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from durable_core.cli.app import run
from durable_core.errors import UsageError
from durable_core.launch.pilot import PilotRecord, gate
from durable_core.testing.pilot import Pilot, _named, _positive

PLAIN = str(Path(__file__).parents[2] / "examples" / "plain_loop.py")


def test_a_pilot_that_passes_opens_the_launch_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pilot.json"
    script = [PLAIN, "--root", "{root}", "--epochs", "6"]
    assert run(["pilot", "--out", str(out), "--kills", "1", "--json", "--", *script]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] and told["kills"] == 1
    assert told["parts"]["output"] == "succeeded" and told["parts"]["input transforms"]
    assert told["parts"]["mixture counts"] == told["parts"]["evaluation"] == "", "it has neither"
    assert gate(str(out), (PLAIN, "--root", "runs/plain", "--epochs", "3000")).startswith("passed")


def test_a_script_that_ends_badly_does_not_pass(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no data')\n")
    flags = ("--max-restarts", "0", "--no-preflight")
    record = Pilot((str(script), "{root}"), tmp_path / "pilot", flags, kills=1).fly()
    record.write(tmp_path / "pilot.json")
    assert not record.passed and "undisturbed, it ended with" in record.faults[0]
    assert PilotRecord.read(tmp_path / "pilot.json") == record


def test_the_script_must_say_where_its_root_belongs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="root"):
        Pilot((PLAIN,), tmp_path)


def test_parts_are_looked_for_at_any_depth() -> None:
    document = {("role", "dp0"): {"$dict": [["fit", {"$dict": [["a.val_loop.batch_progress", [0, 3]]]}]]}}
    assert list(_named(document, "val_loop.batch_progress")) == [[0, 3]]
    assert list(_named({"sources": [1, 2], "x": ("y", {"sources": []})}, "sources")) == [[1, 2], []]
    assert _positive({"total": [0, {"ready": 1}]}) and not _positive({"total": 0, "text": "9"})
