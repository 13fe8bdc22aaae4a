"""L5. What the operator and the trainer can see of a session, kept under one lock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from durable_core.events import Event
from durable_core.session.given_up import GivenUp
from durable_core.session.recovery import Recovery


@dataclass(frozen=True)
class Status:
    """``newest_step``: of the newest checkpoint that survives this process now; ``lag_steps``: training
    beyond it; ``stall_seconds``: what the last save cost the loop; ``last_error`` is cleared by the next
    commit; ``rpo_breached`` likewise. ``recoverable``: failure domain -> the step that would be left if it
    were lost now. ``voided``: snapshots thrown away because the state changed while it was copied;
    ``snapshots_skipped``: those for which there was no slot."""

    newest_c: int | None
    newest_step: int | None
    newest_time: float | None
    current_step: int
    pending: int
    committed: int
    skipped: int
    delayed: int
    failed: int
    stall_seconds: float | None
    last_error: str | None
    rpo_breached: bool
    recoverable: Mapping[str, int] = field(default_factory=dict)
    voided: int = 0
    snapshots_skipped: int = 0

    @property
    def lag_steps(self) -> int:
        return self.current_step - (self.newest_step or 0)

    def metrics(self) -> dict[str, float]:
        """Flat numbers for a logger, under ``durable/``."""
        return {
            "durable/newest_step": float(-1 if self.newest_step is None else self.newest_step),
            "durable/lag_steps": float(self.lag_steps),
            "durable/committed": float(self.committed),
            "durable/skipped": float(self.skipped),
            "durable/failed": float(self.failed),
            "durable/stall_seconds": self.stall_seconds or 0.0,
            **{f"durable/recoverable_{domain}": float(step) for domain, step in self.recoverable.items()},
        }


class Board:
    """The mutable side of ``Status``; listeners are told every event, on the thread it happened on."""

    def __init__(self, recovery: Recovery) -> None:
        self.recovery = recovery
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._newest: tuple[int, int, float] | None = None
        #: monotonic seconds of the newest commit, or of the restore: a wall clock may jump
        self.newest_at: float | None = None
        self._sealed: dict[str, int] = {}
        self._error: str | None = None
        self._breached = False
        self.current_step = 0
        self.stall_seconds: float | None = None
        self.given_up = GivenUp()
        self.listeners: list[Callable[[Event], None]] = []

    def emit(self, event: Event) -> None:
        for listener in tuple(self.listeners):
            listener(event)

    @property
    def newest(self) -> tuple[int, int] | None:
        """(c, step) of the newest checkpoint known to be committed."""
        with self._lock:
            return None if self._newest is None else self._newest[:2]

    def durable_step(self) -> int:
        """The step of that checkpoint; -1 before the first."""
        newest = self._newest
        return -1 if newest is None else newest[1]

    @property
    def only_in_memory(self) -> bool:
        """Whether the newest snapshot in memory is of a later step than the newest checkpoint."""
        with self._lock:
            step = -1 if self._newest is None else self._newest[1]
            return self._sealed.get("memory", -1) > step

    def sealed(self, place: str, step: int) -> None:
        """A snapshot of ``step`` is whole in tier ``place``."""
        with self._lock:
            self._sealed[place] = step
        self.recovery.sealed(place, step)

    def reached(self, step: int) -> None:
        """Training stands at this boundary."""
        self.current_step = step
        self.recovery.reached(step)

    def copied(self, c: int, place: str) -> None:
        """A verified copy of checkpoint ``c`` is in tier ``place`` as well."""
        self.recovery.added(c, place)

    def committed(self, c: int, step: int, when: float, tiers: Iterable[str]) -> None:
        self.recovery.committed(c, step, tiers)
        self.newest_at = self.recovery.now()
        with self._lock:
            self._counts["committed"] += 1
            self._newest, self._error, self._breached = (c, step, when), None, False

    def restored(self, c: int, step: int, when: float, tiers: Iterable[str]) -> None:
        self.recovery.reached(step)
        self.recovery.committed(c, step, tiers)
        self.newest_at = self.recovery.now()
        with self._lock:
            self._newest, self.current_step = (c, step, when), step

    def failed(self, error: str) -> None:
        with self._lock:
            self._counts["failed"] += 1
            self._error = error

    def count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def breach(self) -> bool:
        """Marks the declared RPO as breached; True the first time since the last commit."""
        with self._lock:
            first, self._breached = not self._breached, True
            return first

    def read(self, pending: int) -> Status:
        with self._lock:
            c, step, when = self._newest or (None, None, None)
            counts: Any = self._counts
            return Status(
                c, step, when, self.current_step, pending, counts["committed"], counts["skipped"],
                counts["delayed"], counts["failed"], self.stall_seconds, self._error, self._breached,
                {each.domain: each.newest.step for each in self.recovery.standings()}, counts["voided"],
                counts["snapshots_skipped"],
            )  # fmt: skip
