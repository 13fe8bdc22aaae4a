"""L5. What an agent keeps as long as it lives: keeper, controller, its facts, the requests made of it, and
the run while no worker of it has it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from durable_core.clock import Clock
from durable_core.engine import beats, words
from durable_core.engine.launched import DUMP_SIGNAL, RunFiles
from durable_core.errors import FormatError
from durable_core.launch.agent import sweeping
from durable_core.launch.agent.keeper import Keeper
from durable_core.launch.agent.reporting import Reporter
from durable_core.launch.agent.signals import Signals
from durable_core.launch.books import Books
from durable_core.launch.classes import FENCED
from durable_core.launch.holding import Holding
from durable_core.launch.machine import GroupPhase

_CLOSE_S = 10.0


class House:
    """Main thread only; ``close`` at the end, whatever happened. ``controller``: the command that starts one,
    empty for none; ``say``: one line for the operator."""

    def __init__(
        self, files: RunFiles, clock: Clock, signals: Signals, say: Callable[[str], None],
        controller: Callable[[], Sequence[str]],
    ) -> None:  # fmt: skip
        self.files, self.clock, self.signals, self.say = files, clock, signals, say
        sweeping.become_subreaper()
        self._keeper = Keeper(files.root, clock.monotonic())
        self._keeper_missed = False
        self._controller = Helper(controller, clock, say)
        self._reporter = Reporter(files, clock)
        self._reporter.start()
        self._holding: Holding | None = None
        self._kept: set[int] = set()
        self._own: Callable[[], Iterable[int]] = tuple
        self._done: set[str] = set()

    @property
    def facts(self) -> words.Facts:
        return self._reporter.facts

    def tell(self, phase: GroupPhase | None = None, **changes: Any) -> None:
        self._reporter.tell(phase, **changes)

    def opened(self) -> words.Opened | None:
        return words.read_opened(self.files.opened)

    def hold(self, books: Books | None, generation: int | None) -> None:
        """Own the run while no worker does, from now on; ``None``: no run, or not this node."""
        if books is None or generation is None:
            self._release()
            return
        if self._holding is None or self._holding.root != books.root:
            self._release()
            self._holding = books.holding()
        self._holding.begin(generation)

    def _release(self) -> None:
        if self._holding is not None:
            self._holding.end()
            self._holding = None

    def control(self, wanted: bool) -> None:
        """Whether this node is the one with the controller."""
        self._controller.want(wanted)

    def tend(self) -> None:
        """At every look: keeper and controller live, and dead orphans are taken leave of."""
        if self._keeper.tend(self.clock.monotonic()) and not self._keeper_missed:
            self._keeper_missed = True
            self.say("the keeper was gone; another one watches now")
        self._controller.tend()
        sweeping.reap_adopted(self._known())

    def fresh_attempt(self, own: Callable[[], Iterable[int]]) -> None:
        """No worker lives; what else lives now belongs to no attempt. ``own()``: what the attempt has
        started so far, and waits for itself."""
        self._kept, self._own = sweeping.children(), own
        self.files.stopping.unlink(missing_ok=True)

    def strays(self) -> set[int]:
        """What an attempt has left that the agent did not start: marked, or by now a child of the agent."""
        sweeping.reap_adopted(self._known())
        marked = sweeping.marked(sweeping.mark(self.files.root), also=b"DURABLE_ATTEMPT")
        return (marked | sweeping.children()) - self._known()

    def requests(self, generation: int | None) -> list[words.Request]:
        """Those about this generation that have not been returned yet, by their name. One about a later
        generation waits: the controller may know of a claim before we do."""
        found = []
        for path in sorted(self.files.requests.glob("[!.]*")):
            if path.name in self._done:
                continue
            try:
                request = words.read_request(path)
            except FormatError as error:
                self._done.add(path.name)
                self.say(f"a request is not understood: {error}")
                continue
            if request is None or generation is None or request.generation > generation:
                continue
            self._done.add(path.name)
            if request.generation == generation:
                found.append(request)
        return found

    def announce(self, why: str) -> None:
        """For the workers, which journal it: what their planned stop follows."""
        with suppress(OSError):  # no room: they stop all the same
            words.put(self.files.stopping, why.encode())

    def parted(self, rank: int) -> bool:
        """Whether the worker has left its last words, and not one of the attempt before."""
        try:
            said = words.read_words(self.files.words(rank))
        except FormatError:
            return False
        return said is not None and said.attempt == self.facts.attempt

    def dump(self, pids: Mapping[int, int]) -> None:
        """Ask each (by rank) for the stacks of its threads; one that does not listen for that would die of
        it: one that has no file for them yet, or a shell around a worker that is not found."""
        for rank, pid in pids.items():
            worker = self.meant(rank, pid, DUMP_SIGNAL)
            if self.files.stacks(rank).exists() and listens(worker, DUMP_SIGNAL):
                with suppress(ProcessLookupError):
                    os.kill(worker, DUMP_SIGNAL)

    def meant(self, rank: int, started: int, number: int) -> int:
        """The process that a signal to the worker is for: what was ``started``, or the worker within it, when
        that has told its number, is surely of this launch and listens. A shell passes no signal on."""
        try:
            beat = beats.read(self.files.beat(rank))
        except FormatError:
            return started
        if beat is None or beat.pid == started or beat.attempt != self.facts.attempt:
            return started
        ours = listens(beat.pid, number) and beat.pid in sweeping.marked(sweeping.mark(self.files.root))
        return beat.pid if ours else started

    def close(self) -> None:
        """Ends what is left of the launch on this node; the run directory goes last."""
        self._release()
        self._controller.want(False)
        self._reporter.stop()
        if not self._keeper.close(_CLOSE_S):
            self.say("the keeper still ends processes that were left; it goes on by itself")

    def _known(self) -> set[int]:
        return {*self._kept, *self._own(), self._keeper.pid, *self._controller.pids}


def listens(pid: int, number: int) -> bool:
    """Whether that process catches that signal (``SigCgt`` of its status); not known is no."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


class Helper:
    """A process beside the agent that is started again when it dies: at once, then every few seconds; one
    that another has the office of, not before it is wanted again (the next attempt)."""

    AGAIN_S = 2.0

    def __init__(
        self, command: Callable[[], Sequence[str]], clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._command, self._clock, self._say = command, clock, say
        self._process: subprocess.Popen[bytes] | None = None
        self._started = -self.AGAIN_S
        self._wanted = self._fenced = False

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._process is None else (self._process.pid,)

    def want(self, wanted: bool) -> None:
        self._wanted, self._fenced = wanted, False
        if not self._wanted and self._process is not None:
            self._process.kill()  # what it has not written another one will
            self._process.wait()
            self._process = None

    def tend(self) -> None:
        if not self._wanted or self._fenced or (self._process is not None and self._process.poll() is None):
            return
        now = self._clock.monotonic()
        if now - self._started < self.AGAIN_S:
            return
        if self._process is not None:
            self._fenced = self._process.returncode == FENCED
            if self._fenced:
                self._say("another controller looks after the run; ours is not started again")
                self._process = None
                return
            self._say(f"the controller ended with {self._process.returncode}; starting another")
        self._started = now
        self._process = subprocess.Popen(
            self._command(),
            env=_without_attempt(os.environ),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )


def _without_attempt(environ: Mapping[str, str]) -> dict[str, str]:
    """It outlives attempts, but not the agent: marked as of the run directory alone."""
    return {name: value for name, value in environ.items() if name != "DURABLE_ATTEMPT"}
