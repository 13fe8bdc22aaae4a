"""L3. What an agent keeps: objects of runs in a directory, bounded, each run behind its fence.

::

    agent.lock            held by the one agent that serves the directory
    runs/<run_id>/<key>   a PosixTier for each run; files as ``seals`` describes
    fences/<run_id>       the highest generation that has spoken to this agent

All of it is in files, so that an agent that was killed lost nothing that it had acknowledged.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from durable_core.errors import (
    Fenced,
    FormatError,
    ObjectNotFoundError,
    TierFull,
    TierUnavailable,
    UsageError,
)
from durable_core.format import canonical, layout
from durable_core.format.fields import Fields
from durable_core.tier.base import Buffer
from durable_core.tier.peer.seals import END_BYTES, TAG_BYTES, Seal
from durable_core.tier.posix import PosixTier
from durable_core.tier.syscalls import mapped, read_all

_PAGE = 4096
#: Run ids become names of files here.
_MAX_RUN_ID = 64


class Room:
    """The bytes that may be kept, in pages, as memory is taken."""

    def __init__(self, capacity: int, used: int) -> None:
        self.capacity = capacity
        self._used = used
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._used

    def move(self, pages: int) -> None:
        """Take (or, negative, give back) whole pages; ``TierFull`` when they are not there."""
        with self._lock:
            if pages > 0 and self._used + pages > self.capacity:
                raise TierFull(
                    f"a peer keeps {self._used} of {self.capacity} bytes, and {pages} more do not fit",
                    hint="raise the agent's --capacity, or retain fewer snapshots",
                )
            self._used += pages


class _Taken(Exception):
    """Another write gave the key its object first."""


class Claim:
    """Room for one write, growing with it, and given back unless it is kept."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._taken = 0

    def reach(self, nbytes: int) -> None:
        """Have room for ``nbytes`` in all."""
        more = pages(nbytes) - self._taken
        if more > 0:
            self._room.move(more)
            self._taken += more

    def keep(self, nbytes: int, replaced: int) -> None:
        """``nbytes`` are stored in place of ``replaced``; the rest of the claim is free again."""
        self._room.move(pages(nbytes) - self._taken - pages(replaced))
        self._taken = 0

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.move(-self._taken)


def pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


@dataclass(frozen=True)
class Kept:
    """An object open for reading: it stays readable when it is deleted meanwhile."""

    key: str
    fd: int
    seal: Seal

    def block(self, begin: int, out: memoryview) -> None:
        """Fill ``out`` from byte ``begin`` of the object."""
        with mapped(f"read {self.key}"):
            got = read_all(self.fd, begin, out)
        if got != len(out):
            raise FormatError(self.key, "shorter than it was when it was opened")

    def tags(self, first: int, count: int) -> bytes:
        out = bytearray(TAG_BYTES * count)
        self.block(self.seal.size + TAG_BYTES * first, memoryview(out))
        return bytes(out)


class _Objects(PosixTier):
    """A POSIX tier that opens an object once for all that is read of it."""

    @contextlib.contextmanager
    def opened(self, key: str) -> Iterator[Kept]:
        with self._open(key) as (fd, stored):
            end = bytearray(min(END_BYTES, stored))
            with mapped(f"read {key}"):
                read_all(fd, stored - len(end), memoryview(end))
            yield Kept(key, fd, Seal.parse(key, bytes(end), stored))

    def stored(self, key: str) -> int:
        """Bytes of the file, 0 when there is none."""
        try:
            return self.size(key)
        except ObjectNotFoundError:
            return 0


