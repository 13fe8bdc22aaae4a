"""L5. What is known of a group that ended, or that is to be ended: the values that ``classify`` judges."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from durable_core.engine.words import Words


@dataclass(frozen=True)
class Exit:
    """How one worker ended. ``status``: negative for a signal; ``place``: the host it ran on; ``at``:
    monotonic seconds when its end was seen; ``stopped``: we had told it to stop before it ended, so it is
    no cause; ``oom``: the kernel's count of processes killed for memory (cgroup ``memory.events``,
    ``oom_kill``) rose meanwhile; ``quiet_s``: from its last sign of life until its end was seen."""

    rank: int
    status: int
    place: str = ""
    words: Words | None = None
    at: float = 0.0
    stopped: bool = False
    oom: bool = False
    quiet_s: float | None = None

    def __str__(self) -> str:
        if self.status < 0:
            return f"rank {self.rank} was killed by {signal_name(-self.status)}"
        return f"rank {self.rank} ended with status {self.status}"


@dataclass(frozen=True)
class Stall:
    """A hang that the controller has confirmed: ``phase`` it is in, ``age_s`` without progress, ``limit_s``
    that it is over, ``frames`` of the culprit, innermost last. ``rank``: the culprit's, ``None`` when it
    cannot be told."""

    phase: str
    age_s: float
    limit_s: float
    rank: int | None = None
    place: str = ""
    frames: tuple[str, ...] = ()


@dataclass(frozen=True)
class Numeric:
    """What a detector found. ``step``: the onset: from it on nothing is trusted; ``proof``: it is known
    that the hardware computed wrong (a replay or a replica differs, a self-test failed), so no replay need
    tell."""

    kind: str
    step: int
    rank: int | None = None
    place: str = ""
    proof: bool = False


@dataclass(frozen=True)
class Lost:
    """A node that answers no more and whose workers are fenced. ``place``: its host, ``""`` when that is not
    known, or not gone with it; ``domain``: the rack or zone it is in."""

    place: str
    domain: str = ""


@dataclass(frozen=True)
class Unfit:
    """A node to be left at the next boundary: it is slow, or its health says that it will fail."""

    place: str
    reason: str
    rank: int | None = None


@dataclass(frozen=True)
class Evidence:
    """All that is known. ``step``: the last step that the group completed in this generation, ``None``
    before its first; ``finished``: the journal has the run's final record; ``cancelled``: by whom;
    ``newer``: the other launch that has taken the run over; ``refused``: why a record of ours was void;
    ``notice``: of a planned stop; ``waited``: for which admission or rendezvous the time ran out;
    ``known``: whether the run has ever been read."""

    exits: tuple[Exit, ...] = ()
    step: int | None = None
    stall: Stall | None = None
    numeric: Numeric | None = None
    lost: tuple[Lost, ...] = ()
    unfit: Unfit | None = None
    notice: str = ""
    finished: bool = False
    cancelled: str = ""
    newer: str = ""
    refused: str = ""
    waited: str = ""
    known: bool = True


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
