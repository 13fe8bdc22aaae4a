"""``--chaos-every``: a real launcher kills one of its own workers, says so, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_core.engine.inspect import open_run
from durable_core.errors import UsageError
from durable_core.launch.chaos import Chaos
from tests.launch.launching import launched, new_run, until


def test_a_worker_is_killed_told_and_recorded(tmp_path: Path) -> None:
    root = new_run(tmp_path / "root")
    flags = ("--root", str(root), "--no-preflight", "--chaos-every", "2")
    with launched(tmp_path, "wait", flags=flags) as launcher:
        until(lambda: bool(open_run(root).state.failures) or not launcher.alive, launcher.said)
        failure = next(iter(open_run(root).state.failures))
        assert str(failure.payload["evidence"]["provoked"]).startswith("scheduled chaos kills rank")
        assert failure.payload["class"] == "F1"
        assert "scheduled chaos kills rank" in launcher.said()


def test_no_time_between_faults_is_refused() -> None:
    with pytest.raises(UsageError):
        Chaos(-1.0, "run")