class RunStore:
    """One run's objects. Writers give the generation they were started with, readers nothing."""

    def __init__(self, run_id: str, directory: Path, fences: PosixTier, room: Room) -> None:
        self.run_id = run_id
        self._objects = _Objects(directory)
        self._fences = fences
        self._room = room
        self._lock = threading.Lock()  # held while something becomes visible or ceases to be
        self._highest = self._read_fence()

    @property
    def highest(self) -> int:
        return self._highest

    def admit(self, generation: int) -> None:
        """Note that a generation has spoken: durable before anything is answered to it."""
        with self._lock:
            if generation > self._highest:
                self._fences.put(self.run_id, canonical.dumps({"generation": generation, "v": 1}))
                self._fences.sync_tail("")
                self._highest = generation

    def write(
        self, key: str, parts: Iterable[Buffer], generation: int, *, replace: bool, expected: int
    ) -> bool:
        """Store an object; whether it was (``False``: the key is taken).

        Room for ``expected`` bytes is claimed before any come, 0 where that is not known. With ``replace``
        the key may be taken. Raises ``Fenced``, ``TierFull`` and what ``PosixTier`` and ``parts`` raise; then
        nothing has changed, unless it is ``InDoubt``.
        """
        self._refuse_stale(generation)
        if not replace and self._objects.stored(key):
            return False
        with contextlib.ExitStack() as held:
            claim = held.enter_context(Claim(self._room))
            claim.reach(expected)
            replaced = 0

            def then_owned() -> Iterator[Buffer]:
                """Own the run from the last byte until the object has its name."""
                nonlocal replaced
                yield from self._counted(parts, claim)
                held.enter_context(self._owned(generation))
                replaced = self._objects.stored(key)
                if replaced and not replace:
                    raise _Taken

            store = self._objects.replace_object if replace else self._objects.write_object
            try:
                nbytes = store(key, then_owned())
            except _Taken:
                return False
            claim.keep(nbytes, replaced)
            return True

    def delete(self, key: str, generation: int) -> None:
        with self._owned(generation):
            self._remove(key)

    def forget(self, generation: int) -> int:
        """Delete all objects of the run; the bytes freed. Its fence stays."""
        with self._owned(generation):
            return sum(self._remove(key) for key in list(self._objects.list("")))

    def _remove(self, key: str) -> int:
        freed = pages(self._objects.stored(key))
        self._objects.delete(key)
        self._room.move(-freed)
        return freed

    def opened(self, key: str) -> contextlib.AbstractContextManager[Kept]:
        return self._objects.opened(key)

    def list(self, prefix: str) -> Iterator[str]:
        return self._objects.list(prefix)

    def collect_residue(self, limit: int) -> int:
        return self._objects.collect_residue(limit=limit)

    @staticmethod
    def _counted(parts: Iterable[Buffer], claim: Claim) -> Iterator[Buffer]:
        total = 0
        for part in parts:
            total += len(part)
            claim.reach(total)
            yield part

    @contextlib.contextmanager
    def _owned(self, generation: int) -> Iterator[None]:
        """While this is held, no higher generation can speak, and none lower can have got here."""
        with self._lock:
            self._refuse_stale(generation)
            yield

    def _refuse_stale(self, generation: int) -> None:
        if generation < self._highest:
            raise Fenced(
                f"generation {generation} of run {self.run_id} may not write: {self._highest} has been here",
                hint="a newer launch owns the run; end this process",
            )

    def _read_fence(self) -> int:
        try:
            data = self._fences.get(self.run_id, limit=_PAGE)
            return Fields(canonical.loads(data, key=self.run_id), key=self.run_id).count("generation")
        except ObjectNotFoundError:
            return 0
        except FormatError as error:
            raise TierUnavailable(
                f"the fence of run {self.run_id} is damaged: {error}",
                hint=f"once no old writer is left, remove {self._fences.root / self.run_id}",
            ) from error


class Store:
    """All that one agent keeps, under ``directory``, which it owns alone until ``close``.

    Raises ``UsageError`` when another agent serves the directory, or another user could write there.
    """

    def __init__(self, directory: str | os.PathLike[str], capacity: int) -> None:
        self.directory = Path(directory).absolute()
        self._lock_fd = _own(self.directory)
        self._fences = PosixTier(self.directory / "fences")
        self._runs: dict[str, RunStore] = {}
        self._lock = threading.Lock()
        self.room = Room(capacity, sum(_held(self.directory / "runs")))
        for tier in (self._fences, *(PosixTier(self._home(run_id)) for run_id in self.run_ids())):
            tier.collect_residue(limit=1 << 30)  # of agents that were killed here

    def run(self, run_id: str) -> RunStore:
        if fault := run_fault(run_id):
            raise UsageError(f"bad run id {run_id!r}: {fault}")
        with self._lock:
            if run_id not in self._runs:
                self._runs[run_id] = RunStore(run_id, self._home(run_id), self._fences, self.room)
            return self._runs[run_id]

    def run_ids(self) -> list[str]:
        with mapped(f"list {self.directory}"):
            return sorted(path.name for path in self.directory.glob("runs/*") if not run_fault(path.name))

    def forget_all(self) -> int:
        """Delete the objects of every run; the bytes freed. For the end of the job on this host."""
        runs = [self.run(run_id) for run_id in self.run_ids()]
        return sum(run.forget(run.highest) for run in runs)

    def close(self) -> None:
        os.close(self._lock_fd)

    def _home(self, run_id: str) -> Path:
        return self.directory / "runs" / run_id


def run_fault(run_id: object) -> str:
    """Why ``run_id`` cannot be the name of a run here; ``""`` when it can."""
    if not isinstance(run_id, str) or "/" in run_id or len(run_id) > _MAX_RUN_ID:
        return f"not one segment of at most {_MAX_RUN_ID} characters"
    return layout.key_fault(run_id)


def _own(directory: Path) -> int:
    """Make ``directory`` this user's alone, and this process's alone; the descriptor of the lock."""
    with mapped(f"create {directory}"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise UsageError(
                f"{directory} is not a directory that only this user can write to",
                hint="name another one with --directory",
            )
        fd = os.open(directory / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError(
            f"another agent serves {directory}", hint="one agent per host, or another --directory"
        ) from None
    return fd


def _held(directory: Path) -> Iterator[int]:
    """The pages of every object below ``directory``."""
    for path in directory.rglob("*"):
        if path.is_file() and path.parent.name != "tmp":
            yield pages(path.lstat().st_size)
