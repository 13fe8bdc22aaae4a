"""Real kills under plain torchrun and accelerate with the plugin: workers, and whole nodes, one the host."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchrun_runs import SCRIPT, Logs, agent, children, cleaned, free_port, until

from durable_core.engine import heartbeat, inspect
from durable_core.engine.launched import RunFiles

WAIT_S, STEPS = 120.0, 10


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path: Path) -> Iterator[None]:
    with cleaned(tmp_path):
        yield


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """What the run gives when nobody disturbs it, and no launcher is there."""
    directory = tmp_path_factory.mktemp("control")
    logs, port = Logs(directory / "run", 2), str(free_port())
    with cleaned(directory):
        processes = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(directory / "root"), str(STEPS), str(logs.prefix)],
                env={
                    **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                },
            )
            for rank in range(2)
        ]  # fmt: skip
        assert [process.wait(WAIT_S) for process in processes] == [0, 0]
    return logs


class Attempts:
    """Each kill leads to one new attempt under one new generation, and in the end to the same run."""

    def __init__(self, directory: Path) -> None:
        self.root, self.logs = directory / "root", Logs(directory / "run", 2)
        self.script = (str(SCRIPT), str(self.root), str(STEPS), str(self.logs.prefix))
        self.hold = directory / "run.hold"  # each process makes one step, until it is gone
        self.hold.touch()

    def step(self, attempt: int) -> None:
        """Wait until both ranks of ``attempt`` have made a step."""

        def stepping() -> bool:
            starts = [self.logs.starts(rank) for rank in range(2)]
            numbers = {lines[-1]["told"]["DURABLE_ATTEMPT"].rpartition("/")[2] for lines in starts if lines}
            return numbers == {str(attempt)} and self.logs.stepping() is not None

        until(stepping, WAIT_S, f"steps of attempt {attempt}")

    def saved(self) -> bool:
        """Whether that step is committed: a worker that fails while a save waits for a dead peer's part ends
        only when that is given up."""
        step = self.logs.of(0)[-1]["step"]
        return (inspect.open_run(self.root).state.head_step or 0) >= step

    def known(self) -> bool:
        """Whether the agents of both ranks know which run it is."""
        places = [self.logs.starts(rank)[-1]["told"]["DURABLE_RUN_DIR"] for rank in range(2)]
        return all(RunFiles(Path(place)).opened.exists() for place in places)

    def worker(self, rank: int) -> int:
        return int(self.logs.of(rank)[-1]["pid"])

    def check(self, wanted: Logs, attempts: int) -> None:
        assert len(self.logs.attempts()) == attempts
        assert self.logs.opened() == list(range(1, attempts + 1)), "one generation for each attempt"
        told = [start["told"].get("DURABLE_GENERATION") for start in self.logs.starts()]
        assert told == [None, *map(str, range(2, attempts + 1))], (
            "claimed by the launcher, not by the workers"
        )
        state = inspect.open_run(self.root).state
        assert state.superseded == frozenset(), "one launch, whichever agents made it up"
        assert self.logs.done() == wanted.done() != ""
        assert self.logs.samples() == wanted.samples()


def test_a_killed_worker_costs_one_clean_restart_under_torchrun(tmp_path: Path, wanted: Logs) -> None:
    run = Attempts(tmp_path)
    process = agent(
        tmp_path, "agent", "--rdzv-endpoint", "localhost:0", "--nproc-per-node", "2", "--max-restarts", "5",
        "--logs-specs", "durable", "--log-dir", str(tmp_path / "logs"), "--redirects", "3",
        script=run.script,
    )  # fmt: skip
    run.step(1)
    os.kill(run.worker(0), signal.SIGKILL)
    run.hold.unlink()
    assert process.wait(WAIT_S) == 0
    run.check(wanted, attempts=2)
    kept = sorted(path.name for path in (tmp_path / "logs").glob("*/attempt_*"))
    assert kept == ["attempt_1", "attempt_2"]
    left = {start["told"]["DURABLE_RUN_DIR"] for start in run.logs.starts()}
    assert [Path(path).exists() for path in left] == [False], "gone with the launcher"


def test_a_killed_worker_costs_one_clean_restart_under_accelerate(tmp_path: Path, wanted: Logs) -> None:
    command = shutil.which("accelerate", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("accelerate is not installed")
    run = Attempts(tmp_path)
    flags = (
        "launch", "--multi_gpu", "--num_machines", "1", "--num_processes", "2", "--mixed_precision", "no",
        "--dynamo_backend", "no", "--main_process_port", "0", "--rdzv_backend", "durable",
        "--max_restarts", "5",
    )  # fmt: skip
    with (tmp_path / "accelerate.out").open("wb") as out:
        process = subprocess.Popen(
            [command, *flags, *run.script], stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    run.step(1)
    os.kill(run.worker(1), signal.SIGKILL)
    run.hold.unlink()
    assert process.wait(WAIT_S) == 0
    run.check(wanted, attempts=2)


@pytest.mark.parametrize(("level", "losses"), [(1, (1, 0)), (2, (0,))], ids=["torchrun", "durable-launch"])
def test_a_lost_node_is_replaced_also_when_it_hosts_the_rendezvous(
    tmp_path: Path, wanted: Logs, level: int, losses: tuple[int, ...]
) -> None:
    run, port = Attempts(tmp_path), free_port()

    def start(node: int) -> subprocess.Popen[bytes]:
        return agent(
            tmp_path, f"agent{node}", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "two",
            "--nnodes", "2", "--nproc-per-node", "1", "--local-addr", "127.0.0.1", "--max-restarts", "9",
            script=run.script, level=level,
        )  # fmt: skip

    agents = [start(0)]
    until(lambda: listens(port), WAIT_S, "agent 0 hosts the rendezvous")
    agents.append(start(1))
    for attempt, lost in enumerate(losses, 1):
        run.step(attempt)
        until(run.saved, WAIT_S, "the step is committed")
        until(run.known, WAIT_S, "every agent knows the run, so that any of them can claim")
        left, workers = children(agents[lost].pid), [run.worker(rank) for rank in range(2)]
        agents[lost].kill()
        agents[lost].wait()
        until(lambda left=left: not any(map(alive, left)), WAIT_S, "the end of what the agent left")
        run.hold.unlink()
        until(lambda gone=workers: not any(map(alive, gone)), WAIT_S, "the survivor misses its peer")
        run.hold.touch()
        agents[lost] = start(lost)
    run.hold.unlink()
    assert [process.wait(WAIT_S) for process in agents] == [0, 0]
    run.check(wanted, attempts=1 + len(losses))


def alive(pid: int) -> bool:
    return heartbeat.process_start(pid) is not None


def listens(port: int) -> bool:
    rows = [Path(f"/proc/net/{name}").read_text(encoding="ascii").split("\n")[1:] for name in ("tcp", "tcp6")]
    words = [row.split() for table in rows for row in table if row]
    return any(word[1].endswith(f":{port:04X}") and word[3] == "0A" for word in words)
