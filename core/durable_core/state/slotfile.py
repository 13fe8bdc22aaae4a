"""L3. One slot as a file in shared memory: made, owned, mapped, marked.

The bytes outlive the process; the ownership does not: the owner holds an advisory lock on the file, which
the kernel drops with the process, however that ends. Header and seal are written with ``pwrite``, so a
full file system is an error and not a signal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import stat
import weakref
from pathlib import Path

from durable_core.errors import MemoryShortageError, TierFull, UsageError
from durable_core.format import digests
from durable_core.format.seal import (
    Seal,
    SlotHeader,
    SlotState,
    encode_header,
    encode_seal,
    seal_begin,
)
from durable_core.state import budget

SUFFIX = ".slot"
#: Reserved behind the tensors for the seal, so that sealing does not fail for want of memory.
SEAL_ROOM = 1 << 20

_open_files: weakref.WeakSet[SlotFile] = weakref.WeakSet()


def private_directory(base: Path, run_id: str) -> Path:
    """``base/durable-<uid>/<run_id>``, made if need be, for this user alone.

    ``base`` may be open to all (like /dev/shm), so what is found there is believed only when it is a
    directory, no link, and ours: ``UsageError`` otherwise.
    """
    path = user_directory(base)
    for place in (path, path / run_id):
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
        check_private(place)
    return path / run_id


def user_directory(base: Path) -> Path:
    return base / f"durable-{os.geteuid()}"


def check_private(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path} is not a directory", hint="remove it: it is not ours")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UsageError(
            f"{path} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}",
            hint="snapshots go only where no other user can read or write",
        )


def lock_dead(path: Path) -> int | None:
    """A descriptor that holds the lock of a slot file whose owner is gone; ``None`` while the owner lives.

    ``FileNotFoundError`` when the file is gone. The caller closes the descriptor.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    return descriptor


class SlotFile:
    """A slot file of this process. Its memory is taken by ``reserve``; ``close`` keeps the file."""

    _lock = _descriptor = -1

    def __init__(self, base: Path, run_id: str) -> None:
        self._base = base
        self._reserved = 0
        try:
            self.path, self._descriptor, self._lock = _create(base, run_id)
            self.mark(SlotState.EMPTY)
        except OSError as error:
            self.close()
            raise UsageError(
                f"cannot make a slot in {base}: {error}",
                hint="free what earlier runs left (durable gc --memory)",
            ) from error
        _open_files.add(self)

    def reserve(self, nbytes: int) -> mmap.mmap:
        """The file mapped, with memory for the header, ``nbytes`` bytes of tensors and a seal behind it.

        Nothing that was written before changes. ``UsageError`` with the numbers when that much memory is
        not to be had; the file is then as it was.
        """
        mapped = seal_begin(nbytes)
        wanted = mapped + SEAL_ROOM
        if wanted > self._reserved:
            more = wanted - self._reserved
            budget.require(more, budget.rooms(self._base), what=f"a slot of {nbytes} bytes")
            try:
                os.posix_fallocate(self._descriptor, 0, wanted)
            except OSError as error:
                raise MemoryShortageError(
                    f"cannot reserve {wanted} bytes in {self.path.parent}: {error.strerror}",
                    hint="use fewer slots, or free what earlier runs left (durable gc --memory)",
                ) from error
            self._reserved = wanted
        return mmap.mmap(self._descriptor, mapped, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def mark(self, state: SlotState) -> None:
        """Write a header without a seal: ``DIRTY`` before the first byte of a slot changes."""
        self._write_header(SlotHeader(state))

    def seal(self, seal: Seal) -> None:
        """Write the seal behind the tensors, then the header that names it.

        ``TierFull`` when there is no memory for it: the slot is then as before, not sealed.
        """
        data = encode_seal(seal)
        begin = seal_begin(seal.nbytes)
        try:
            _write(self._descriptor, data, begin)
        except OSError as error:
            raise TierFull(f"no memory for a seal of {len(data)} bytes in {self.path}: {error}") from error
        self._write_header(SlotHeader(SlotState.SEALED, begin, len(data), digests.xxh3(data)))

    def close(self) -> None:
        """Give up the ownership; the file stays. Harmless when repeated."""
        for descriptor in (self._lock, self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._descriptor = -1

    def remove(self) -> None:
        """Give up the ownership and the file; the memory goes with the last mapping."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self.close()

    def _write_header(self, header: SlotHeader) -> None:
        _write(self._descriptor, encode_header(header), 0)
        self.header = header

    def __del__(self) -> None:
        self.close()


def _create(base: Path, run_id: str) -> tuple[Path, int, int]:
    """A new file and two descriptors of it: one to write and map, one that holds the lock.

    Two, because a mapping keeps its descriptor: a forked child must be able to close the one with the
    lock, or the lock would outlive the owner.
    """
    while True:
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            path = private_directory(base, run_id) / f"{secrets.token_hex(8)}{SUFFIX}"
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:
            if not base.is_dir():
                raise
            continue  # a collector removed the directory of the run, which was empty
        try:
            lock = os.open(path, flags)
        except FileNotFoundError:
            os.close(descriptor)
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return path, descriptor, lock
        # A collector was quicker than our lock, and took this for a dead process's file.
        os.close(descriptor)
        os.close(lock)


def _write(descriptor: int, data: bytes, begin: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, begin)
        view, begin = view[written:], begin + written


def _disown() -> None:
    """In a forked child: the slots are the parent's, and the lock must die with the parent."""
    for file in tuple(_open_files):
        file.close()


os.register_at_fork(after_in_child=_disown)
