"""L3. The phases of one save, as tables: ``(phase, event) -> phase``. Any other pair is refused.

The coordinator and the other writers walk different tables. A writer learns of the commit from the
journal; only the coordinator may bring it about, and only from a verified, published manifest.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from durable_core.errors import UsageError


class Phase(str, enum.Enum):
    IDLE = "idle"
    ALLOCATED = "allocated"
    OFFERED = "offered"
    WRITTEN = "written"
    RECEIPTED = "receipted"
    VERIFIED = "verified"
    PUBLISHED = "published"
    DOUBT = "doubt"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "fenced"


class Event(str, enum.Enum):
    ALLOCATE = "allocate"  # the allocation is in the journal
    OFFER = "offer"  # every writer's offer has been read
    WRITE = "write"  # the shard is durable
    RECEIPT = "receipt"  # the receipt is durable (one writer: in hand)
    VERIFY = "verify"  # every receipt checked, by identity, coverage and size
    PUBLISH = "publish"  # the manifest is durable
    COMMIT = "commit"  # the commit record is effective
    LOSE_ACK = "lose ack"  # the commit record was sent, and nothing came back
    ABORT = "abort"
    FENCE = "fence"


Transitions = Mapping[tuple[Phase, Event], Phase]

FINAL = frozenset({Phase.COMMITTED, Phase.ABORTED, Phase.FENCED})

_WRITING: dict[tuple[Phase, Event], Phase] = {
    (Phase.IDLE, Event.ALLOCATE): Phase.ALLOCATED,
    (Phase.ALLOCATED, Event.OFFER): Phase.OFFERED,
    (Phase.OFFERED, Event.WRITE): Phase.WRITTEN,
    (Phase.WRITTEN, Event.RECEIPT): Phase.RECEIPTED,
}


def _with_exits(table: dict[tuple[Phase, Event], Phase]) -> Transitions:
    """A save may be given up, or its writer fenced, in every phase that is not the end."""
    exits = {(phase, Event.FENCE): Phase.FENCED for phase in Phase if phase not in FINAL}
    gives_up = {(phase, Event.ABORT): Phase.ABORTED for phase in Phase if phase not in FINAL}
    return {**gives_up, **exits, **table}


COORDINATOR: Transitions = _with_exits(
    {
        **_WRITING,
        (Phase.ALLOCATED, Event.WRITE): Phase.WRITTEN,  # one writer: nothing to agree on first
        (Phase.RECEIPTED, Event.VERIFY): Phase.VERIFIED,
        (Phase.VERIFIED, Event.PUBLISH): Phase.PUBLISHED,
        (Phase.PUBLISHED, Event.COMMIT): Phase.COMMITTED,
        (Phase.PUBLISHED, Event.LOSE_ACK): Phase.DOUBT,
        (Phase.DOUBT, Event.COMMIT): Phase.COMMITTED,
    }
)

WRITER: Transitions = _with_exits({**_WRITING, (Phase.RECEIPTED, Event.COMMIT): Phase.COMMITTED})


class Walk:
    """One save's way through its table."""

    def __init__(self, table: Transitions) -> None:
        self._table = table
        self.phase = Phase.IDLE

    def on(self, event: Event) -> None:
        """Move on. ``UsageError`` for an event that the phase does not allow: a bug, not a failure."""
        after = self._table.get((self.phase, event))
        if after is None:
            raise UsageError(f"a save that is {self.phase.value} cannot {event.value}")
        self.phase = after

    @property
    def over(self) -> bool:
        return self.phase in FINAL
