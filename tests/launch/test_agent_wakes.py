"""What an agent that waits is woken by."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from durable_core.launch.agent.signals import Signals

LONG_S = 3600.0


@pytest.mark.timeout(60)
def test_an_agent_that_waits_is_woken_by_the_end_of_a_worker() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        signals = Signals()
        assert not signals.wait(0.0, [child.pid])
        os.kill(child.pid, signal.SIGKILL)
        assert not signals.wait(LONG_S, [child.pid])  # no signal has come
        assert child.wait() == -signal.SIGKILL
    finally:
        child.kill()
        child.communicate()
