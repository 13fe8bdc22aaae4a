"""L5. What could be recovered now, kept up to date while the run trains. The arithmetic is ``monitor``."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping

from durable_core.clock import Clock
from durable_core.session.monitor import Mark, Monitor, Standing
from durable_core.spec.goals import Goal
from durable_core.types import Traits

#: Boundaries whose time is remembered, for snapshots and checkpoints that become whole later.
_REMEMBERED = 4096
#: Snapshots that a memory tier is taken to hold: the newest, and the one before.
_HELD = 2


class Recovery:
    """One writer's view, for any thread. ``tiers`` in order of speed; a tier of snapshots counts what this
    writer has sealed, which under a boundary that all agree on is what all have."""

    def __init__(
        self, tiers: Mapping[str, Traits], goals: Iterable[Goal], *, home: str, clock: Clock
    ) -> None:  # fmt: skip
        self.goals = tuple(goals)
        self._clock = clock
        self._monitor = Monitor(tiers, self.goals, home=home, start=Mark(0, clock.monotonic()))
        self._lock = threading.Lock()
        self._marks: deque[Mark] = deque(maxlen=_REMEMBERED)
        self._sealed: dict[str, list[int]] = {}
        self._newest: dict[str, int] = {}
        self._told: frozenset[str] = frozenset()

    def now(self) -> float:
        """Monotonic seconds."""
        return self._clock.monotonic()

    def reached(self, step: int) -> None:
        """Training stands at this boundary."""
        mark = Mark(step, self._clock.monotonic())
        with self._lock:
            self._marks.append(mark)
            self._monitor.reached(mark)

    def sealed(self, tier: str, step: int) -> None:
        with self._lock:
            self._monitor.sealed(tier, self._mark(step))
            held = self._sealed.setdefault(tier, [])
            held.append(step)
            for old in held[:-_HELD]:
                self._monitor.freed(tier, old)
            del held[:-_HELD]

    def committed(self, c: int, step: int, tiers: Iterable[str]) -> None:
        with self._lock:
            self._monitor.committed(c, self._mark(step), tiers)
            for tier in tiers:
                self._supersede(tier, c)

    def added(self, c: int, tier: str) -> None:
        with self._lock:
            self._monitor.added(c, tier)
            self._supersede(tier, c)

    def standings(self) -> tuple[Standing, ...]:
        """For each failure domain what would be left, and which goals that breaches."""
        with self._lock:
            return self._monitor.standings(self._clock.monotonic())

    def breaches(self) -> tuple[Standing, ...]:
        if not self.goals:
            return ()
        with self._lock:
            return self._monitor.breaches(self._clock.monotonic())

    def news(self) -> tuple[Standing, ...]:
        """The breaches that were not there when it was last asked."""
        now = self.breaches()
        told, self._told = self._told, frozenset(standing.domain for standing in now)
        return tuple(standing for standing in now if standing.domain not in told)

    def _supersede(self, tier: str, c: int) -> None:
        """An older checkpoint in that tier is of no account any more; without this they would pile up."""
        before = self._newest.get(tier)
        if before is not None and before < c:
            self._monitor.dropped(before, tier)
            if before not in {self._newest[name] for name in self._newest if name != tier}:
                self._monitor.dropped(before)
        self._newest[tier] = max(c, before if before is not None else c)

    def _mark(self, step: int) -> Mark:
        found = next((mark for mark in reversed(self._marks) if mark.step == step), None)
        return found if found is not None else Mark(step, self._clock.monotonic())
