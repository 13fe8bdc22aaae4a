"""Lives of a run as forked processes (the frameworks are imported already, the SIGKILL is a real one), and
whether they are one run."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch._dynamo  # what every life imports, once: an optimizer does

from durable_core.engine.audit import audit
from durable_core.engine.inspect import Reader, open_run

#: What a run wrote down of one thing it did.
Line = dict[str, Any]
S = TypeVar("S")

#: Seconds after which a life that hangs ends as a failure.
LONGEST_S = 180
#: Seconds that the others have when one of a group has failed.
GRACE_S = 45.0


def start(home: Path, action: Callable[[], Any]) -> int:
    """Fork a process that runs ``action`` and never returns; its pid. It writes to ``home/output``."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a handler runs in no life that hangs in C
            signal.alarm(LONGEST_S)
            out = os.open(home / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            sys.stdout = sys.stderr = os.fdopen(out, "w", buffering=1)
            warnings.showwarning = lambda message, kind, *_: print(
                f"{kind.__name__}: {message}", file=sys.stderr
            )
            torch.set_num_threads(1)  # a forked child must start no thread pool its parent already had
            warnings.simplefilter("default")
            action()
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        finally:
            if sys.exc_info()[1] is not None:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    """Wait for it; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def all_ended(pids: Sequence[int]) -> list[int]:
    """Wait for a group; the exit codes. As a launcher does: who outlives one that has failed by ``GRACE_S``
    (gloo may hang) is ended."""
    alive = {os.pidfd_open(pid): pid for pid in pids}
    codes: dict[int, int] = {}
    deadline: float | None = None
    while alive:
        gone = wait(alive, None if deadline is None else max(0.0, deadline - time.monotonic()))
        for pidfd in gone:
            os.close(pidfd)
            pid = alive.pop(pidfd)
            codes[pid] = ended(pid)
            if codes[pid] and deadline is None:
                deadline = time.monotonic() + GRACE_S
        if not gone:
            for pid in alive.values():
                os.kill(pid, signal.SIGKILL)
            deadline = None
    return [codes[pid] for pid in pids]


def life(home: Path, action: Callable[[], Any]) -> int:
    """Run ``action`` in a forked process; its exit code, negative for a signal."""
    return ended(start(home, action))


def as_script(path: Path, *arguments: object) -> Callable[[], None]:
    """What a life does that is ``python PATH ARGUMENTS``."""

    def action() -> None:
        sys.argv = [str(path), *map(str, arguments)]
        sys.path.insert(0, str(path.parent))
        runpy.run_path(str(path), run_name="__main__")

    return action


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def all_lives(
    live: Callable[[int, S | None], list[int]], strikes: Sequence[S], victim: int, output: Path
) -> list[list[int]]:
    """``live(number, strike)`` for each of ``strikes``, which kills ``victim``, and once to the end; the exit
    codes of each life by rank."""
    codes = []
    for number, strike in enumerate(strikes):
        codes.append(live(number, strike))
        assert codes[-1][victim] != 0, "the life was to be killed"
    codes.append(live(len(strikes), None))
    assert not any(codes[-1]), output.read_text()[-4000:]
    return codes


def sound(root: Path) -> Reader:
    """The run, whose ledger proves that every due sample was consumed once."""
    reader = open_run(root)
    found = audit(reader)
    assert found.sound, found.to_json()
    return reader


def check_stretches(expected: list[Line], lives: Sequence[list[Line]]) -> None:
    """Each life is a stretch of ``expected`` that begins where, or before, the life before it ended."""
    reached = 0
    for number, life_lines in enumerate(lives):
        starts = [k for k in range(reached + 1) if expected[k : k + len(life_lines)] == life_lines]
        if not starts:
            raise AssertionError(f"life {number} is not the same run: {difference(expected, life_lines)}")
        reached = starts[-1] + len(life_lines)
    assert reached == len(expected), "the last life stopped short"


def difference(expected: list[Line], found: list[Line]) -> str:
    """Of the stretch that is most like it, the first line that is another."""

    def alike(first: int) -> int:
        pairs = zip(expected[first:], found, strict=False)
        return next((n for n, (mine, theirs) in enumerate(pairs) if mine != theirs), len(expected) - first)

    first = max(range(len(expected)), key=alike)
    same = alike(first)
    told = f"from {first} on {same} of {len(found)} lines are the same"
    if first + same < len(expected) and same < len(found):
        told += f", then expected {expected[first + same]}, found {found[same]}"
    return told
