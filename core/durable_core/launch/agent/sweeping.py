"""L5. Finding and ending every process that belongs to a group of workers, however it hid itself.

Whatever a worker starts inherits its environment, and with it the mark; ``setsid`` and ignored signals do
not remove it. What has cleared its environment is still found while the agent lives: orphans become
children of the agent, which is a *subreaper*. Only the standard library is used: the keeper, which has to
start in milliseconds and outlive everything, sweeps with the same code.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")

#: Seconds between two looks. The first come quickly, for most processes are gone at once.
QUICK_S, SLOW_S = 0.01, 0.5
_QUICK_LOOKS = 20


def mark(run_dir: Path) -> bytes:
    """What everything in the environment of one agent's workers carries."""
    return b"DURABLE_RUN_DIR=" + os.fsencode(run_dir)


def become_subreaper() -> bool:
    """Orphans among our descendants become our children, not those of process 1. False: no such kernel."""
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def marked(entry: bytes, *, also: bytes = b"") -> set[int]:
    """Processes whose environment at their start held ``entry`` and, if given, some variable ``also=``."""
    found = set()
    for pid in _pids():
        try:
            environ = b"\0" + (_PROC / str(pid) / "environ").read_bytes()
        except OSError:  # gone, or of another user
            continue
        if b"\0" + entry + b"\0" in environ and (not also or b"\0" + also + b"=" in environ):
            found.add(pid)
    return found - {os.getpid()}


def children() -> set[int]:
    """Direct children of this process that still run, adopted ones included."""
    me = os.getpid()
    return {pid for pid in _pids() if _parent(pid) == me}


def sweep(
    find: Callable[[], Collection[int]], wait: Callable[[float], object], *, looks: int | None = None
) -> frozenset[int]:
    """SIGKILL to what ``find`` finds, until it finds nothing twice; returns what is left after ``looks``.

    Twice, for a process that is just between fork and exec shows no environment. ``looks=None``: without end,
    for what cannot die now (waiting for a device) will.
    """
    clean, look = 0, 0
    while True:
        found = frozenset(find())
        clean = 0 if found else clean + 1
        if clean == 2:
            return found
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        look += 1
        if looks is not None and look >= looks:
            return found
        wait(QUICK_S if look < _QUICK_LOOKS else SLOW_S)


def reap_adopted(known: Collection[int]) -> None:
    """Take leave of dead children that nobody waits for: orphans that have become ours."""
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if dead is None or dead.si_pid in known:
            return  # a known one is waited for by whoever started it; it hides the others until then
        with suppress(ChildProcessError):
            os.waitpid(dead.si_pid, os.WNOHANG)


def _pids() -> list[int]:
    return [int(path.name) for path in _PROC.iterdir() if path.name.isdecimal()]


def _parent(pid: int) -> int | None:
    """``None`` when it is gone or a zombie."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[1])
