"""L5. A standby: it imports, waits, and then forks a worker for each that it is asked for, or becomes one.

It forks if that is safe (``safety``); otherwise it can serve once. In both cases what becomes the worker goes
back to the top of the stack and runs as ``python -m durable_core.launch.worker`` would.

A worker that was forked is its agent's child like any other: the process between them ends, and the agent, a
subreaper, inherits it. So its exit status reaches the agent by ``waitpid`` even when the standby is gone.
*Rejected:* exits told by the standby (they would be lost with it), ``clone(CLONE_PARENT)`` (passes over what
libraries do before and after a fork).

Nothing runs twice: a worker begins only when the agent, which knows its process number by then, has sent it a
byte through a pipe that only the agent writes to. A standby or an agent that is killed at any point leaves
processes that find that pipe closed, and end.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from durable_core.engine.parent import die_with
from durable_core.launch import worker
from durable_core.launch.standby import environment, imports, safety, wire

WORKER = worker.__name__
#: A variable that only keeps room for the worker's mark in the environment that others see in /proc.
ROOM = "DURABLE_STANDBY_ROOM"
ROOM_BYTES = 256
_MARK = "DURABLE_ATTEMPT"
_NOT_STARTED = 1


@dataclass(frozen=True)
class Job:
    """What to become. ``command``: the whole command line of the worker started cold; ``rest``: what follows
    the worker's module in it. ``files``: for ``streams`` (1 and 2, where they are not the agent's own), and
    the pipe to wait at."""

    command: tuple[str, ...]
    rest: tuple[str, ...]
    environ: dict[str, str]
    streams: tuple[int, ...]
    files: tuple[int, ...]


def main() -> None:
    number, agent, folder, *names = sys.argv[1:]
    die_with(int(agent))
    with socket.socket(fileno=int(number)) as channel:
        before = frozenset(sys.modules), safety.open_files()
        unfit = _load(names, imports.beside(Path(folder)), before[0])
        safety.settle()
        doubts = safety.doubts(before[1])
        wire.send(channel, {"unfit": unfit, "doubts": doubts})
        job = None if unfit else _wait(channel, int(agent), forks=not doubts)
    if job is not None:
        _become(job, int(agent))
        worker.main(job.rest)


def _load(names: Sequence[str], local: frozenset[str], before: frozenset[str]) -> tuple[str, ...]:
    """Import; why no worker can come of this process. What is not installed is left to the script."""
    watched = environment.Watched.begin()
    for name in names:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    reads = watched.end()
    wrong = imports.shadowed(local, before)
    return (*reads, *(f"{name} is the name of a module beside the script" for name in wrong))


def _wait(channel: socket.socket, agent: int, *, forks: bool) -> Job | None:
    """``None``: the agent is gone or has let go. In a worker: its job."""
    while (message := wire.receive(channel)) is not None:
        document, files = message
        job = Job(
            tuple(document["command"]), tuple(document["rest"]), document["environ"],
            tuple(document["streams"]), tuple(files),
        )  # fmt: skip
        if not forks:
            wire.send(channel, {"pid": os.getpid()})
            return job
        told = _forked()
        if told is None:
            return job
        for file in files:
            os.close(file)
        wire.send(channel, {"pid": told})
    return None


def _forked() -> int | None:
    """The number of a new worker, the agent's child and leader of a session; ``None`` in the worker."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            child = os.fork()
        except OSError:
            os._exit(_NOT_STARTED)
        if child:
            os._exit(0)
        os.setsid()
        os.close(reading)
        os.write(writing, str(os.getpid()).encode())
        os.close(writing)
        return None
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(between, 0)
    if not told:
        raise OSError(errno.EAGAIN, "a standby could not fork a worker")
    return int(told)


def _become(job: Job, agent: int) -> None:
    """After this only the process's ancestry tells it from one that was started cold."""
    *outputs, gate = job.files
    if os.read(gate, 1) != b"!":
        os._exit(_NOT_STARTED)
    die_with(agent)
    os.close(gate)
    for stream, file in zip(job.streams, outputs, strict=True):
        os.dup2(file, stream)
        os.close(file)
    for text in (sys.stdout, sys.stderr):
        text.reconfigure(line_buffering=text is sys.stderr or text.isatty())  # type: ignore[union-attr]
    _show(job)
    environment.become(job.environ)
    sys.orig_argv[:] = job.command
    importlib.invalidate_caches()
    _seed()


def _seed() -> None:
    """As in a new process, streams that nobody seeds begin differently in each; ``random``'s does."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()


def _show(job: Job) -> None:
    """Let /proc/PID/environ and cmdline say what they would for a worker started cold, where there is room.

    Processes are found by the mark in their environment; what the worker forks has it from here. The memory
    is our own, and nothing points to it any more: the entry that is written over is one that nobody asks for.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    argv, argv_end, environ, _ = (int(field) for field in fields[45:49])
    room = Path("/proc/self/environ").read_bytes().find(ROOM.encode() + b"=")
    if room >= 0:
        size = len(ROOM) + 1 + ROOM_BYTES
        _write(environ + room, f"{_MARK}={job.environ.get(_MARK, '')}".encode(), size)
    _write(argv, "\0".join(job.command).encode(), argv_end - argv - 1)


def _write(address: int, data: bytes, size: int) -> None:
    ctypes.memmove(address, data[:size].ljust(size, b"\0"), size)


if __name__ == "__main__":
    main()
