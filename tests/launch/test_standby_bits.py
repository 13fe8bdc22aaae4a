"""A run that goes on from standbys after a kill ends with the bits of one that goes on from new processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core.launch.agent import sweeping
from durable_core.launch.agent.starting import Cold, Process, Starter
from durable_core.launch.standby import zygote
from durable_core.launch.standby.pool import Warm

TRAINING = Path(__file__).with_name("standby_training.py")
DEADLINE_S = 180.0
KILL_AT, NEVER = 4, 99
_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def agent() -> Iterator[None]:
    assert sweeping.become_subreaper()
    before = sweeping.children()
    try:
        yield
    finally:
        sweeping.sweep(lambda: sweeping.children() - before, time.sleep)
        sweeping.reap_adopted(())
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def group(starter: Starter, root: Path, kill_at: int) -> list[int]:
    """One group of two workers, to its end; their statuses."""
    root.mkdir(exist_ok=True)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    workers: list[Process] = []
    for rank in range(2):
        environ = {**os.environ, **common, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, "-m", zygote.WORKER, str(TRAINING), str(root), str(kill_at)]
        workers.append(starter.start(command, environ, "", ""))
    end = time.monotonic() + DEADLINE_S
    while any(worker.poll() is None for worker in workers):
        assert time.monotonic() < end
        time.sleep(0.01)
        if -signal.SIGKILL in [worker.poll() for worker in workers]:
            for worker in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
    return [worker.poll() or 0 for worker in workers]


@pytest.mark.usefixtures("agent")
@pytest.mark.timeout(600)
def test_a_run_that_goes_on_from_standbys_ends_with_the_bits_of_one_started_cold(tmp_path: Path) -> None:
    warm = Warm(Cold(), 2)
    assert -signal.SIGKILL in group(warm, tmp_path / "warm", KILL_AT)
    shutil.copytree(tmp_path / "warm", tmp_path / "cold")
    ends = {}
    for name, starter in (("cold", Cold()), ("warm", warm)):
        assert not (tmp_path / name / "end-0").exists()
        assert group(starter, tmp_path / name, NEVER) == [0, 0]
        ends[name] = [(tmp_path / name / f"end-{rank}").read_text() for rank in range(2)]
    assert warm.reason == ""
    warm.close()
    assert ends["warm"] == ends["cold"]
    assert ends["cold"][0].count("\n") > KILL_AT
    assert ends["cold"][0] != ends["cold"][1]
