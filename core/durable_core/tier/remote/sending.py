"""L3. A large object on its way: parts of any size in, chunks of one size out, and how far it got."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from durable_core.tier.base import Buffer, byte_view
from durable_core.types import CrashPoint

Reached = Callable[[CrashPoint], None]


def nothing(point: CrashPoint) -> None:
    """Crash points are for tests."""


class Sending(Iterator[bytes]):
    """Chunks of ``size`` bytes, the last one shorter. A part is copied before the next is asked for.

    ``nbytes``: taken so far. ``finished``: the end was asked for and reached, so a completion may have
    been sent; until then it cannot have been.
    """

    def __init__(self, parts: Iterable[Buffer], size: int, reached: Reached = nothing) -> None:
        self.nbytes = 0
        self.finished = False
        self._chunks = self._cut(parts, size, reached)

    def __next__(self) -> bytes:
        return next(self._chunks)

    def _cut(self, parts: Iterable[Buffer], size: int, reached: Reached) -> Iterator[bytes]:
        rest = bytearray()
        for index, part in enumerate(parts):
            view = byte_view(part)
            if index == 1:  # the first part is a header; this is the middle of the data
                reached(CrashPoint.K6)
            self.nbytes += len(view)
            while len(rest) + len(view) >= size:
                missing = size - len(rest)
                yield b"".join((rest, view[:missing])) if rest else bytes(view[:missing])
                rest.clear()
                view = view[missing:]
            rest += view
        if rest:
            yield bytes(rest)
        reached(CrashPoint.K7)
        self.finished = True
