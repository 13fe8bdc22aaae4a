"""L3. Weights given to a mixture during the run: all of them, as each decides what was drawn since."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from durable_core.data.loader.sources.planned import Weights
from durable_core.errors import UsageError

LEAD = 64
"""Batches from the position to where new weights take effect, unless told otherwise. The same for any number
of workers, so that changing that changes nothing."""

Listed = tuple[int, tuple[tuple[str, int | float | str], ...]]


class Updates(Mapping[int, Weights]):
    """Weights by the number of the batch that they begin with, counted since the run began."""

    def __init__(self, listed: Iterable[tuple[int, Any]] = ()) -> None:
        self._by_batch: dict[int, Weights] = {at: dict(weights) for at, weights in listed}
        self._listed = [_item(at, self._by_batch[at]) for at in sorted(self._by_batch)]

    def __getitem__(self, at: int) -> Weights:
        return self._by_batch[at]

    def __contains__(self, at: object) -> bool:
        return at in self._by_batch

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_batch)

    def __len__(self) -> int:
        return len(self._by_batch)

    def add(self, at: int, weights: Weights) -> None:
        """``weights`` as of ``exactly``."""
        self._by_batch[at] = weights
        insort(self._listed, _item(at, weights))

    def listed(self) -> list[Listed]:
        """As JSON, oldest first, pairs for mappings: nobody can change them, so none has to be copied."""
        return self._listed[:]


def _item(at: int, weights: Weights) -> Listed:
    return at, tuple(weights.items())


def is_listed(value: Any) -> bool:
    """Whether ``Updates`` can be made of it."""
    return isinstance(value, (list, tuple)) and all(map(_is_item, value))


def _is_item(item: Any) -> bool:
    if not (isinstance(item, (list, tuple)) and len(item) == 2 and type(item[0]) is int and item[0] >= 0):
        return False
    pairs = item[1]
    if not (isinstance(pairs, (list, tuple)) and all(isinstance(pair, (list, tuple)) for pair in pairs)):
        return False
    return all(len(pair) == 2 and type(pair[0]) is str for pair in pairs)


def exactly(weights: Any) -> dict[str, int | float | str]:
    """``weights`` as JSON holds them, to the last digit: other kinds of numbers by their text.

    Raises ``UsageError`` for what is no mapping; whether they fit a mixture is for that to say.
    """
    if not isinstance(weights, Mapping):
        raise UsageError(f"weights are given by the names of the sources, not as {weights!r:.80}")
    plain = (int, float, str)
    return {name: value if type(value) in plain else str(value) for name, value in weights.items()}


def beginning(done: int, issued: int, lead: int, updates: Mapping[int, Weights]) -> int:
    """The batch that weights given after ``done`` batches begin with, ``issued`` being planned already.

    Raises ``UsageError`` when it may be planned, or has its weights.
    """
    at = done + lead
    if at < max(issued, done + 1):
        raise UsageError(
            f"{issued - done} batches after the position are planned already, so weights cannot change "
            f"{lead} after it",
            hint=f"pass lead={max(issued - done, 1)} or more, and always the same",
        )
    if at in updates:
        raise UsageError(f"weights that begin with batch {at} are given already")
    return at
