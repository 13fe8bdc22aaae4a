"""L4. The progress of one worker, in a small file that its launcher maps: no lock, no system call.

A beat says how far a worker is, and in which phase; that it lives at all is seen from its process. So a
process that is alive and stands still is told from one that is gone (REC-10). Times are those of the
monotonic clock, which all processes of a host share; between hosts only ages are exchanged.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from durable_core.errors import FormatError

VERSION = 2
#: The newest own times that a beat keeps.
OWN_TIMES = 32
# sequence, version, attempt, phase, generation, step, count, durable, time, since, number of own times, pid
_HEAD = struct.Struct("<IIIIqqqqddqq")
_TIMES, _TIMES_AT = struct.Struct("<dd"), struct.calcsize("<IIIIqqqq")  # of time and since, in the head
_OWN = struct.Struct(f"<{OWN_TIMES}d")
_ONE = struct.Struct("<d")
_SEQUENCE = struct.Struct("<I")  # its low byte goes first, so that it is odd before anything else changes
SIZE = _HEAD.size + _OWN.size
_TRIES = 100


class Phase(enum.IntEnum):
    """What a worker is doing; each has a limit of its own."""

    INIT = 1  # imports, building, joining the others
    RESTORE = 2
    STEP = 3
    EVAL = 4
    SAVE = 5  # the loop is held up by a save
    EXIT = 6


@dataclass(frozen=True)
class Beat:
    """``step``: the last boundary (-1: none yet); ``count`` rises with every beat; ``durable``: the newest
    step that is (-1: none); ``time``, ``since``: monotonic seconds of this beat, and of the begin of the
    phase; ``attempt``: of the launch, as the worker was told it: whoever beats is the worker of it, whatever
    has been wrapped around it; ``pid``: its own number, where it runs (0: not told).

    ``own``: seconds that each of the last steps took this worker itself, oldest first: from the boundary to
    its last local gradient, before it waits for the others. In a synchronous group the steps of all take
    equally long; these do not.
    """

    attempt: int
    phase: Phase
    generation: int
    step: int
    count: int
    durable: int
    time: float
    since: float
    own: tuple[float, ...] = ()
    pid: int = 0


_PHASES = frozenset(Phase)


class Writer:
    """One worker's file; ``attempt``: as in ``Beat``. Not thread-safe: it beats on the training thread, as
    nothing else is progress. ``OSError`` where there is no room for it, or its directory is gone with the
    launcher."""

    def __init__(self, path: Path, attempt: int) -> None:
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with beside.open("w+b") as file:
                file.write(bytes(SIZE))  # not truncate(): where memory is full, an error now, no SIGBUS later
                file.flush()
                self._map = mmap.mmap(file.fileno(), SIZE)
            beside.replace(path)  # a file of its own: who had this rank before may still write into the other
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        self._attempt, self._pid = attempt, os.getpid()
        self._sequence = 0
        self._count = 0
        self._owned = 0
        self._unshown: list[float] = []
        self._phase, self._since = Phase.INIT, 0.0

    def beat(self, now: float, phase: Phase, *, generation: int, step: int, durable: int = -1) -> None:
        """About 2 us. A reader that comes in between sees an odd sequence number, and looks again."""
        if phase is not self._phase or not self._count:
            self._phase, self._since = phase, now
        self._count += 1
        odd = self._sequence + 1
        _SEQUENCE.pack_into(self._map, 0, odd)
        for seconds in self._unshown:
            _ONE.pack_into(self._map, _HEAD.size + _ONE.size * (self._owned % OWN_TIMES), seconds)
            self._owned += 1
        self._unshown.clear()
        _HEAD.pack_into(
            self._map, 0, odd, VERSION, self._attempt, phase, generation, step, self._count,
            durable, now, self._since, self._owned, self._pid,
        )  # fmt: skip
        self._sequence = (odd + 1) & 0xFFFFFFFF
        _SEQUENCE.pack_into(self._map, 0, self._sequence)

    def own(self, seconds: float) -> None:
        """One step's own time; it is shown with the next beat."""
        self._unshown.append(seconds)

    def close(self) -> None:
        self._map.close()


def read(path: Path) -> Beat | None:
    """The newest beat; ``None`` when there is none yet. ``FormatError`` for a file that is something else."""
    found = whole(path)
    return None if found is None else _decoded(found, path)


def whole(path: Path) -> bytes | None:
    """The bytes of one beat, none of them of the next. Otherwise as ``read``."""
    try:
        with path.open("rb") as file:
            for _ in range(_TRIES):
                file.seek(0)
                found = file.read()
                if len(found) != SIZE:
                    raise FormatError(str(path), f"{len(found)} bytes, and a beat has {SIZE}")
                file.seek(0)
                if found[:4] == file.read(4) and not found[0] & 1:
                    return found
    except FileNotFoundError:
        return None
    return None  # a worker that was killed within a beat: it is gone anyway


def shifted(beat: bytes, seconds: float) -> bytes:
    """The same as the clock of another host has it: ``seconds`` are added to its times."""
    if len(beat) != SIZE:
        raise FormatError("a beat", f"{len(beat)} bytes, and it has {SIZE}")
    time, since = _TIMES.unpack_from(beat, _TIMES_AT)
    moved = bytearray(beat)
    _TIMES.pack_into(moved, _TIMES_AT, time + seconds, since + seconds)
    return bytes(moved)


def _decoded(data: bytes, path: Path) -> Beat | None:
    (
        _, version, attempt, phase, generation, step, count, durable, time, since, owned, pid,
    ) = _HEAD.unpack_from(data)  # fmt: skip
    if not count:
        return None
    if version != VERSION or phase not in _PHASES:
        raise FormatError(str(path), f"no beat of version {VERSION}")
    ring = _OWN.unpack_from(data, _HEAD.size)
    first = owned % OWN_TIMES
    own = ring[first:] + ring[:first] if owned >= OWN_TIMES else ring[:owned]
    return Beat(attempt, Phase(phase), generation, step, count, durable, time, since, own, pid)
