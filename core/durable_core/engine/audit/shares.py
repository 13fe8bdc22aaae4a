"""L4. Shares of the sources against their weights: the bound of quotas, the drift of independent draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SLACK = 1e-6  # of rounding, in draws: |debt| is computed in floating point
ALARM = 4.0  # standard deviations: one in 16,000 windows by chance


class Debts:
    """The largest |t w_i - N_i(t)| over all t, by source."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = weights
        self._counts = np.zeros(len(weights), np.int64)
        self.worst = np.zeros(len(weights))

    def follow(self, which: npt.NDArray[np.int64], before: int) -> None:
        """The next draws by source; ``before`` came earlier."""
        t = np.arange(before + 1, before + len(which) + 1, dtype=np.float64)
        for i, weight in enumerate(self._weights):
            counts = self._counts[i] + np.cumsum(which == i)
            self.worst[i] = max(self.worst[i], float(np.abs(t * weight - counts).max()))
            self._counts[i] = counts[-1]


class Windows:
    """z = (N_i - H w_i) / sqrt(H w_i (1 - w_i)) of each window of H draws.

    ``worst``: (z, source, first draw); ``drifted``: windows in which a source was beyond the alarm.
    """

    def __init__(self, weights: Sequence[float], size: int) -> None:
        self.size = size
        share = np.array(weights)
        self._due, self._spread = size * share, np.sqrt(size * share * (1 - share))
        self._rest = np.empty(0, np.int64)
        self._begin = 0
        self.worst = (0.0, 0, 0)
        self.drifted = 0

    def follow(self, which: npt.NDArray[np.int64]) -> None:
        drawn = np.concatenate([self._rest, which])
        for begin in range(0, len(drawn) - self.size + 1, self.size):
            counts = np.bincount(drawn[begin : begin + self.size], minlength=len(self._due))
            off = counts - self._due
            z = np.divide(off, self._spread, out=np.where(off == 0, 0.0, np.inf), where=self._spread > 0)
            i = int(np.argmax(np.abs(z)))
            self.drifted += bool(abs(z[i]) > ALARM)
            self.worst = max(self.worst, (float(z[i]), i, self._begin), key=lambda found: abs(found[0]))
            self._begin += self.size
        self._rest = drawn[len(drawn) // self.size * self.size :]


def quota_bound(sources: int) -> float:
    """|debt| of Tijdeman's schedule never exceeds 1 - 1/(2m - 2) draws for m sources (0 for one)."""
    return 0.0 if sources < 2 else 1 - 1 / (2 * sources - 2)
