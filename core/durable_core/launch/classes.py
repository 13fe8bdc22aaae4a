"""L5. What can go wrong with a run, and what is done about each: one table (REQUIREMENTS 6.5).

A restart helps only when the cause is gone or gone around. So every class says by which kind of restart that
is so, how often, from where, and what is left out of the next attempt.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from durable_core.engine.uncaught import EXIT_DRAINED, EXIT_FENCED, EXIT_NUMERIC


class F(str, enum.Enum):
    """The classes of failure; the value is what stands in the journal. What each means: ``TABLE``."""

    F1 = "F1"
    F2 = "F2"
    F3 = "F3"
    F4 = "F4"
    F5 = "F5"
    F6 = "F6"
    F7 = "F7"
    F8 = "F8"
    F9 = "F9"
    F10 = "F10"
    F11 = "F11"
    F12 = "F12"
    F13 = "F13"
    F14 = "F14"
    F15 = "F15"
    F16 = "F16"
    F17 = "F17"
    F18 = "F18"
    F19 = "F19"
    F20 = "F20"

    @property
    def called(self) -> str:
        return TABLE[self].title


class Retry(str, enum.Enum):
    """How the run goes on."""

    IN_PLACE = "in-place"  # the same placement
    REPLACE = "replace"  # a spare or another placement for what is quarantined
    REQUEUE = "requeue"  # give everything back, and ask for admission again
    NONE = "none"


class Source(str, enum.Enum):
    """Where the next attempt restores from, at best."""

    MEMORY = "memory"
    PEER = "peer"
    REMOTE = "remote"
    SNAPSHOT = "snapshot"  # of the boundary that the drain stopped at
    OLDER = "older"
    KNOWN_GOOD = "known-good"
    NOTHING = ""


class Unit(str, enum.Enum):
    """What is left out of later attempts (RECOV-02)."""

    NOTHING = ""
    NODE = "node"
    DOMAIN = "domain"
    IMAGE = "image"
    DATA = "data"
    STORAGE = "storage"
    CHECKPOINT = "checkpoint"


#: All that a run file may forbid to leave out, and the rest.
UNITS = frozenset(Unit) - {Unit.NOTHING}


@dataclass(frozen=True)
class Row:
    """``charged``: counts against the run's budget of restarts. ``budget``: restarts for this class alone
    that are not yet forgiven; ``None``: the run's budget is all that bounds it. ``terminal``: giving up
    ends the run in its journal; not so where the run can go on once a person has mended something.
    ``exit_code``: of the launcher, when it gives up or stops."""

    title: str
    retry: Retry
    charged: bool
    budget: int | None
    restore: Source
    quarantine: Unit
    terminal: bool
    exit_code: int = 1


#: Exit statuses that say more than "failed": a worker that drained as asked, was fenced, found wrong numbers.
DRAINED, FENCED, NUMERIC = EXIT_DRAINED, EXIT_FENCED, EXIT_NUMERIC
#: Of the launcher alone: somebody has cancelled the run.
CANCELLED = 78

#: Planned stops without progress between them: who plans more of them, or drains by itself, does no work.
_PLANNED = 10

_Q, _S = Unit, Source

TABLE: Mapping[F, Row] = {
    F.F1: Row("process crash", Retry.IN_PLACE, True, None, _S.MEMORY, _Q.NOTHING, True),
    F.F2: Row("host loss", Retry.REPLACE, True, None, _S.PEER, _Q.NODE, True),
    F.F3: Row("domain loss", Retry.REQUEUE, True, None, _S.REMOTE, _Q.DOMAIN, True),
    F.F4: Row("preemption", Retry.REQUEUE, False, _PLANNED, _S.SNAPSHOT, _Q.NOTHING, False, DRAINED),
    F.F5: Row("hang or collective timeout", Retry.IN_PLACE, True, None, _S.MEMORY, _Q.NODE, False),
    F.F6: Row("straggler or sub-health", Retry.REPLACE, False, _PLANNED, _S.SNAPSHOT, _Q.NODE, False),
    F.F7: Row("deterministic software fault", Retry.NONE, False, 0, _S.NOTHING, _Q.IMAGE, True),
    F.F8: Row("out of memory", Retry.IN_PLACE, True, 1, _S.MEMORY, _Q.NOTHING, True),
    F.F9: Row("data object missing or damaged", Retry.IN_PLACE, True, 2, _S.MEMORY, _Q.DATA, True),
    F.F10: Row("storage failure", Retry.IN_PLACE, True, None, _S.MEMORY, _Q.STORAGE, True),
    F.F11: Row("checkpoint damaged", Retry.IN_PLACE, True, None, _S.OLDER, _Q.CHECKPOINT, True, 5),
    F.F12: Row("non-finite or spike", Retry.REPLACE, True, 1, _S.KNOWN_GOOD, _Q.NOTHING, True),
    F.F13: Row("silent data corruption", Retry.REPLACE, True, 2, _S.KNOWN_GOOD, _Q.NODE, True),
    F.F14: Row("fenced or stale worker", Retry.NONE, False, 0, _S.NOTHING, _Q.NOTHING, False, FENCED),
    F.F15: Row("controller failure", Retry.NONE, False, None, _S.NOTHING, _Q.NOTHING, False),
    # A typing error in a flag must not end for ever a run that goes on once it is mended.
    F.F16: Row("configuration or version", Retry.NONE, False, 0, _S.NOTHING, _Q.NOTHING, False, 2),
    F.F17: Row("network degradation", Retry.IN_PLACE, True, None, _S.MEMORY, _Q.NODE, True),
    F.F18: Row("admission or rendezvous timeout", Retry.REQUEUE, True, None, _S.REMOTE, _Q.NOTHING, False),
    F.F19: Row("cancelled", Retry.NONE, False, 0, _S.NOTHING, _Q.NOTHING, False, CANCELLED),
    F.F20: Row("input starvation", Retry.NONE, False, None, _S.NOTHING, _Q.NOTHING, False),
}

#: Which class counts when several fit: the first here. REQUIREMENTS 6.5 orders those that it names. A
#: notice (F4) explains what is lost or crashes after it, but neither what is wrong with numbers or objects,
#: nor a mistake; a wait for peers (F17) explains least of what ends a group.
PRECEDENCE: tuple[F, ...] = (
    F.F19, F.F14, F.F16, F.F7, F.F13, F.F12, F.F11, F.F9, F.F4, F.F3, F.F2, F.F18, F.F5, F.F8, F.F10, F.F1,
    F.F17, F.F6, F.F15, F.F20,
)  # fmt: skip

#: Classes that end no group: what is done about them is done while it trains.
IN_FLIGHT = frozenset({F.F15, F.F20})


def first(classes: Iterable[F]) -> F:
    """The one of ``classes`` that counts. ``ValueError`` when there is none."""
    return min(classes, key=PRECEDENCE.index)
