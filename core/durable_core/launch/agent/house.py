"""L5. What an agent keeps as long as it lives: the run directory, the keeper, the controller, its facts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from durable_core.clock import Clock
from durable_core.engine import words
from durable_core.engine.launched import DUMP_SIGNAL, RunFiles
from durable_core.errors import FormatError
from durable_core.launch.agent import sweeping
from durable_core.launch.agent.keeper import Keeper
from durable_core.launch.agent.reporting import Reporter
from durable_core.launch.agent.signals import Signals
from durable_core.launch.agent.starting import Process
from durable_core.launch.machine import GroupPhase

_CLOSE_S = 10.0


class House:
    """``say``: one line for the operator. Main thread only; ``close`` at the end, whatever happened."""

    def __init__(self, launch: str, clock: Clock, signals: Signals, say: Callable[[str], None]) -> None:
        self.launch, self.clock, self.signals, self.say = launch, clock, signals, say
        self.files = RunFiles(make_run_dir(launch)).prepare()
        sweeping.become_subreaper()
        self._keeper = Keeper(self.files.root)
        self._reporter = Reporter(self.files, clock, launch)
        self._reporter.start()
        self._kept: set[int] = set()
        self._own: Callable[[], Iterable[int]] = tuple
        self._done: set[str] = set()

    def tell(self, phase: GroupPhase | None = None, **changes: Any) -> None:
        self._reporter.tell(phase, **changes)

    def tend(self) -> None:
        """At every look: the keeper lives, and dead orphans are taken leave of."""
        if self._keeper.tend():
            self.say("the keeper was gone; another one watches now")
        sweeping.reap_adopted(self._known())

    def fresh_attempt(self, own: Callable[[], Iterable[int]]) -> None:
        """No worker lives: what they left is not about those to come, and what lives is not theirs.

        ``own()``: the workers to come, as far as they are started; the agent itself waits for these.
        """
        for name in ("beats", "words", "stacks"):
            for path in (self.files.root / name).iterdir():
                path.unlink(missing_ok=True)
        self._kept, self._own = sweeping.children(), own

    def strays(self) -> set[int]:
        """What an attempt has left and the agent did not start: by its mark, or become a child of the agent."""
        sweeping.reap_adopted(self._known())
        marked = sweeping.marked(sweeping.mark(self.files.root), also=b"DURABLE_ATTEMPT")
        return (marked | sweeping.children()) - self._known()

    def requests(self, generation: int | None) -> list[words.Request]:
        """Those about this generation that have not been returned yet, by their name."""
        found = []
        for path in sorted(self.files.requests.glob("[!.]*")):
            if path.name in self._done:
                continue
            try:
                request = words.read_request(path)
            except FormatError as error:
                self.say(f"a request is not understood: {error}")
                request = None
            self._done.add(path.name)
            if request is not None and request.generation == generation:
                found.append(request)
        return found

    def dump(self, processes: Iterable[Process]) -> None:
        """Ask each for the stacks of its threads."""
        for process in processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, DUMP_SIGNAL)

    def close(self) -> None:
        """Ends what is left of the launch on this node and removes the run directory."""
        self._reporter.stop()
        if not self._keeper.close(_CLOSE_S):
            self.say("the keeper still ends processes that were left; it goes on by itself")

    def _known(self) -> set[int]:
        return {*self._kept, *self._own(), self._keeper.pid}


def make_run_dir(launch: str) -> Path:
    """A new directory of this user alone, in memory where there is such a place."""
    shared = Path("/dev/shm")
    base = (shared if shared.is_dir() and os.access(shared, os.W_OK) else Path(tempfile.gettempdir())) / (
        f"durable-{os.getuid()}"
    )
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    (base / "launch").mkdir(mode=0o700, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{launch[:16]}-", dir=base / "launch"))
