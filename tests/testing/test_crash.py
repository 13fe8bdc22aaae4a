"""The killer hook: what it reads, when it strikes, and that a killed script is really gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from durable_core.errors import UsageError
from durable_core.testing import crash
from durable_core.types import CrashPoint


def test_a_plan_is_read() -> None:
    assert crash.parse(" K6:2, K12 ,") == {CrashPoint.K6: 2, CrashPoint.K12: 1}
    assert crash.parse("") == {}


@pytest.mark.parametrize("text", ["K99", "K6:0", "K6:x", "k6", "K6:-1"])
def test_a_plan_that_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=text.partition(":")[0]):
        crash.parse(text)


def test_it_strikes_at_the_planned_arrival_and_only_then() -> None:
    struck: list[int] = []
    hook = crash.killer({CrashPoint.K6: 2}, lambda: struck.append(1))
    for point in (CrashPoint.K6, CrashPoint.K7, CrashPoint.K6, CrashPoint.K6):
        hook(point)
    assert struck == [1]


def test_a_script_run_under_it_dies_by_sigkill_at_the_point(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from durable_core.engine import probe\n"
        "from durable_core.types import CrashPoint\n"
        "print(sys.argv[1], flush=True)\n"
        "probe.reached(CrashPoint.K7)\n"
        "print('survived', flush=True)\n"
    )
    command = [sys.executable, "-m", "durable_core.testing.crash", str(script), "argument"]
    environ = {**os.environ, crash.VARIABLE: "K7"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "argument\n")
