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
    ended: bool = False  # there are no more batches
    exhausted: bool = False  # and the consumer was told so
    fetching: bool = False  # still true after a fetch that raised

    def close(self) -> None:
        """Stop reading ahead; workers that do not persist end."""
        self.batches = iter(())


class PassIterator(Iterator[Any]):
    """What ``iter()`` gives. The loader does not hold it: a cycle would keep workers till a collection."""

    def __init__(self, advance: Callable[[Pass], Any], current: Pass) -> None:
        self._advance, self._current = advance, current

    def __next__(self) -> Any:
        return self._advance(self._current)
