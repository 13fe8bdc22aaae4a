"""Two gloo workers under ``durable launch``: a planned stop loses no step, a kill loses no run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from durable_core.engine.inspect import open_run
from tests.launch.launching import kill, running, until

SCRIPT = Path(__file__).parent / "gloo_writer.py"


def told(log: Path, rank: int, event: str) -> list[dict[str, Any]]:
    path = log.with_name(f"{log.name}.{rank}")
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [line for line in lines if line["event"] == event]


def steps(log: Path, rank: int) -> list[int]:
    """The steps that a rank has trained, in their order."""
    return [line["step"] for line in told(log, rank, "step")]


def test_a_drained_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    log, root = tmp_path / "log", tmp_path / "root"
    with running(log, str(SCRIPT), str(root), "1000", str(log), "0.02") as launcher:
        until(lambda: len(steps(log, 1)) >= 5 or not launcher.alive, launcher.said)
        os.kill(launcher.pid, signal.SIGTERM)
        assert launcher.ended() == 75, launcher.said()
    run = open_run(root).state
    assert run.draining is not None and run.head_step == run.draining["step"], "the boundary is durable"
    assert not run.failures and run.terminal is None
    last = max(step for rank in (0, 1) for step in steps(log, rank))
    assert last == run.head_step, "no rank went further"
    with running(log, str(SCRIPT), str(root), str(last + 3), str(log)) as launcher:
        assert launcher.ended() == 0, launcher.said()
    for rank in (0, 1):
        assert steps(log, rank) == list(range(1, last + 4)), "every step once"


def test_a_launch_that_may_take_over_does_not_do_so_from_itself(tmp_path: Path) -> None:
    """No generation is claimed for its first workers, for there is no run yet."""
    log, root = tmp_path / "log", tmp_path / "root"
    with running(log, "--takeover", str(SCRIPT), str(root), "12", str(log), "0.02") as launcher:
        until(lambda: len(steps(log, 1)) >= 3 or not launcher.alive, launcher.said)
        kill(told(log, 1, "start")[-1]["pid"])
        assert launcher.ended() == 0, launcher.said()
    state = open_run(root).state
    assert (state.generation, len(state.failures), state.superseded) == (2, 1, frozenset())
