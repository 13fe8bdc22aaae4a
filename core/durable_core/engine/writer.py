"""L4. The one background thread that owns a run's journal view once the run is open.

Jobs run in the order they were queued. A job is given the view and returns the view it leaves; only
this thread appends for its generation, so the view never forks. Failures are facts, not silence:
each becomes an event and stays in ``status`` until a later job of the same kind succeeds.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from durable_core.commit.journal import View
from durable_core.errors import DurableError, FencedError


@dataclass(frozen=True)
class Job:
    """``work`` gets the view and returns the next; ``failed`` is told of a ``DurableError``."""

    name: str
    work: Callable[[View], View]
    failed: Callable[[DurableError], None]
    finished: Callable[[], None] = field(default=lambda: None)


class Writer:
    def __init__(self, view: View) -> None:
        self.view = view
        self.fenced: FencedError | None = None
        self.bug: BaseException | None = None
        self._told: BaseException | None = None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._pending = 0
        self._idle = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="durable-writer", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Jobs queued or running."""
        return self._pending

    def submit(self, job: Job) -> None:
        with self._idle:
            self._pending += 1
        self._jobs.put(job)

    def raise_failure(self, *, untold: bool = False) -> None:
        """On the training thread: stop when fenced, and never hide a fault of our own.

        ``untold``: only what was not raised before.
        """
        failure = self.fenced or self.bug
        if failure is not None and not (untold and failure is self._told):
            self._told = failure
            raise failure

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every job queued so far has ended; ``False`` when the time ran out."""
        with self._idle:
            return self._idle.wait_for(lambda: self._pending == 0, timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Drain, then end the thread."""
        done = self.drain(timeout)
        self._jobs.put(None)
        if done:
            self._thread.join()
        return done

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._run(job)
            except BaseException as error:  # noqa: BLE001  (handed on, not swallowed)
                # A fault of our own or of a listener: it is raised on the training thread at the next
                # boundary. This thread goes on: the jobs behind hold slots, and somebody may wait for them.
                self.bug = error
            finally:
                job.finished()
                with self._idle:
                    self._pending -= 1
                    self._idle.notify_all()

    def _run(self, job: Job) -> None:
        if self.fenced is not None or self.bug is not None:
            return
        try:
            self.view = job.work(self.view)
        except FencedError as error:
            self.fenced = error
            job.failed(error)
        except DurableError as error:
            job.failed(error)
