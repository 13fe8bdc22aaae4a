"""L4. What a worker leaves behind when an exception ends it: last words, and an exit status that says whether
to start it again. And the stacks of all its threads, whenever the launcher asks for them.

Installed once in a process: by ``launch.worker`` before the script begins, or by ``Run.open`` where something
else started the script. Only the former sees a ``SystemExit``.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from types import TracebackType
from typing import TextIO

from durable_core.engine import beats, launched, words
from durable_core.engine.launched import DUMP_SIGNAL, Launched, RunFiles
from durable_core.errors import DurableError, FencedError, FormatError, NumericFault

#: Exit status after a planned stop: start me again (EX_TEMPFAIL of sysexits.h).
EXIT_DRAINED = 75
#: Another process owns the run, or it has ended: do not start me again unasked.
EXIT_FENCED = 76
#: Wrong numbers were found: start me again, from a checkpoint before the onset.
EXIT_NUMERIC = 77

#: The innermost frames that last words keep, and characters of their message.
FRAMES = 8
MESSAGE = 4000

#: Code that runs a script or a module.
_RUNNERS = (
    "runpy.py",
    "<frozen runpy>",
    "<frozen importlib._bootstrap_external>",
    "<frozen importlib._bootstrap>",
)
_WORKER = "durable_core/launch/worker.py"


class FencedExit(SystemExit):
    """A newer generation owns the run: this process stopped without writing; exit code 76."""

    def __init__(self) -> None:
        super().__init__(EXIT_FENCED)


class Parting:
    """The hooks of one worker. A child that is forked from it has them too; there they do nothing."""

    def __init__(self, files: RunFiles, rank: int, attempt: int) -> None:
        self._files, self._rank, self._attempt = files, rank, attempt
        self.process = os.getpid()
        self._previous = sys.excepthook
        self._stacks = self._opened()
        if self._stacks is not None:
            faulthandler.register(DUMP_SIGNAL, file=self._stacks, all_threads=True)
        sys.excepthook = self._uncaught

    def _opened(self) -> TextIO | None:
        """Now, for a handler cannot open anything. Where there is no such file nobody asks for stacks."""
        with suppress(OSError):
            return self._files.stacks(self._rank).open("w", encoding="utf-8")
        return None

    def remove(self) -> None:
        if sys.excepthook == self._uncaught:
            sys.excepthook = self._previous
        if self._stacks is not None:
            faulthandler.unregister(DUMP_SIGNAL)
            self._stacks.close()

    def leave(self, error: BaseException) -> int:
        """Last words on ``error``, if it calls for any; the exit status that it ends this process with."""
        said = words_on(error, self._step())
        if said is None:
            return 0
        try:
            words.write(self._files.words(self._rank), replace(said, attempt=self._attempt))
        except OSError as trouble:
            sys.stderr.write(f"durable: the launcher is not told of this: {trouble}\n")
        return said.exit_code

    def _step(self) -> int | None:
        try:
            beat = beats.read(self._files.beat(self._rank))
        except FormatError:
            return None
        return None if beat is None or beat.attempt != self._attempt or beat.step < 0 else beat.step

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error.__traceback__ = of_script(trace)
        self._previous(kind, error, error.__traceback__)
        status = self.leave(error) if os.getpid() == self.process else 1
        if status in (EXIT_FENCED, EXIT_NUMERIC):
            raise SystemExit(status)  # here the one way to choose the status and still clean up


_parting: Parting | None = None


def install(here: Launched) -> Parting | None:
    """Once in a process, and after the fork that made it; ``None`` where no launcher listens. What this
    process starts is marked as no worker."""
    global _parting
    if here.told is None:
        return None
    if _parting is None or _parting.process != os.getpid():
        _parting = Parting(here.told, here.rank, here.nth)
        launched.mark()
    return _parting


def uninstall() -> None:
    """For a process that is a worker only for a while, as tests are."""
    global _parting
    launched.unmark()
    if _parting is not None:
        _parting.remove()
        _parting = None


def ended(error: BaseException) -> None:
    """Last words on an error that no hook will see, for the interpreter does not call it for those."""
    if _parting is not None and _parting.process == os.getpid():
        _parting.leave(error)


def words_on(error: BaseException, step: int | None) -> words.Words | None:
    """What there is to say of the exception that ends a process; ``None``: nothing, it was meant.

    A foreign error raised from one of ours is one of ours: it says where that was met.
    """
    kind = type(error)
    ours = _ours(error)
    status, message = _status(error, ours), str(error)
    if isinstance(error, SystemExit):
        if status in (0, EXIT_DRAINED) or (status == EXIT_FENCED and ours is None):
            return None
        message = f"exit status {status}" if isinstance(error.code, int) else message
    return words.Words(
        kind=kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        message=message[:MESSAGE],
        branch="" if ours is None else branch(type(ours)),
        frames=_frames(error),
        step=ours.onset if isinstance(ours, NumericFault) else step,
        object=ours.failure if isinstance(ours, NumericFault) else str(getattr(ours, "key", "")),
        hint="" if ours is None else ours.hint,
        exit_code=status,
    )


def branch(kind: type[DurableError]) -> str:
    """The class below ``DurableError`` that ``kind`` belongs to."""
    return next((each.__name__ for each in kind.__mro__ if DurableError in each.__bases__), kind.__name__)


def _ours(error: BaseException) -> DurableError | None:
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, DurableError):
            return at
        seen.add(id(at))
        at = at.__cause__
    return None


def _status(error: BaseException, ours: DurableError | None) -> int:
    """What the interpreter, and ``Parting``, make of ``error``."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        return 1
    if isinstance(error, KeyboardInterrupt):
        return -2  # it sends itself SIGINT
    if isinstance(ours, NumericFault):
        return EXIT_NUMERIC
    return EXIT_FENCED if isinstance(ours, FencedError) else 1


def of_script(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames of what ran the script, which are no part of it."""
    at, begin = trace, trace
    while at is not None:
        if at.tb_frame.f_code.co_filename.endswith(_WORKER):
            begin = at.tb_next
        at = at.tb_next
    while begin is not None and begin.tb_frame.f_code.co_filename.endswith(_RUNNERS):
        begin = begin.tb_next
    return begin


def _frames(error: BaseException) -> tuple[str, ...]:
    frames: list[str] = []
    at = of_script(error.__traceback__)
    while at is not None:
        code = at.tb_frame.f_code
        frames.append(f"{'/'.join(PurePath(code.co_filename).parts[-2:])}:{code.co_name}")
        at = at.tb_next
    return tuple(frames[-FRAMES:])
