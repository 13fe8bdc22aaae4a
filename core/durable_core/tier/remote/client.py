"""L3. What is asked of an object store's client. Paths are whole: the tier's prefix is part of them.

One call is one try: the tier repeats, since only it knows what a repetition means. The exception is
``upload``, whose parts are repeated by the client. Every failure is a ``Refusal``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

#: User metadata of an object created conditionally: whose creation it is. A name that Azure takes too.
MARK = "durablewrite"


@dataclass(frozen=True)
class Head:
    size: int
    mark: str  # "" when there is none


@dataclass(frozen=True)
class Listed:
    path: str
    modified: float  # seconds since the epoch, by the store's clock


@dataclass(frozen=True)
class Upload:
    """A multipart upload that was begun and neither completed nor aborted."""

    path: str
    id: str
    begun: float  # seconds since the epoch, by the store's clock


class ObjectClient(Protocol):
    name: str
    #: what travels with each PUT and part for the store to check it by
    checksum: str

    def create(self, path: str, body: bytes, mark: str) -> None:
        """One conditional PUT, ``EXISTS`` when anything is there; never multipart."""

    def replace(self, path: str, body: bytes) -> None:
        """One PUT."""

    def get(self, path: str, limit: int) -> tuple[int, bytes | None]:
        """Size, and the body unless it is larger than ``limit``."""

    def read(self, path: str, offset: int, out: memoryview) -> int:
        """Fill ``out`` from ``offset``; bytes filled, fewer at the object's end."""

    def head(self, path: str) -> Head: ...

    def delete(self, path: str) -> None:
        """What is not there is deleted."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """Objects whose path begins with ``prefix``, and perhaps others."""

    def upload(self, path: str, chunks: Iterable[bytes]) -> None:
        """Upload in parts, one a chunk; aborted when a part fails or ``chunks`` raises."""

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """Unfinished uploads, as far as the client can see them."""

    def abort(self, upload: Upload) -> None: ...

    def garbled(self, path: str, body: bytes) -> bool | None:
        """PUT with a checksum that is wrong: whether the store refused (``None``: cannot be tried)."""
