"""L5. What a session tells of its data: a loop that waits for it, a mixture that strays from its policy.

On the training thread; reads what was measured and drawn anyway, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_core import events
from durable_core.clock import Clock
from durable_core.data.loader import DurableLoader
from durable_core.data.mixture import Policy, check_between, gone, mixture_in
from durable_core.data.physical.metrics import Metrics
from durable_core.session.status import Board


class SupplyWatch:
    """Every ``every`` steps: did the data keep up over those steps? ``every`` 0 asks never.

    A step needs its data in what it takes without waiting for it. The first boundary of a process, or of a
    loader that replaced another, only begins a window: what came before it waited for workers to start.
    """

    def __init__(self, every: int, board: Board, clock: Clock) -> None:
        self._every, self._board, self._clock = every, board, clock
        self._next = 0 if every else None  # the step at which the window ends
        self._loader: DurableLoader | None = None
        self._begin = (0, 0.0, Metrics())
        self._starved = 0

    def boundary(self, step: int, loader: DurableLoader | None) -> None:
        """At each boundary, after its batches were acknowledged."""
        if self._next is None or step < self._next or loader is None:
            return
        now, measured = self._clock.monotonic(), loader.metrics()
        if loader is self._loader:
            self._judge(step, now, measured, loader)
        self._loader, self._begin = loader, (step, now, measured.copy())
        self._next = step + self._every

    def _judge(self, step: int, now: float, measured: Metrics, loader: DurableLoader) -> None:
        first, then, before = self._begin
        window, seconds, steps = measured.since(before), now - then, step - first
        trained = seconds - window.wait.total
        if trained <= 0 or not window.fetch.count:  # of an iterable dataset nobody knows what a fetch takes
            return
        batches = max(1, round(window.wait.count / steps))
        verdict = loader.supply(trained / steps, batches=batches, measured=window)
        if verdict.sufficient:
            return
        self._starved += 1
        self._board.emit(
            events.InputStarved(
                self._clock.now(), step, verdict.required, verdict.tail, window.wait.total / seconds,
                verdict.bottleneck, verdict.reason, self._starved,
            )
        )  # fmt: skip


class MixtureWatch:
    """At each save: did the sources come as the policy says, since at least its window of draws ago?"""

    def __init__(self, board: Board, clock: Clock) -> None:
        self._board, self._clock = board, clock
        self._before: Mapping[str, Any] | None = None
        self._gone: set[str] = set()

    def saving(self, step: int, position: Mapping[str, Any]) -> None:
        """``position``: of the data, as it is saved with ``step``."""
        found = mixture_in(position)
        if found is None:
            return
        policy, state = found
        left = gone(policy, state)
        if self._before is None:  # what was told before the restart is no news
            self._gone = set(left)
        for source in left.keys() - self._gone:
            self._board.emit(events.SourceRanOut(self._clock.now(), step, source, left[source]))
        self._gone = set(left)
        if self._before is not None and self._is_young(policy, self._before, state):
            return
        for finding in check_between(policy, self._before or state, state):
            self._board.emit(
                events.MixtureDrifted(
                    self._clock.now(), step, finding.source, finding.expected, finding.observed,
                    finding.window, str(finding),
                )
            )  # fmt: skip
        self._before = state

    def _is_young(self, policy: Policy, before: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
        """Whether the window under way goes on: over a change of weights it cannot."""
        drawn = sum(state["draws"]) - sum(before["draws"])
        return drawn < policy.window and bool(before["version"] == state["version"])
