"""L5. Calls with a deadline over a store that may hang: a launcher waits for nobody's disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from durable_core.clock import Clock
from durable_core.commit.effects import Effect
from durable_core.engine.performer import Performer
from durable_core.errors import DurableError, TierUnavailable
from durable_core.tier.base import Tier

T = TypeVar("T")


class Patient(Performer):
    """Performs effects as long as somebody waits for the outcome. What was under way when the waiting ended
    may still arrive; what the program would have done next is refused, so that it ends there."""

    def __init__(self, tier: Tier, clock: Clock, deserted: threading.Event) -> None:
        super().__init__(tier, clock)
        self._deserted = deserted

    def _perform(self, effect: Effect) -> Any:
        if self._deserted.is_set():
            raise TierUnavailable("nobody waits for this any more")
        return super()._perform(effect)


class Bounded:
    """One call at a time, each on a thread of its own, which is left behind when it hangs."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._left: threading.Thread | None = None

    def call(self, work: Callable[[threading.Event], T], seconds: float) -> T:
        """``work``'s value or error; the event it is given is set when nobody waits for it any more.

        ``TierUnavailable`` after ``seconds``, or when the call before this one still hangs by then.
        """
        if self._left is not None:
            self._left.join(seconds)
            if self._left.is_alive():
                raise TierUnavailable(f"{self._what}: an operation before this one still hangs")
        deserted = threading.Event()
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(work(deserted))
            except DurableError as error:
                answer.set_exception(error)
            except BaseException as fault:
                answer.set_exception(fault)  # ours: the caller raises it, and the thread tells it
                raise

        self._left = thread = threading.Thread(target=run, name="durable-books", daemon=True)
        thread.start()
        try:
            wait([answer], seconds)
        finally:  # a signal may end the waiting too
            if not answer.done():
                deserted.set()
        if not answer.done():
            raise TierUnavailable(
                f"{self._what}: no answer in {seconds:g} s",
                hint="the store hangs; what was under way is found in the journal by the next call",
            )
        return answer.result()
