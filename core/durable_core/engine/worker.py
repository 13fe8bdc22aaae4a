"""L4. A background thread that does jobs in the order they were queued, and lets nothing fail in silence."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from durable_core.errors import DurableError

W = TypeVar("W")


@dataclass(frozen=True)
class Job(Generic[W]):
    """``work`` is what the worker knows how to do; ``failed`` is told of a ``DurableError``, ``finished``
    always called last. Both run on the worker's thread."""

    name: str
    work: W
    failed: Callable[[DurableError], None]
    finished: Callable[[], None] = field(default=lambda: None)


class Worker(Generic[W]):
    """Subclasses perform the jobs. A fault of our own stays in ``bug`` and ends all further work."""

    def __init__(self, name: str) -> None:
        self.bug: BaseException | None = None
        self._jobs: queue.SimpleQueue[Job[W] | None] = queue.SimpleQueue()
        self._pending = 0
        self._idle = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Jobs queued or running."""
        return self._pending

    def submit(self, job: Job[W]) -> None:
        with self._idle:
            self._pending += 1
        self._jobs.put(job)

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

    def _perform(self, job: Job[W]) -> None:
        raise NotImplementedError

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self.bug is None:
                    self._perform(job)
            except BaseException as error:  # noqa: BLE001  (handed on, not swallowed)
                # A fault of our own or of a listener: it is raised on the training thread at the next
                # boundary. This thread goes on: the jobs behind hold slots, and somebody may wait for them.
                self.bug = error
            finally:
                job.finished()
                with self._idle:
                    self._pending -= 1
                    self._idle.notify_all()


class Errands(Worker[Callable[[], None]]):
    """Plain jobs without a result."""

    def _perform(self, job: Job[Callable[[], None]]) -> None:
        try:
            job.work()
        except DurableError as error:
            job.failed(error)
