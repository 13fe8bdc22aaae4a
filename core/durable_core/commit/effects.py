"""L3. The effects a protocol program may ask for.

The protocol is sans IO: a *program* is a generator that yields an effect and is sent its result.
``engine.performer`` performs them on a real tier; ``testing.simulator`` performs them on a
simulated one, and may stop, delay, fail or kill between any two. A failed effect is *thrown* into
the program as a ``TierError`` (definitely not applied) or ``InDoubt`` (unknown).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from durable_core.types import CrashPoint, Extent, ObjectInfo, PlacedSlice, SliceInfo, SliceKey

T = TypeVar("T")


@dataclass(frozen=True)
class Get:
    """Whole small object. Result: ``bytes``, or ``None`` when there is none."""

    key: str


@dataclass(frozen=True)
class PutIfAbsent:
    """Create durably, or leave what is there. Result: ``True`` created, ``False`` already there."""

    key: str
    data: bytes


@dataclass(frozen=True)
class SyncTail:
    """Make the names visible under ``prefix`` durable before acting on them (POSIX: fsync the directory).

    The journal's tail, unless said otherwise; also a document that a lost acknowledgement left visible.
    """

    prefix: str = "journal/"


@dataclass(frozen=True)
class Size:
    """Result: bytes of an object, or ``None``."""

    key: str


@dataclass(frozen=True)
class ListKeys:
    """Keys under a prefix. For garbage collection only, never for correctness."""

    prefix: str


@dataclass(frozen=True)
class Delete:
    """Idempotent: deleting what is not there succeeds."""

    key: str


@dataclass(frozen=True)
class Describe:
    """Digest this writer's staged slices. Result: ``tuple[SliceInfo, ...]``, sorted by key."""


@dataclass(frozen=True)
class WriteShard:
    """Write these staged slices as one durable object. Result: ``WrittenShard``.

    ``patchable``: for slices of which an earlier version is stored, where that is, and the bytes that a patch
    may take. Whoever performs this writes such a patch instead of the slice, or the slice.
    """

    key: str
    slices: tuple[SliceKey, ...]
    patchable: Mapping[SliceKey, tuple[PlacedSlice, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimate:
    """Guess, in little time, for which share of these bytes nothing would have to be written, were they the
    last version stored. Result: ``float`` from 0 to 1. For speed only, never for correctness."""

    pieces: tuple[PlacedSlice, ...]


@dataclass(frozen=True)
class Confirm:
    """Wait until it is certain that what is staged is the state of the boundary: copying goes on while
    training computes, and only the guard before the next update says that nothing changed meanwhile.

    Raises ``StaleSnapshotError`` when something did."""


@dataclass(frozen=True)
class WrittenShard:
    object: ObjectInfo
    begins: tuple[int, ...]  # byte offset of each slice, in the order asked for
    found: tuple[Extent | None, ...] = ()  # the patch written instead of it, if one was

    @property
    def patches(self) -> tuple[Extent | None, ...]:
        return self.found or (None,) * len(self.begins)


@dataclass(frozen=True)
class Now:
    """Result: monotonic seconds (``float``)."""


@dataclass(frozen=True)
class WallTime:
    """Result: wall-clock seconds since the epoch (``float``). For people, never for correctness."""


@dataclass(frozen=True)
class Wait:
    """Let time pass before the next poll."""

    seconds: float


@dataclass(frozen=True)
class NewId:
    """Result: a fresh 32-digit hex identity."""


@dataclass(frozen=True)
class Reached:
    """A named crash point was reached; tests and the simulator may kill here."""

    point: CrashPoint


Effect = (
    Get | PutIfAbsent | SyncTail | Size | ListKeys | Delete | Describe | WriteShard
    | Confirm | Estimate | Now | WallTime | Wait | NewId | Reached
)  # fmt: skip
Program = Generator[Effect, Any, T]

__all__ = [
    "Confirm", "Delete", "Describe", "Effect", "Estimate", "Get", "ListKeys", "NewId", "Now", "Program",
    "PutIfAbsent", "Reached", "Size", "SliceInfo", "SyncTail", "Wait", "WallTime", "WriteShard",
    "WrittenShard",
]  # fmt: skip
