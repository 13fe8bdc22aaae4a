"""L3. What a tier is: a place where immutable objects live. It knows keys and bytes, not commits.

``put_if_absent`` has no default implementation on purpose: each backend must have a primitive of
its own that is atomic and durable, and ``probe()`` proves it by experiment before it is used.
A new tier is done when ``durable_core.testing.tier_contract.TierContract`` passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

Buffer = bytes | bytearray | memoryview

#: Bytes of a small object (a document) that ``get`` reads unless told otherwise.
DEFAULT_LIMIT = 64 * 1024 * 1024


def byte_view(data: Buffer) -> memoryview:
    """The bytes of a contiguous buffer of any element type and shape, not copied."""
    view = memoryview(data)
    if view.nbytes == 0:
        return memoryview(bytearray())  # cast() refuses shapes with a zero in them
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class Tier(ABC):
    """Errors raised by every method: ``TierUnavailable``, ``TierFull``, ``TierDenied`` (definitely
    not applied), ``InDoubt`` (unknown, writes only), ``ObjectNotFoundError`` (reads only)."""

    #: a URL or path for people and error messages; holds no secret
    location: str
    #: whether a reader, and a death in the middle of ``replace_object``, finds the old object or the new
    replaces_atomically = False

    @abstractmethod
    def get(self, key: str, *, limit: int = DEFAULT_LIMIT) -> bytes:
        """A whole small object; larger than ``limit`` bytes is a ``FormatError``, unread."""

    @abstractmethod
    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill ``out`` from byte ``offset``; a short object is a ``FormatError`` naming the key."""

    def stream_into(
        self, key: str, offset: int, out: memoryview, seen: Callable[[memoryview], object]
    ) -> None:
        """As ``read_into``; ``seen`` is given the parts of ``out``, in order, as they have been filled.

        A reader that digests them there finds them in the processor's cache.
        """
        view = byte_view(out)
        self.read_into(key, offset, view)
        seen(view)

    @abstractmethod
    def size(self, key: str) -> int:
        """Bytes of the object."""

    @abstractmethod
    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Create atomically and durably. ``True`` created; ``False`` something is already there."""

    @abstractmethod
    def put(self, key: str, data: Buffer) -> None:
        """Create or replace atomically, readers see old or new; may be lost with the power. Hints only."""

    @abstractmethod
    def write_object(self, key: str, parts: Iterable[Buffer]) -> int:
        """Write a large object from parts, in order; visible only when whole and durable. Bytes.

        A part is done with before the next is asked for, so that a generator may reuse its buffer.
        Keys of objects are unique: one that is already there is left alone, and a ``UsageError``."""

    def replace_object(self, key: str, parts: Iterable[Buffer]) -> int:
        """As ``write_object``, in place of what has this name: for repairing a damaged object. Bytes.

        Nothing is there in between, unless the tier ``replaces_atomically``; then ``parts`` may even read it.
        """
        self.delete(key)
        return self.write_object(key, parts)

    @abstractmethod
    def delete(self, key: str) -> None:
        """Idempotent."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[str]:
        """Keys under ``prefix`` in no particular order. Garbage collection and people only."""

    @abstractmethod
    def sync_tail(self, prefix: str) -> None:
        """Make what is visible under ``prefix`` durable (POSIX: fsync its directory)."""

    @abstractmethod
    def probe(self) -> None:
        """Prove the primitives by experiment; ``UnsupportedError`` when one does not hold."""

    def collect_residue(self, *, limit: int = 1000) -> int:
        """Remove at most ``limit`` temporaries of writers that are dead; how many. Idempotent."""
        return 0
