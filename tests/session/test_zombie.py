"""A writer that was stopped wakes up after a newer generation has committed: it is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from session_helpers import check, restored, start, state_at

from durable_core.engine.inspect import open_run
from tests.lives import as_script, ended
from tests.lives import start as fork


@pytest.mark.parametrize("point", ["K4", "K6", "K8", "K10", "K12"])
def test_a_stopped_writer_cannot_commit_over_a_newer_generation(tmp_path: Path, point: str) -> None:
    script = Path(__file__).parent / "zombie_writer.py"
    root = tmp_path / "run"
    zombie = fork(tmp_path, as_script(script, root, point))
    try:
        _, status = os.waitpid(zombie, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        run = start(root, takeover=True)
        assert run.restored_from == (1, 1)
        run.save(state_at(2), {}, step=2, wait=True)
        run.save(state_at(3), {}, step=3, wait=True)
        os.kill(zombie, signal.SIGCONT)
        code, zombie = ended(zombie), 0
        said = (tmp_path / "output").read_text()
        assert code == 76, said
        assert said.splitlines()[-1] in ("Fenced", "Superseded")
        run.save(state_at(4), {}, step=4, wait=True)
        run.close()
    finally:
        if zombie:
            os.kill(zombie, signal.SIGKILL)
            ended(zombie)
    state = open_run(root).state
    assert [state.checkpoints[c].step for c in state.lineage()] == [0, 1, 2, 3, 4]
    assert {state.checkpoints[c].generation for c in state.lineage()[2:]} == {2}
    step, tree = restored(root)
    assert step == 4
    check(4, tree)
