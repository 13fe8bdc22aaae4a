"""L5. What a worker tells its launcher while it trains: how far it is, in which phase, what its steps take.

A hint and never more: a run without a launcher does all the same and tells nobody. On the training thread.

A process has one *voice*, and one session has it: the first that writes, for as long as it is open. A run
that is opened beside it (to be read, compared with, distilled from) tells nothing, or it would be taken for
the one that the launcher looks after.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor, nn

from durable_core.clock import Clock
from durable_core.engine import words
from durable_core.engine.beats import Phase, Writer
from durable_core.engine.launched import Launched, RunFiles
from durable_core.session import notices
from durable_core.types import Token


class Voice:
    """``expected``: the run that the launcher has claimed a generation of, and no other is to be heard before
    it; ``""``: any. ``attempt``: of the launch. ``writer``: ``None`` where nothing can be written."""

    def __init__(self, files: RunFiles, rank: int, expected: str = "", attempt: int = 0) -> None:
        self.key = files, rank, attempt, os.getpid()
        self.expected = expected
        self._holder: weakref.ref[Reporter] | None = None  # one that is forgotten holds nothing
        self.writer: Writer | None = None
        try:
            self.writer = Writer(files.beat(rank), attempt)
        except OSError as error:
            _untold(error)
            with suppress(OSError):  # gone with the launcher
                files.mute(rank).touch()

    @property
    def free(self) -> Writer | None:
        """For whoever does not know yet what it will have opened."""
        return self.writer if self.holder is None else None

    @property
    def holder(self) -> Reporter | None:
        return None if self._holder is None else self._holder()

    def take(self, reporter: Reporter, run_id: str) -> bool:
        if self.expected not in ("", run_id) or self.holder not in (None, reporter):
            return False
        self._holder = weakref.ref(reporter)
        return True

    def leave(self, reporter: Reporter) -> None:
        if self.holder is reporter:
            self._holder, self.expected = None, ""  # that run is done with: what follows may be another


_voice: Voice | None = None


def _voice_of(files: RunFiles, rank: int, expected: str, attempt: int) -> Voice:
    """This process's."""
    global _voice
    if _voice is None or _voice.key != (files, rank, attempt, os.getpid()):
        _voice = Voice(files, rank, expected, attempt)
    return _voice


def _untold(error: OSError) -> None:
    notices.say(f"the launcher is not told how far this process is: {error}")


class Reporter:
    """One worker's beats. ``durable``: the newest step known to be durable, -1 for none.

    A step's *own time* is what this worker itself took for it: from the moment the loop went on after the
    last boundary, its data included, to its last local gradient, before it waits for the others. Where a step
    has several backward passes the last one counts. On an accelerator that is when the gradient was queued.
    """

    def __init__(
        self, files: RunFiles | None, rank: int, clock: Clock, root: str, expected: str = "", attempt: int = 0
    ) -> None:
        self._files, self._clock, self._root = files, clock, root
        self._voice = None if files is None else _voice_of(files, rank, expected, attempt)
        self._writer = None if self._voice is None else self._voice.free
        self._phase, self._step, self._generation = Phase.INIT, -1, 0
        self._resumed: float | None = None  # when the loop went on
        self._gradient: float | None = None  # the last local gradient since
        self._hooks: list[Any] = []
        self.durable: Callable[[], int] = lambda: -1
        self.beat()

    @classmethod
    def here(cls, launched: Launched, clock: Clock, root: str) -> Reporter:
        """This process's. ``root``: as another process can use it."""
        return cls(launched.told, launched.rank, clock, root, launched.run_id, launched.nth)

    def opened(
        self, run_id: str, token: Token, roles: tuple[str, ...], *, tells: bool, writes: bool = True
    ) -> None:
        """What this worker works on from now on. ``tells``: it is the one that says which run that is;
        ``writes``: it does not only read it."""
        self._generation = token.generation
        voice = self._voice if writes else None
        if self._files is None or voice is None or not voice.take(self, run_id):
            self.mute()
            return
        if tells:
            told = words.Opened(self._root, run_id, token.generation, token.launch_id, roles)
            try:
                words.write(self._files.opened, told)
            except OSError as error:
                _untold(error)
        self.beat()

    @property
    def stopped_for(self) -> str:
        """Why the launcher has told this process to stop as planned; ``""``: it has not."""
        if self._files is None:
            return ""
        try:
            return self._files.stopping.read_text(encoding="utf-8", errors="replace")
        except OSError:  # nobody wrote it, or the launcher is gone
            return ""

    def mute(self) -> None:
        """This session is not the one that the launcher looks after."""
        self._writer = None
        if self._voice is not None:
            self._voice.leave(self)

    # --- beats -------------------------------------------------------------------------------

    def beat(self) -> None:
        """Still there, in the same phase."""
        if self._writer is not None:
            self._writer.beat(
                self._clock.monotonic(), self._phase, generation=self._generation, step=self._step,
                durable=self.durable(),
            )  # fmt: skip

    @property
    def phase(self) -> Phase:
        return self._phase

    def enter(self, phase: Phase) -> None:
        self._phase = phase
        self.beat()

    @contextmanager
    def within(self, phase: Phase, step: int | None = None) -> Iterator[Callable[[], None]]:
        """``phase``, and afterwards the one before; gives what beats meanwhile. What it takes is no part of a
        step's own time. ``step``: the boundary that this is known to be at."""
        before = self._phase
        self._step = self._step if step is None else step
        self.enter(phase)
        try:
            yield self.beat
        finally:
            self.enter(before)
            if self._resumed is not None and self._gradient is None:
                self._resumed = self._clock.monotonic()

    def boundary(self, step: int) -> None:
        """At each boundary. ``goes_on`` says when the loop has what it came for, and the next step begins."""
        if self._writer is None:
            return
        if self._gradient is not None and self._resumed is not None:
            self._writer.own(self._gradient - self._resumed)
        self._gradient = self._resumed = None
        self._step, self._phase = step, Phase.STEP
        self.beat()

    def goes_on(self) -> None:
        if self._writer is not None:
            self._resumed = self._clock.monotonic()

    def trains(self, step: int) -> None:
        """Everything is restored; ``step`` is the boundary that training goes on from."""
        self._step = step
        self.enter(Phase.STEP)
        self.goes_on()

    # --- a step's own time -------------------------------------------------------------------

    def watch(self, modules: Iterable[nn.Module]) -> None:
        """The first parameter of a module is the last to get its gradient. None, no own time."""
        if self._writer is None:
            return
        for module in modules:
            first = next((each for each in module.parameters() if each.requires_grad), None)
            if first is not None:
                self._hooks.append(first.register_hook(self.on_gradient))  # type: ignore[no-untyped-call]

    def on_gradient(self, gradient: Tensor) -> None:
        self._gradient = self._clock.monotonic()

    def close(self) -> None:
        """The run is closed; what the script still does is its own affair. Harmless when repeated."""
        while self._hooks:
            self._hooks.pop().remove()
        self.enter(Phase.EXIT)
        self.mute()
