"""L5. The keeper: a process that does nothing until its agent is gone, and then ends what the agent left.

It holds the reading end of a pipe whose other end the agent alone has; the kernel closes that with the agent,
however it ends. It is no worker's parent, ignores what a terminal or a scheduler sends to the agent's process
group, and imports no framework.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from durable_core.launch.agent import sweeping

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_PACKAGES = Path(__file__).parents[3]
#: ``-S -E``: no site, no variables of Python; the packages come last, so that nothing there hides a standard
#: module.
_START = (
    "import sys; sys.path.append(sys.argv[3]); from durable_core.launch.agent import keeper; keeper.main()"
)


class Keeper:
    """Seen from the agent. ``close`` lets go of the pipe: the run directory is swept and removed. Times are
    monotonic."""

    #: Seconds between two starts: one that cannot live is not tried at every look.
    AGAIN_S = 2.0

    def __init__(self, run_dir: Path, now: float) -> None:
        self._run_dir, self._started = run_dir, now - self.AGAIN_S  # the next one at once
        self._reading, self._writing = os.pipe()  # neither is inherited but by the keeper, by name
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tend(self, now: float) -> bool:
        """Start another one when it is gone; whether that was so."""
        if self._process.poll() is None or now - self._started < self.AGAIN_S:
            return False
        self._started = now
        self._process = self._start()
        return True

    def close(self, timeout: float) -> bool:
        """Let it do its work; False when it has not ended in ``timeout`` seconds (it goes on by itself)."""
        for end in (self._writing, self._reading):
            os.close(end)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return self._process.poll() is not None

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = [str(self._reading), str(self._run_dir), str(_PACKAGES)]
        return subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _START, *arguments],
            pass_fds=(self._reading,), env=_unmarked(os.environ), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def _unmarked(environ: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter may need to start (the path of its library), and nothing that it looks for."""
    return {name: value for name, value in environ.items() if not name.startswith("DURABLE_")}


def main(argv: Sequence[str] | None = None) -> None:
    reading, run_dir = (sys.argv[1:] if argv is None else argv)[:2]
    for each in _IGNORED:
        signal.signal(each, signal.SIG_IGN)
    while os.read(int(reading), 1):
        pass
    sweeping.sweep(lambda: sweeping.marked(sweeping.mark(Path(run_dir))), _wait)
    shutil.rmtree(run_dir, ignore_errors=True)


def _wait(seconds: float) -> None:
    select.select((), (), (), seconds)
