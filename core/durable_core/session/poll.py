"""L5. Agreement of all ranks on leaving the loop, without a collective at every step.

Each rank may wish something (it got SIGTERM, it was fenced). All must act on it at the same step, or
one of them waits for a gradient that never comes. So the ranks meet at polls: steps known to all, chosen
about ``interval_s`` apart, at most ``MAX_STEPS``. Between two polls a boundary costs one comparison.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

#: Element-wise maximum over all ranks of a few integers.
ReduceMax = Callable[[tuple[int, int]], tuple[int, int]]

#: A poll costs about 0.2 ms among local processes: spread over this many steps it is nothing.
MAX_STEPS = 8


class Wish(enum.IntEnum):
    """Ordered: when ranks wish different things, the greatest wins."""

    NOTHING = 0
    DRAIN = 1
    ABORT = 2
    FENCED = 3


class Poll:
    """``reduce_max=None``: a process on its own, whose wish is granted at once."""

    def __init__(self, reduce_max: ReduceMax | None, interval_s: float = 0.5) -> None:
        self._reduce_max = reduce_max
        self._interval_s = interval_s
        self._steps = 0  # steps of the current stretch, the same on every rank
        self._left = 0
        self._since = 0.0

    def at(self, wish: Wish, now: float) -> Wish:
        """At every boundary, on every rank. ``now``: monotonic seconds. Returns what all ranks do now."""
        if self._reduce_max is None:
            return wish
        self._left -= 1
        if self._left > 0:
            return Wish.NOTHING
        agreed, negative_steps = self._reduce_max((int(wish), -self._propose(now)))
        self._steps = self._left = -negative_steps  # the least of all proposals
        self._since = now
        return Wish(agreed)

    def _propose(self, now: float) -> int:
        """Steps until the next poll."""
        if not self._steps:
            return 1
        seconds = max((now - self._since) / self._steps, 1e-9)
        return max(1, min(int(self._interval_s / seconds), MAX_STEPS))
