"""A signal goes to those that catch it: to the worker within a shell, which would die of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from durable_core.engine.launched import DUMP_SIGNAL, RunFiles
from durable_core.launch.agent.house import House, listens
from durable_core.launch.agent.signals import Signals
from tests.launch.launching import CLOCK

CATCHES = f"""
import faulthandler, sys
faulthandler.register({int(DUMP_SIGNAL)}, file=open(sys.argv[1], "w"))
print("ready", flush=True)
sys.stdin.read()
"""

BEATS = f"""
import os
from durable_core.engine import beats
from durable_core.engine.launched import Launched
here = Launched.of()
beats.Writer(here.files.beat(0), here.nth).beat(1.0, beats.Phase.STEP, generation=1, step=1)
{CATCHES.replace('"ready"', "os.getpid()")}
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


def test_a_signal_is_meant_for_the_worker_within_whatever_was_started(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "launch").prepare()
    house = House(files, CLOCK, Signals(), print, tuple)
    house.tell(attempt=2)
    wrapper = subprocess.Popen(
        ["sh", "-c", '"$0" "$@"; exit $?', sys.executable, "-c", BEATS, str(tmp_path / "stacks")],
        env={**os.environ, "DURABLE_RUN_DIR": str(files.root), "DURABLE_ATTEMPT": "x/2"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert wrapper.stdout is not None
        worker = int(wrapper.stdout.readline())
        assert worker != wrapper.pid
        assert house.meant(0, wrapper.pid, DUMP_SIGNAL) == worker
        assert house.meant(0, wrapper.pid, signal.SIGTERM) == wrapper.pid, "it would end the worker"
        house.tell(attempt=3)
        assert house.meant(0, wrapper.pid, DUMP_SIGNAL) == wrapper.pid, "an attempt before"
        house.tell(attempt=2)
        house.files.beat(0).replace(house.files.beat(1))
        assert house.meant(0, wrapper.pid, DUMP_SIGNAL) == wrapper.pid, "it has not told"
    finally:
        wrapper.communicate()  # it ends when nobody reads
        house.close()
