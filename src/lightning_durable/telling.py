"""What Lightning's evaluation loops tell the launcher, within a fit and outside of one."""

from __future__ import annotations

from durable_core.clock import SystemClock
from durable_core.engine.beats import Phase
from durable_core.engine.launched import Launched
from durable_core.session.reporting import Reporter


class Telling:
    """``reporter`` is the fit's; without one, this process has no run (yet, or any more)."""

    def __init__(self) -> None:
        self._reporter: Reporter | None = None
        self._before: Phase | None = None

    def begins(self, reporter: Reporter | None) -> None:
        self._reporter = reporter or Reporter.here(Launched.of(), SystemClock(), "")
        self._before = Phase.EXIT if reporter is None else self._reporter.phase
        self._reporter.enter(Phase.EVAL)

    def goes_on(self) -> None:
        if self._reporter is not None:
            self._reporter.beat()

    def ends(self) -> None:
        if self._reporter is not None and self._before is not None:
            self._reporter.enter(self._before)
        self._reporter = None
