"""L3. A persistent vector: an immutable sequence whose updates share structure with the old one.

The fold keeps every state it has been in reachable (a refused record leaves the old one in use), so
an update must not copy 10,000 checkpoints. Items lie in chunks of ``_WIDTH``; appending or
replacing one copies its chunk and the spine of chunks: O(n / _WIDTH + _WIDTH) pointers, no items.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_WIDTH = 128


class Vector(Generic[T]):
    """Immutable; ``append`` and ``replace`` return a new vector. Equal by content."""

    __slots__ = ("_chunks", "_size")

    def __init__(self, chunks: tuple[tuple[T, ...], ...] = (), size: int = 0) -> None:
        self._chunks = chunks
        self._size = size

    def append(self, item: T) -> Vector[T]:
        if self._size % _WIDTH == 0:
            return Vector((*self._chunks, (item,)), self._size + 1)
        return Vector((*self._chunks[:-1], (*self._chunks[-1], item)), self._size + 1)

    def replace(self, index: int, item: T) -> Vector[T]:
        """``IndexError`` when there is no item at ``index``."""
        self._check(index)
        spine, at = divmod(index, _WIDTH)
        chunk = self._chunks[spine]
        fresh = (*chunk[:at], item, *chunk[at + 1 :])
        return Vector((*self._chunks[:spine], fresh, *self._chunks[spine + 1 :]), self._size)

    def __getitem__(self, index: int) -> T:
        self._check(index)
        return self._chunks[index // _WIDTH][index % _WIDTH]

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from chunk

    def __reversed__(self) -> Iterator[T]:
        for chunk in reversed(self._chunks):
            yield from reversed(chunk)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and self._chunks == other._chunks

    def __hash__(self) -> int:
        return hash(self._chunks)

    def __repr__(self) -> str:
        return f"Vector({list(self)!r})"

    def _check(self, index: int) -> None:
        if not 0 <= index < self._size:
            raise IndexError(f"no item {index} among {self._size}")
