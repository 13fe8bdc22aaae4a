"""The signal for stacks goes to those that catch it: a shell around a worker would die of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from durable_core.engine.launched import DUMP_SIGNAL
from durable_core.launch.agent.house import listens

CATCHES = f"""
import faulthandler, sys
faulthandler.register({int(DUMP_SIGNAL)}, file=open(sys.argv[1], "w"))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_worker_that_is_ready_for_it_listens_and_a_shell_does_not(tmp_path: Path) -> None:
    for command, expected in (
        ([sys.executable, "-c", CATCHES, str(tmp_path / "stacks")], True),
        (["sh", "-c", "echo ready; cat; :"], False),
    ):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert listens(process.pid, DUMP_SIGNAL) is expected
        finally:
            process.kill()
            process.communicate()


def test_nobody_does_not_listen() -> None:
    assert not listens(2**22 + os.getpid(), DUMP_SIGNAL)
