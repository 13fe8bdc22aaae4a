"""The plain-loop example, killed for real: the same weights, every sample once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "plain_loop.py"


def run(root: Path, crash: str = "", *more: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "durable_core.testing.crash",
        str(SCRIPT),
        "--root",
        str(root),
        "--epochs",
        "2",
        *more,
    ]
    environment = {**os.environ, "DURABLE_TEST_CRASH": crash, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


def digest(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.split("weights ")[1].strip()


def test_killed_twice_it_ends_with_the_same_weights_and_every_sample_once(tmp_path: Path) -> None:
    reference = digest(run(tmp_path / "reference"))
    for crash in ("K6:2", "K13:2"):
        assert run(tmp_path / "killed", crash).returncode == -9
    last = run(tmp_path / "killed")
    assert "restored from" in last.stdout
    assert digest(last) == reference
    # started once more, the finished run has nothing to do and says the same
    assert digest(run(tmp_path / "killed")) == reference
    audit = subprocess.run(
        [sys.executable, "-m", "durable_core.cli", "audit", str(tmp_path / "killed"), "--json"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert audit.returncode == 0, audit.stdout
    report = json.loads(audit.stdout)
    assert (report["samples"], report["repeated"], report["skipped"]) == (2 * 4096, 0, 0)


def test_with_memory_a_kill_costs_no_more_than_the_step_it_fell_into(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    options = ("--memory", str(memory), "--every", "50")
    assert run(tmp_path / "killed", "K5:30", *options).returncode == -9
    last = run(tmp_path / "killed", "", *options)
    step = int(re.findall(r"restored from \(\d+, (\d+)\)", last.stdout)[0])
    assert 28 <= step <= 30  # the initial state is sealed too
    assert digest(last) == digest(run(tmp_path / "reference", "", "--every", "50"))
    assert not list(memory.rglob("*.slot")), "a run that has ended leaves nothing in memory"
