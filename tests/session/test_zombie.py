"""A writer that was stopped wakes up after a newer generation has committed: it is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from session_helpers import check, restored, start, state_at

from durable_core.engine.inspect import open_run


@pytest.mark.parametrize("point", ["K4", "K6", "K8", "K10", "K12"])
def test_a_stopped_writer_cannot_commit_over_a_newer_generation(tmp_path: Path, point: str) -> None:
    script = Path(__file__).parent / "zombie_writer.py"
    zombie = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), point], stdout=subprocess.PIPE, text=True
    )
    try:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        run = start(tmp_path, takeover=True)
        assert run.restored_from == (1, 1)
        run.save(state_at(2), {}, step=2, wait=True)
        run.save(state_at(3), {}, step=3, wait=True)
        os.kill(zombie.pid, signal.SIGCONT)
        out, _ = zombie.communicate(timeout=60)
        assert zombie.returncode == 76
        assert out.strip() in ("Fenced", "Superseded")
        run.save(state_at(4), {}, step=4, wait=True)
        run.close()
    finally:
        zombie.kill()
        zombie.wait()
    state = open_run(tmp_path).state
    assert [state.checkpoints[c].step for c in state.lineage()] == [0, 1, 2, 3, 4]
    assert {state.checkpoints[c].generation for c in state.lineage()[2:]} == {2}
    step, tree = restored(tmp_path)
    assert step == 4
    check(4, tree)
