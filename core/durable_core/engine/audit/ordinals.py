"""L4. Items of a stream, judged by their places: each worker numbers its own 0, 1, 2 ... in an epoch.

The id of an item is ``ordinal * workers + worker``, and a batch is one worker's. So the ids of a batch say
how many workers there are, and every worker has to give each of its ordinals once. (What the items were,
no id of a stream can say: one that was read again under new ordinals is not seen here.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from durable_core.data.order import Ids


@dataclass
class Ordinals:
    """One epoch. ``whole``: its first batch is known, so that an ordinal missed at its beginning is missed.

    While only batches of one item have come, nobody can tell how many workers there are; all that holds then
    is that ids rise, for the workers take turns.
    """

    whole: bool
    workers: int | None = None
    repeated: int = 0
    skipped: int = 0
    _next: dict[int, int] = field(default_factory=dict)
    _last: int = -1

    def take(self, ids: Ids) -> None:
        """The ids of one batch, of batches in their order."""
        if not len(ids):
            return
        if self.workers is None:
            steps = np.diff(ids)
            if not (steps > 0).any():
                self.repeated += len(steps) + int(ids[0] <= self._last)
                self._last = max(self._last, int(ids[-1]))
                return
            self.workers = int(steps[steps > 0].min())
            self.whole = self.whole and self._last < 0
        for worker in np.unique(ids % self.workers).tolist():
            self._follow(worker, ids[ids % self.workers == worker] // self.workers)

    def _follow(self, worker: int, ordinals: Ids) -> None:
        due = self._next.get(worker, 0 if self.whole else int(ordinals.min()))
        fresh = np.unique(ordinals[ordinals >= due])
        self.repeated += len(ordinals) - len(fresh)
        if len(fresh):
            self._next[worker] = int(fresh[-1]) + 1
            self.skipped += self._next[worker] - due - len(fresh)
