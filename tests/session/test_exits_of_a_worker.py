"""How a launched plain loop leaves: 75 drained, 76 fenced, 1 for an error; the words say which, and where."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from durable_core.engine import beats
from durable_core.engine.beats import Phase
from durable_core.engine.inspect import open_run
from durable_core.engine.launched import RunFiles
from durable_core.engine.words import Words, read_words

SCRIPT = Path(__file__).parent / "exit_writer.py"
RUNNERS = {
    "through the runner": [sys.executable, "-m", "durable_core.launch.worker", str(SCRIPT)],
    "as torchrun starts it": [sys.executable, str(SCRIPT)],
}
DEADLINE_S = 120.0


def live(runner: str, tmp_path: Path, ends: str) -> tuple[int, Words | None]:
    files = RunFiles(tmp_path / "launch").prepare()
    process = subprocess.Popen(
        [*RUNNERS[runner], str(tmp_path / "run"), ends], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "DURABLE_RUN_DIR": str(files.root), "RANK": "0", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "trained\n"
        if ends == "term":
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait(DEADLINE_S)
    beat = beats.read(files.beat(0))
    assert beat is not None
    assert (beat.attempt, beat.phase) == (0, Phase.EXIT)
    said = read_words(files.words(0))
    return process.returncode, said


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_drained_worker_exits_75_without_a_word(runner: str, tmp_path: Path) -> None:
    assert live(runner, tmp_path, "term") == (75, None)
    state = open_run(tmp_path / "run").state
    assert state.draining is not None
    assert state.head_step == state.draining["step"]


def test_a_save_while_the_interpreter_ends_is_one(tmp_path: Path) -> None:
    assert live("as torchrun starts it", tmp_path, "late") == (0, None)
    assert open_run(tmp_path / "run").state.head_step == 3


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_fenced_worker_exits_76_and_says_so(runner: str, tmp_path: Path) -> None:
    status, words = live(runner, tmp_path, "fenced")
    assert status == 76
    assert words is not None
    assert (words.branch, words.step, words.exit_code) == ("FencedError", 3, 76)
    assert open_run(tmp_path / "run").state.launch_id == "other"


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_error_exits_1_and_says_where(runner: str, tmp_path: Path) -> None:
    status, words = live(runner, tmp_path, "error")
    assert status == 1
    frames = ("session/exit_writer.py:<module>", "session/exit_writer.py:main")
    assert words == Words("RuntimeError", "mine", frames=frames, step=3)
