"""L5. How an attempt ended, and what follows: the values that pass between the agent's loop and its judge."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from durable_core.engine.words import Request
from durable_core.launch.classes import DRAINED


class Cause(enum.Enum):
    """Why the watch over an attempt ended."""

    FINISHED = "every worker ended with 0"
    FAILED = "a worker failed"
    DRAINED = "workers stopped as they were asked to"
    REQUESTED = "the controller asks for a restart"
    STOP = "a planned stop"
    TOLD = "another node stops"
    REGROUP = "nodes wait to join"
    UNMET = "the nodes did not meet"
    UNSTARTED = "a worker could not be started"
    CLOSED = "another node has ended the launch"


@dataclass(frozen=True)
class Ended:
    """One attempt. ``exits``: statuses by rank, negative for a signal, of those that ended by themselves;
    ``after``: of those that we have stopped; ``oom``: the kernel has killed for memory meanwhile; ``error``:
    of the rendezvous; ``provoked``: what scheduled chaos has done to it; ``at``: monotonic seconds when its
    end was seen; ``attempt``: its number; ``why``: of a planned stop."""

    cause: Cause
    generation: int | None = None
    exits: Mapping[int, int] = field(default_factory=dict)
    after: Mapping[int, int] = field(default_factory=dict)
    request: Request | None = None
    forced: tuple[int, ...] = ()
    oom: bool = False
    error: str = ""
    provoked: str = ""
    at: float = 0.0
    attempt: int = 0
    why: str = ""

    @property
    def clean(self) -> bool:
        """Nothing failed, before or after the stop."""
        return all(status in (0, DRAINED) for status in (*self.exits.values(), *self.after.values()))


@dataclass(frozen=True)
class Verdict:
    """What follows. ``exit_code``: the launcher ends with it; ``None``: another attempt, after ``delay_s``;
    ``reason``, ``onset``: what the next workers are told of these; ``nth``: which of the restarts that are
    allowed it is; ``step``: the newest that they can go on from."""

    exit_code: int | None
    why: str
    delay_s: float = 0.0
    reason: str = ""
    onset: int | None = None
    nth: str = ""
    step: int | None = None

    def __str__(self) -> str:
        if self.exit_code is not None:
            return self.why
        nth = f" ({self.nth})" if self.nth else ""
        origin = "" if self.step is None else f", from step {self.step}"
        return f"{self.why}; starting again{nth} in {self.delay_s:.1f} s{origin}"
