"""L3. Orders over records alone: none, and a full keyed permutation.

``full_prp_v1`` is a *full keyed permutation*: a pseudo-random bijection of [0, n) that needs no
memory that grows with n and answers for any position at once. It is keyed, not uniform: at most
2^512 of the n! permutations can occur. Mixing distance: none; any record may stand anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from durable_core.data.order.arithmetic import Bijection, derive_keys
from durable_core.data.order.base import Ids, check_range, checked_size

FULL_PERMUTATION = "full_prp_v1"
SEQUENTIAL = "sequential_v1"


class Sequential:
    """The identity: position p holds sample p."""

    name = SEQUENTIAL

    def __init__(self, size: int) -> None:
        self.size = checked_size(size)
        self.description: dict[str, Any] = {"name": self.name, "size": size}

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        check_range(self, epoch, start, stop)
        return np.arange(start, stop, dtype=np.int64)


class FullPermutation:
    """``full_prp_v1`` (see the module): random access, one window of ids cached."""

    name = FULL_PERMUTATION

    def __init__(self, size: int, *, dataset_id: str, seed: int, source: str = "") -> None:
        self.size = checked_size(size)
        self.description: dict[str, Any] = {
            "name": self.name, "size": size, "dataset_id": dataset_id, "source": source,
        }  # fmt: skip
        self._context, self._seed = (self.name, dataset_id, source), seed
        self._current: tuple[int, Bijection] | None = None

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        check_range(self, epoch, start, stop)
        if self._current is None or self._current[0] != epoch:
            keys = derive_keys(*self._context, epoch, self._seed)
            self._current = (epoch, Bijection(self.size, keys))
        return self._current[1].values(start, stop)
