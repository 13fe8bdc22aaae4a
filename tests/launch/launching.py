"""Launchers as processes, quickly: forked from one that has imported everything, each with its own output."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_core.clock import SystemClock
from durable_core.commit.claim import create_run
from durable_core.commit.journal import replay
from durable_core.engine.performer import Performer
from durable_core.tier.posix import PosixTier
from durable_core.types import Promise

QUICK = Path(__file__).parent / "quick_worker.py"
DEADLINE_S = 120.0
CLOCK = SystemClock()

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["durable_core.launch.agent.main"])


def new_run(root: Path) -> Path:
    """A run that nobody has trained yet."""
    root.mkdir()
    performer = Performer(PosixTier(root), CLOCK)
    digest = "sha256:" + "0" * 64
    spec = {"roles": ["dp0", "dp1"], "cancel_authority": ["operator"]}
    create = create_run(
        performer.run(replay()), launch_id="test", run_id="run", spec=spec, spec_digest=digest, seed=1,
        promise=Promise.BITWISE,
    )  # fmt: skip
    performer.run(create)
    return root


@dataclass
class Launcher:
    """``durable launch`` with 2 quick workers. ``log``: where the workers write what they do, a line each."""

    process: Any
    log: Path
    output: Path

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def lines(self, **like: Any) -> list[dict[str, Any]]:
        """What the workers wrote that has these values."""
        found = []
        for path in sorted(self.log.glob("*.log")):
            text = path.read_text()
            found += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in found if all(line.get(name) == value for name, value in like.items())]

    def seen(self, count: int = 1, **like: Any) -> list[dict[str, Any]]:
        """Wait until at least so many such lines are there."""
        until(lambda: len(self.lines(**like)) >= count or not self.alive, self.said)
        found = self.lines(**like)
        assert len(found) >= count, f"{like}: {found}\n{self.said()}"
        return found

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    def ended(self) -> int:
        """Wait for it; its exit status."""
        self.process.join(DEADLINE_S)
        assert not self.alive, self.said()
        return int(self.process.exitcode)

    def said(self) -> str:
        return self.output.read_text()

    def tell(self, name: str) -> None:
        """Touch the file that workers wait for."""
        (self.log / name).touch()


@contextmanager
def launched(
    tmp_path: Path, *arguments: str, flags: tuple[str, ...] = (), script: Path = QUICK
) -> Iterator[Launcher]:
    """``arguments``: of the script, after the directory that it writes to."""
    log = tmp_path / "log"
    log.mkdir(exist_ok=True)
    with running(log, *flags, str(script), str(log), *arguments) as launcher:
        yield launcher


@contextmanager
def running(log: Path, *arguments: str) -> Iterator[Launcher]:
    """A launcher of 2 workers. ``log`` is on the command line of all that it starts: whatever happens,
    nothing of that is left at the end."""
    output = log.with_name("output.txt")
    command = ["--nproc-per-node", "2", *arguments]
    process = _forks.Process(target=_run, args=(command, str(output)))
    process.start()
    launcher = Launcher(process, log, output)
    try:
        yield launcher
    finally:
        if launcher.alive:
            process.kill()
        process.join()
        until(lambda: not marked(log), lambda: f"left: {marked(log)}")


def _run(command: list[str], output: str) -> None:
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    for name in [name for name in os.environ if name.startswith(("DURABLE_", "TORCHELASTIC_"))]:
        del os.environ[name]
    os.environ["OMP_NUM_THREADS"] = "1"
    from durable_core.cli.app import run

    sys.exit(run(["launch", *command]))


def marked(log: Path) -> list[int]:
    """Processes with this log on their command line: launcher, workers and what they start."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != os.getpid():
            try:
                if os.fsencode(log) in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def until(true: Callable[[], bool], why: Callable[[], str] = lambda: "") -> None:
    deadline = CLOCK.monotonic() + DEADLINE_S
    while not true():
        assert CLOCK.monotonic() < deadline, why()
        CLOCK.sleep(0.02)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
