"""L3. One pass over (the rest of) an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from durable_core.data.ledger import Tag


@dataclass
class Pass:
    """A pass as the loader remembers it: from ``start`` = (epoch, batch).

    ``batches`` is None until the first is asked for: only then is it settled what the source's state is.
    """

    start: tuple[int, int]
    batches: Iterator[tuple[Tag, Any]] | None = None
    ahead: tuple[Tag, Any] | None = None  # fetched to see whether it is there, and not handed over
    ended: bool = False  # there are no more batches
    exhausted: bool = False  # and the consumer was told so
    fetching: bool = False  # still true after a fetch that raised

    def close(self) -> None:
        """Stop reading ahead; workers that do not persist end."""
        self.batches, self.ahead = iter(()), None

    def take(self) -> tuple[Tag, Any] | None:
        """The next batch, once ``batches`` is known; ``None``: there is none."""
        ahead, self.ahead = self.ahead, None
        assert self.batches is not None
        return next(self.batches, None) if ahead is None else ahead


class PassIterator(Iterator[Any]):
    """What ``iter()`` gives. The loader does not hold it: a cycle would keep workers till a collection."""

    def __init__(self, advance: Callable[[Pass], Any], current: Pass) -> None:
        self._advance, self._current = advance, current

    def __next__(self) -> Any:
        return self._advance(self._current)
