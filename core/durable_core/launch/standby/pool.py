"""L5. A starter that takes workers from standbys, and starts them cold where it cannot.

One standby that may fork serves every worker (a fork takes milliseconds, so none is made ahead); where
forking is not safe, as many are kept as were asked for, and each serves once.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_core.launch.agent.starting import Process, Starter
from durable_core.launch.standby import environment, imports, wire, zygote

#: Seconds after which a standby that has not answered is given up: more than imports take on a busy machine.
PATIENCE_S = 60.0
#: Standbys in a row that ended by themselves before they were of any use.
_MOST_FAILURES = 3
_RUN_DIR = "DURABLE_RUN_DIR"


@dataclass
class Adopted:
    """A worker that a standby has forked, which the agent has inherited: a child that no ``Popen`` knows."""

    pid: int
    _status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


@dataclass(eq=False)
class _Standby:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    #: It has imported everything.
    waits: bool = False

    def end(self) -> None:
        """It has no work to finish."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


class Warm:
    """``standbys``: how many workers are to be startable at once without importing. ``extra``: further
    modules to import. ``cold`` starts what cannot be taken from a standby.

    ``say``: one line for the operator. ``reason``: why the last worker was started cold, ``""`` when it was
    not; ``doubts``: why standbys do not fork, ``""`` while they do.

    The first worker's command and environment are those that standbys are made for. The agent has to be a
    subreaper, and to call all of this on its main thread, for a standby ends with the thread that started it.
    """

    def __init__(
        self, cold: Starter, standbys: int, extra: Sequence[str] = (), *,
        say: Callable[[str], None] = lambda line: None, patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        self.reason = self.doubts = ""
        self._say, self._said = say, set[str]()
        self._cold, self._standbys, self._extra, self._patience_s = cold, standbys, tuple(extra), patience_s
        self._made_for: _Made | None = None
        self._idle: list[_Standby] = []
        self._failures = 0
        self._unfit = ""

    def start(self, argv: Sequence[str], env: Mapping[str, str], stdout: str, stderr: str) -> Process:
        """Raises ``OSError`` when no process can be started in either way."""
        made = _Made.of(argv, env)
        if made is not None and self._made_for is None:
            self._made_for = made
            self.tend()
        self.reason = _unlike(self._made_for, made)
        while not self.reason:
            if not self._idle:
                self.reason = self._unfit or "no standby is left"
            else:
                worker = self._ask(self._idle[0], argv, env, stdout, stderr)
                if worker is not None:
                    return worker
        self._tell(f"a worker is started without a standby: {self.reason}")
        return self._cold.start(argv, env, stdout, stderr)

    def tend(self) -> None:
        """Hear what standbys report, and make those anew that are used up or gone. It never waits."""
        for standby in tuple(self._idle):
            while select.select([standby.channel], [], [], 0)[0] and self._hear(standby) is not None:
                pass
        wanted = self._standbys if self.doubts else 1
        if self._made_for and not self._unfit and self._failures < _MOST_FAILURES:
            while len(self._idle) < wanted:
                self._idle.append(self._made_for.spawn(self._extra, self._patience_s))

    @property
    def ready(self) -> int:
        """How many workers could be started from standbys now."""
        waiting = sum(standby.waits for standby in self._idle)
        return waiting if self.doubts else self._standbys * waiting

    @property
    def pids(self) -> frozenset[int]:
        """Of the standbys: children of this process that are nobody's workers."""
        return frozenset(standby.process.pid for standby in self._idle)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()

    def _ask(
        self, standby: _Standby, argv: Sequence[str], env: Mapping[str, str], stdout: str, stderr: str
    ) -> Process | None:
        """A worker from this standby; ``None``: it is of no use, and gone."""
        reading, gate = os.pipe()
        try:
            with os.fdopen(reading, "rb"), ExitStack() as opened:
                files = {
                    stream: opened.enter_context(Path(path).open("wb")).fileno()
                    for stream, path in ((1, stdout), (2, stderr))
                    if path
                }
                document = {
                    "command": list(argv), "rest": _split(argv)[1], "environ": dict(env),
                    "streams": list(files),
                }  # fmt: skip
                with suppress(OSError):  # it is gone: that is heard below
                    wire.send(standby.channel, document, (*files.values(), reading))
            while (answer := self._hear(standby)) is not None:
                if "pid" in answer:
                    return self._started(standby, answer["pid"], gate)
        except BaseException:
            self._drop(standby)  # in the middle of a message
            raise
        finally:
            os.close(gate)
        return None

    def _started(self, standby: _Standby, pid: int, gate: int) -> Process:
        """It may begin, now that this process knows it."""
        self._failures = 0
        worker: Process = Adopted(pid)
        if pid == standby.process.pid:
            self._idle.remove(standby)
            standby.channel.close()
            worker = standby.process
        with suppress(BrokenPipeError):  # it has ended already, which its status will say
            os.write(gate, b"!")
        return worker

    def _hear(self, standby: _Standby) -> Mapping[str, Any] | None:
        """What it says next; ``None``: it has ended, or not answered in time, and is gone."""
        try:
            heard = wire.receive(standby.channel)
        except OSError:
            heard = None
        if heard is None:
            self._failures += 1
            self._drop(standby)
            return None
        report = heard[0]
        if "doubts" in report:
            standby.waits = True
            self.doubts = "; ".join(report["doubts"])
            self._unfit = "; ".join(report["unfit"])
            if self.doubts:
                self._tell(f"standbys serve once each, for forking is not safe here: {self.doubts}")
        return report

    def _tell(self, line: str) -> None:
        """Each line once: it is true of every worker."""
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def _drop(self, standby: _Standby) -> None:
        if standby in self._idle:
            self._idle.remove(standby)
            standby.end()


@dataclass(frozen=True)
class _Made:
    """What standbys are made for. ``line``: the command line up to the worker's module."""

    line: tuple[str, ...]
    script: str
    module: bool
    environ: Mapping[str, str]
    run_dir: str

    @staticmethod
    def of(argv: Sequence[str], env: Mapping[str, str]) -> _Made | None:
        """``None`` for a command that is no worker of ours."""
        line, rest = _split(argv)
        if not rest:
            return None
        module = rest[0] == "-m"
        return _Made(line, rest[module], module, environment.common(env), env.get(_RUN_DIR, ""))

    def spawn(self, extra: Sequence[str], patience_s: float) -> _Standby:
        ours, theirs = socket.socketpair()
        ours.settimeout(patience_s)
        script = imports.located(self.script) if self.module else Path(self.script)
        folder = Path.cwd() if self.module else script.parent
        arguments = [theirs.fileno(), os.getpid(), folder, *imports.wanted(script, folder, extra)]
        room = {zygote.ROOM: "-" * zygote.ROOM_BYTES}
        with theirs:
            process = subprocess.Popen(
                [*self.line[:-1], zygote.__name__, *map(str, arguments)],
                env={**self.environ, _RUN_DIR: self.run_dir, **room}, pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return _Standby(process, ours)


def _split(argv: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The command line up to the worker's module, and what follows; all in the former where it is another."""
    for at in range(1, len(argv)):
        if argv[at - 1] == "-m" and argv[at] == zygote.WORKER:
            return tuple(argv[: at + 1]), list(argv[at + 1 :])
    return tuple(argv), []


def _unlike(made: _Made | None, asked: _Made | None) -> str:
    """Why a standby for ``made`` cannot become ``asked``; ``""`` when it can."""
    if made is None or asked is None:
        return "the command is no Python script run by the launcher"
    if made.line != asked.line:
        return f"the interpreter is started otherwise: {' '.join(asked.line)}"
    names = {*made.environ, *asked.environ}
    changed = sorted(name for name in names if made.environ.get(name) != asked.environ.get(name))
    return f"{', '.join(changed)} may have been read by the standby, with another value" if changed else ""
