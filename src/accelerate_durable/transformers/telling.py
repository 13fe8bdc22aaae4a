"""What a launcher is told while the Trainer evaluates, so that it is not taken for a step that hangs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from durable_core.session.plain import DurableSession


class Evaluation:
    """The Trainer says nothing when one begins, but at each of its batches, and at the end."""

    def __init__(self) -> None:
        self._within = ExitStack()
        self._alive: Callable[[], None] | None = None

    def goes_on(self, session: DurableSession) -> None:
        if self._alive is None:
            self._alive = self._within.enter_context(session.evaluating())
        self._alive()

    def ends(self) -> None:
        self._within.close()
        self._alive = None
