"""L4. The one background thread that owns a run's journal view once the run is open.

A job is given the view and returns the view it leaves; only this thread appends for its generation, so
the view never forks. Failures are facts, not silence: each becomes an event and stays in ``status``
until a later job of the same kind succeeds.
"""

from __future__ import annotations

from collections.abc import Callable

from durable_core.commit.journal import View
from durable_core.engine.worker import Job, Worker
from durable_core.errors import DurableError, FencedError

Work = Callable[[View], View]


class Writer(Worker[Work]):
    def __init__(self, view: View) -> None:
        self.view = view
        self.fenced: FencedError | None = None
        self._told: BaseException | None = None
        super().__init__("durable-writer")

    def raise_failure(self, *, untold: bool = False) -> None:
        """On the training thread: stop when fenced, and never hide a fault of our own.

        ``untold``: only what was not raised before.
        """
        failure = self.fenced or self.bug
        if failure is not None and not (untold and failure is self._told):
            self._told = failure
            raise failure

    def _perform(self, job: Job[Work]) -> None:
        if self.fenced is not None:
            return
        try:
            self.view = job.work(self.view)
        except FencedError as error:
            self.fenced = error
            job.failed(error)
        except DurableError as error:
            job.failed(error)
