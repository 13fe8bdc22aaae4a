"""A simulated process: a program, what it waits for, and what it has staged."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from durable_core.commit.effects import Effect, Program
from durable_core.errors import DurableError
from durable_core.testing.sim.store import Write
from durable_core.types import Token


class Status(str, enum.Enum):
    READY = "ready"
    PAUSED = "paused"  # SIGSTOP: it will wake up, and not know
    ENDED = "ended"
    KILLED = "killed"


class Script(Protocol):
    """What a process does. ``staged`` answers ``Describe`` and ``WriteShard``."""

    role: str
    staged: Mapping[str, bytes]

    def run(self) -> Program[str]: ...


Change = Callable[[Any], "Program[Any]"]


def intercepted(change: Change, program: Program[Any]) -> Program[Any]:
    """``program``, with each effect handed to ``change``, which performs it or something else."""
    step: Callable[[], Any] = partial(next, program)
    while True:
        try:
            effect = step()
        except StopIteration as done:
            return done.value
        try:
            answer = yield from change(effect)
        except DurableError as error:
            step = partial(program.throw, error)
        else:
            step = partial(program.send, answer)


@dataclass
class Process:
    """``answer`` is what the program is resumed with; ``write`` a write it waits for."""

    pid: int
    label: str
    script: Script
    program: Program[str]
    status: Status = Status.READY
    effect: Effect | None = None
    answer: Any = None
    wake: float = 0.0
    write: Write | None = None
    outcome: str = ""
    refused: bool = False
    started: bool = False

    @property
    def alive(self) -> bool:
        return self.status in (Status.READY, Status.PAUSED)


@dataclass
class Job:
    """One start of a worker group by a supervisor, and what its members learn outside the store:
    the token and the restored model, as the training process group would tell them."""

    number: int
    launch: str
    roles: tuple[str, ...]
    takeover: bool
    extends: bool = False
    token: Token | None = None
    start: Any = None
    fresh: bool = False
    newest: Any = None
    trained: dict[int, int] = field(default_factory=dict)
    members: list[Process] = field(default_factory=list)

    @property
    def coordinator(self) -> Process:
        return self.members[0]
