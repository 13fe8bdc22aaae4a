"""A run under torchrun with the plugin: starting agents, killing workers and agents, and watching."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("gloo_writer.py")
#: Level 1 is the plugin under torch's own launcher, level 2 ours.
COMMANDS = {
    1: (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "durable"),
    2: (sys.executable, "-m", "durable_core.cli", "launch", "--rdzv-backend", "c10d"),
}


class Logs:
    """What ``gloo_writer`` tells, one file for each rank."""

    def __init__(self, prefix: Path, world: int) -> None:
        self.prefix, self.world = prefix, world

    def of(self, rank: int) -> list[dict[str, Any]]:
        try:
            lines = Path(f"{self.prefix}.{rank}").read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines[:-1] if line.endswith("}")]

    def starts(self, rank: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.of(rank) if line["event"] == "start"]

    def attempts(self) -> set[str]:
        return {line["told"]["DURABLE_ATTEMPT"] for rank in range(self.world) for line in self.starts(rank)}

    def stepping(self) -> dict[int, dict[str, Any]] | None:
        """Of each rank the first step of its newest process; ``None`` until each has one."""
        found = {}
        for rank in range(self.world):
            lines = self.of(rank)
            newest = lines[-1]["pid"] if lines else 0
            steps = [line for line in lines if line["event"] == "step" and line["pid"] == newest]
            if not steps:
                return None
            found[rank] = steps[0]
        return found

    def opened(self) -> list[int]:
        """The generations that rank 0 opened, in order."""
        return [line["generation"] for line in self.of(0) if line["event"] == "opened"]

    def samples(self) -> list[dict[int, list[int]]]:
        """Of each rank what it trained on at each step, as the last life that did the step has it."""
        steps = [[line for line in self.of(rank) if line["event"] == "step"] for rank in range(self.world)]
        return [{line["step"]: line["ids"] for line in lines} for lines in steps]

    def done(self) -> str:
        path = Path(f"{self.prefix}.done")
        return path.read_text(encoding="utf-8") if path.exists() else ""


def until(found: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true value of ``found()``; ``TimeoutError`` naming ``what``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.05)
    raise TimeoutError(f"{what}: not in {seconds:g} s")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def agent(
    directory: Path, name: str, *flags: str, script: tuple[str, ...], level: int = 1
) -> subprocess.Popen[bytes]:
    """An agent in a session of its own, its output in ``directory/name.out``."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (directory / f"{name}.out").open("ab") as out:
        command = [*COMMANDS[level], *flags, *script]
        return subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )


def children(pid: int) -> list[int]:
    """By their parents: not every kernel lists a process's children."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):
                if int((path / "stat").read_bytes().rpartition(b")")[2].split()[1]) == pid:
                    found.append(int(path.name))
    return found


def marked(directory: Path) -> list[int]:
    """Processes with a word of their command line within ``directory``: agents and workers of a run there."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) not in _ANCESTORS:
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if any(word.startswith(os.fsencode(directory) + b"/") for word in words):
                    found.append(int(path.name))
    return found


def _ancestors() -> frozenset[int]:
    found, pid = [], os.getpid()
    while pid:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return frozenset(found)


_ANCESTORS = _ancestors()


@contextlib.contextmanager
def cleaned(directory: Path) -> Iterator[None]:
    """No process of a run in ``directory`` is left, whatever happens."""
    try:
        yield
    finally:
        while left := marked(directory):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.05)
