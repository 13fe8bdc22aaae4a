"""L5. The cadence of one session: what every member asks at a boundary, and agrees on at a save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable_core.session.cadence.history import Rate
from durable_core.session.cadence.meter import Meter
from durable_core.session.cadence.policy import UNBOUNDED, Cadence, Interval, Limits, decide
from durable_core.session.cadence.timetable import Schedule, Timetable, change, opening


class Pacer:
    """Used on the training thread. ``broadcast(value)`` gives every member the coordinator's value.

    Nothing is asked of the others but when something measured decides, and then only at the first boundary
    and at saves, where they meet anyway. A change rests on a checkpoint committed since the last one, but for
    the first, which ends the measuring.
    """

    def __init__(
        self, cadence: Cadence, meter: Meter, broadcast: Callable[[Any], Any], *,
        limits: Limits = UNBOUNDED, rate: Rate | None = None,
    ) -> None:  # fmt: skip
        self._cadence, self._meter, self._broadcast = cadence, meter, broadcast
        self._limits, self._rate = limits, rate
        self._timetable: Timetable | None = None
        self._since = 0
        self._committed: int | None = None
        #: the coordinator's last decision, with its reason and warnings; for people
        self.decided: Interval | None = None

    def due(self, step: int) -> bool:
        """Whether a save has fallen due since the last one. The same on every member."""
        if self._timetable is None:
            self._since = step - 1
            self._timetable = self._open(step - 1)
        return self._timetable.due(self._since, step)

    def saved(self, step: int, committed: int | None) -> None:
        """A save was made, or skipped, at boundary ``step``; ``committed``: the newest checkpoint known."""
        self._since = step
        if self._timetable is None or not self._cadence.measures:
            return
        news = self._broadcast(self._news(self._timetable, step, committed))
        if news is not None:
            self._timetable = self._timetable.announced(step, Schedule.from_json(news))

    def _open(self, step: int) -> Timetable:
        fixed = not self._cadence.measures
        first = opening(step, self._decide(None), fixed=fixed)
        if fixed:
            return first
        return Timetable(Schedule.from_json(self._broadcast(first.schedule.to_json())))

    def _news(self, timetable: Timetable, step: int, committed: int | None) -> Any:
        """What the coordinator announces; on the others the value is of no account."""
        provisional = self.decided is None or self.decided.provisional
        if timetable.at(step).coming is not None or (committed == self._committed and not provisional):
            return None
        self._committed = committed
        schedule = change(
            timetable, step, self._decide(None if provisional else timetable.at(step).schedule.every)
        )
        return None if schedule is None else schedule.to_json()

    def _decide(self, in_force: int | None) -> Interval:
        figures = self._meter.figures()
        self.decided = decide(self._cadence, figures, rate=self._rate, limits=self._limits, in_force=in_force)
        return self.decided
