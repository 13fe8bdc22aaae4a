"""L5. The cadence of one session: what every member asks at a boundary, and agrees on at a save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable_core.session.cadence.history import History, estimate
from durable_core.session.cadence.meter import Meter
from durable_core.session.cadence.policy import UNBOUNDED, Cadence, Interval, Limits, decide
from durable_core.session.cadence.timetable import Schedule, Timetable, change, opening


class Pacer:
    """Used on the training thread. ``agree(decision)`` runs ``decision`` on the coordinator and gives its
    JSON value to every member; ``history``: of the run before this session.

    Nothing is asked of the others but when something measured decides, and then only at the first boundary
    and at saves, where they meet anyway. A change rests on a checkpoint committed since the last one, but for
    the first, which ends the measuring.
    """

    def __init__(
        self, cadence: Cadence, meter: Meter, agree: Callable[[Callable[[], Any]], Any], *,
        limits: Limits = UNBOUNDED, history: History | None = None,
    ) -> None:  # fmt: skip
        self._cadence, self._meter, self._agree = cadence, meter, agree
        self._limits, self._history = limits, history or History()
        self._timetable: Timetable | None = None
        self._since = 0
        self._committed: int | None = None
        #: the last decision taken here, with its reason and warnings; ``None`` but on the coordinator
        self.decided: Interval | None = None

    def due(self, step: int) -> bool:
        """Whether a save has fallen due since the last one. The same on every member."""
        if self._timetable is None:
            self._since = step - 1
            self._timetable = Timetable(self._open(step - 1))
        return self._timetable.due(self._since, step)

    def saved(self, step: int, committed: int | None) -> Schedule | None:
        """A save was made, or skipped, at boundary ``step``; ``committed``: the newest checkpoint known.

        Returns what was announced, if anything was.
        """
        self._since = step
        timetable = self._timetable
        if timetable is None or not self._cadence.measures:
            return None
        news = self._agree(lambda: self._news(timetable, step, committed))
        if news is None:
            return None
        schedule = Schedule.from_json(news)
        self._timetable = timetable.announced(step, schedule)
        return schedule

    def _open(self, step: int) -> Schedule:
        if not self._cadence.measures:
            return opening(step, self._decide(None), fixed=True)
        return Schedule.from_json(
            self._agree(lambda: opening(step, self._decide(None), fixed=False).to_json())
        )

    def _news(self, timetable: Timetable, step: int, committed: int | None) -> Any:
        provisional = self.decided is None or self.decided.provisional
        now = timetable.at(step)
        if now.coming is not None or (committed == self._committed and not provisional):
            return None
        self._committed = committed
        schedule = change(now, step, self._decide(None if provisional else now.schedule.every))
        return None if schedule is None else schedule.to_json()

    def _decide(self, in_force: int | None) -> Interval:
        figures = self._meter.figures()
        rate = estimate(self._history.lived(figures.uptime), prior_mtbf=self._cadence.mtbf_seconds)
        self.decided = decide(self._cadence, figures, rate=rate, limits=self._limits, in_force=in_force)
        return self.decided
