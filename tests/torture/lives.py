"""Starting, killing and burying the processes of one life."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tests.torture.subject import Birth, Cell, born
from tests.torture.tiers_places import Places

LIFE_LIMIT_S = 90.0
HOME = Path(__file__).parents[2]


@dataclass(frozen=True)
class Strike:
    """How one life is to die: at a named point, or ``at_s`` seconds after its birth (of a cold start:
    after its imports); or not at all.

    ``rank`` is who dies first (None: all at once); the others follow ``lag_s`` seconds later, as a
    supervisor would see to it.
    """

    point: str = ""
    at_s: float | None = None
    rank: int | None = None
    lag_s: float = 0.0
    cold: bool = False

    @property
    def label(self) -> str:
        return self.point.partition(":")[0] or ("random instant" if self.at_s is not None else "none")


class Child(Protocol):
    @property
    def pid(self) -> int | None: ...

    def status(self) -> int | None:
        """Exit status, negative for a signal; ``None`` while it lives."""


class Forked:
    """From the fork server, which has the frameworks imported and one thread."""

    def __init__(self, birth: Birth) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.torture.preload"])
        self._process = context.Process(target=born, args=(birth.to_json(),))
        self._process.start()
        self.pid = self._process.pid

    def status(self) -> int | None:
        return self._process.exitcode


class Cold:
    """A new interpreter: what really happens after a machine was lost."""

    def __init__(self, birth: Birth) -> None:
        command = [sys.executable, "-m", "tests.torture.subject", birth.to_json()]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=HOME)
        self.pid = self._process.pid

    def status(self) -> int | None:
        return self._process.poll()


@dataclass(frozen=True)
class Death:
    """How a life ended: exit status per rank, whether a SIGKILL came, and how long it lived."""

    statuses: tuple[int, ...]
    struck: bool
    seconds: float
    hung: bool = False

    @property
    def finished(self) -> bool:
        return not any(self.statuses)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def log_of(root: Path, rank: int, life: int) -> Path:
    return root.parent / f"{root.name}.rank{rank}.life{life}"


def output_of(cell: Cell, root: Path, life: int) -> str:
    """What the ranks of one life printed last."""
    paths = [Path(f"{log_of(root, rank, life)}.out") for rank in range(cell.world)]
    return "\n".join(path.read_text(errors="replace")[-3000:] for path in paths if path.exists())


def live(cell: Cell, root: Path, life: int, strike: Strike, places: Places | None = None) -> Death:
    """One life of all ranks, from birth until none is left. ``places``: where the run lies, if not at
    ``root``."""
    home = str(root) if places is None else places.home
    birth = Birth(cell, home, "", 0, free_port(), places=places)
    children: list[Child] = []
    logs = [log_of(root, rank, life) for rank in range(cell.world)]
    for rank, log in enumerate(logs):
        told = replace(
            birth,
            rank=rank,
            log=str(log),
            crash=strike.point if strike.rank in (None, rank) else "",
        )
        children.append(Cold(told) if strike.cold else Forked(told))
    try:
        return watch(children, strike, logs if strike.cold else [])
    finally:
        for child in children:
            _kill(child.pid)
            _kill(child.pid, group=True)


def watch(children: Sequence[Child], strike: Strike, awaited: list[Path]) -> Death:
    """Until no rank is left. The clock of ``at_s`` starts when every file in ``awaited`` exists."""
    started = time.monotonic()
    awake = None if awaited else 0.0
    fatal: float | None = None  # when the first rank was killed
    struck = False
    while True:
        now = time.monotonic() - started
        statuses = [child.status() for child in children]
        if fatal is None and any(statuses):
            fatal = now
            struck = struck or -signal.SIGKILL in statuses  # else it failed by itself, and that is a fault
        if all(status is not None for status in statuses):
            return Death(tuple(status for status in statuses if status is not None), struck, now)
        if awake is None and all(path.exists() for path in awaited):
            awake = now
        if not struck and strike.at_s is not None and awake is not None and now >= awake + strike.at_s:
            struck = True
            for rank, child in enumerate(children):
                if strike.rank in (None, rank):
                    _kill(child.pid)
        if fatal is not None and now >= fatal + strike.lag_s:
            for child, status in zip(children, statuses, strict=True):
                if status is None:
                    _kill(child.pid)
        if now > LIFE_LIMIT_S:
            known = tuple(-1 if status is None else status for status in statuses)
            return Death(known, struck, now, hung=True)
        time.sleep(0.002)


def _kill(pid: int | None, *, group: bool = False) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(pid, signal.SIGKILL)
