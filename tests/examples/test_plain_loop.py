"""The plain-loop example, killed for real: the same weights, every sample once."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from durable_core.cli.app import run as durable
from durable_core.testing import crash
from tests.lives import life

SCRIPT = Path(__file__).parents[2] / "examples" / "plain_loop.py"


def run(root: Path, *more: str, kill: str = "", epochs: int = 2) -> tuple[int, str]:
    """One life of the example: its exit code, and what it said."""
    output = root.parent / "output"
    output.unlink(missing_ok=True)

    def action() -> None:
        os.environ[crash.VARIABLE] = kill
        crash.main([str(SCRIPT), "--root", str(root), "--epochs", str(epochs), *more])

    return life(root.parent, action), output.read_text()


def digest(done: tuple[int, str]) -> str:
    code, said = done
    assert code == 0, said
    return said.split("weights ")[1].split()[0]


def test_killed_twice_it_ends_with_the_same_weights_and_every_sample_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = digest(run(tmp_path / "reference"))
    for kill in ("K6:2", "K13:2"):
        assert run(tmp_path / "killed", kill=kill)[0] == -9
    last = run(tmp_path / "killed")
    assert "restored from" in last[1]
    assert digest(last) == reference
    # started once more, the finished run has nothing to do and says the same
    assert digest(run(tmp_path / "killed")) == reference
    assert durable(["audit", str(tmp_path / "killed"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["samples"], report["repeated"], report["skipped"]) == (2 * 4096, 0, 0)


def test_with_memory_a_kill_costs_no_more_than_the_step_it_fell_into(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    options = ("--memory", str(memory), "--every", "50")
    assert run(tmp_path / "killed", *options, kill="K5:30", epochs=1)[0] == -9
    last = run(tmp_path / "killed", *options, epochs=1)
    step = int(re.findall(r"restored from \(\d+, (\d+)\)", last[1])[0])
    assert 28 <= step <= 30  # the initial state is sealed too
    assert digest(last) == digest(run(tmp_path / "reference", "--every", "50", epochs=1))
    assert not list(memory.rglob("*.slot")), "a run that has ended leaves nothing in memory"
