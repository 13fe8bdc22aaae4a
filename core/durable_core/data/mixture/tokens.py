"""L3. Tokens of records, and of the draws to come: what weighing by tokens needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from durable_core.data.mixture.lanes import Lane, Place
from durable_core.data.mixture.policy import Weights
from durable_core.data.order import Ids
from durable_core.errors import UsageError

_LEAST = 8


class Lengths(Protocol):
    """Integers per record, readable at many records at once: an array, or a memory map of one."""

    def __len__(self) -> int: ...

    def __getitem__(self, ids: Any, /) -> Any: ...


class Tokens:
    """The lengths of one source. Raises ``UsageError`` for lengths that cannot be weighed."""

    def __init__(self, name: str, size: int, lengths: Lengths) -> None:
        if len(lengths) != size:
            raise UsageError(f"source {name!r} has {size} records and {len(lengths)} lengths")
        values = np.asarray(lengths[:])
        self._lengths: Any = lengths if hasattr(lengths, "dtype") else values
        if not np.issubdtype(values.dtype, np.integer):
            raise UsageError(f"the lengths of source {name!r} are {values.dtype}, not integers")
        if int(values.min()) < 0:
            record = int(values.argmin())
            raise UsageError(f"record {record} of source {name!r} has length {values[record]}")
        self.longest, self.total = int(values.max()), int(values.sum(dtype=np.int64))
        if self.longest == 0:
            raise UsageError(
                f"no record of source {name!r} has a token: weighed by tokens it would be drawn for ever",
                hint="leave it out, or weigh by sample",
            )

    def of(self, ids: Ids) -> Ids:
        """Tokens of each of ``ids``, int64."""
        return np.asarray(self._lengths[ids], dtype=np.int64)


class Lookahead:
    """The tokens of one draw after another from each source; None where it has no more."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        places: Sequence[Place],
        tokens: Sequence[Tokens],
        weights: Weights,
        count: int,
    ) -> None:
        self._lanes, self._places, self._tokens = lanes, list(places), tokens
        total = sum(weights)
        self._chunks = [min(count, _LEAST + count * weight // total) for weight in weights]
        self._known: list[list[int]] = [[] for _ in lanes]  # last first

    def __call__(self, source: int) -> int | None:
        if not self._known[source]:
            lane, chunk = self._lanes[source], self._chunks[source]
            batch, self._places[source] = lane.take(self._places[source], chunk)
            self._known[source] = self._tokens[source].of(batch.ids).tolist()[::-1]
        known = self._known[source]
        return known.pop() if known else None
