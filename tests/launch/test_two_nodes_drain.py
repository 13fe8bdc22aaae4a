"""Two agents with a worker each: what one is asked for, all of the group do, and no step is lost."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from durable_core.engine import words
from durable_core.engine.inspect import open_run
from durable_core.engine.launched import RunFiles
from durable_core.engine.words import Request
from tests.launch.torchrun_runs import SCRIPT, Logs, agent, free_port, marked, until

WAIT_S = 120.0


def test_a_drain_that_the_controller_asks_for_and_a_planned_stop_lose_no_step(tmp_path: Path) -> None:
    port, root, logs = free_port(), tmp_path / "root", Logs(tmp_path / "log", 2)
    script = (str(SCRIPT), str(root), "100000", str(tmp_path / "log"), "0.02")

    def start(node: int) -> subprocess.Popen[bytes]:
        return agent(
            tmp_path, f"agent{node}", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "two",
            "--nnodes", "2", "--nproc-per-node", "1", "--local-addr", "127.0.0.1", "--root", str(root),
            "--no-preflight", "--max-restarts", "0", script=script, level=2,
        )  # fmt: skip

    agents = [start(node) for node in (0, 1)]
    try:
        until(logs.stepping, WAIT_S, "both train")
        first, (generation,) = logs.starts(0)[0], logs.opened()
        unfit = {"place": "another-host", "reason": "it is slow", "rank": 1}
        request = Request("d" * 32, "drain", generation, "F6", "it is slow", {"unfit": unfit})
        words.write(
            RunFiles(Path(first["told"]["DURABLE_RUN_DIR"])).requests / f"{request.op_id}.json", request
        )
        until(lambda: len(logs.opened()) == 2 and logs.stepping(), WAIT_S, "they train again")
        os.kill(agents[1].pid, signal.SIGTERM)
        assert [process.wait(WAIT_S) for process in agents] == [75, 75]
    finally:
        for process in agents:
            process.kill()
            process.wait()
        until(lambda: not marked(tmp_path), WAIT_S, "the end of all of it")
    state = open_run(root).state
    assert state.generation == 2 and state.terminal is None and state.draining is not None
    assert state.head_step == state.draining["step"]
    assert not any(line.payload["charged"] for line in state.failures)
    for rank in (0, 1):
        trained = [line["step"] for line in logs.of(rank) if line["event"] == "step"]
        assert trained == list(range(1, state.head_step + 1)), "every step once"
