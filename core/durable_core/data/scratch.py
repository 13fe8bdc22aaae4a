"""L3. Files that are public whole or not at all: written privately under a lock that dies with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from durable_core.clock import Clock, SystemClock

_TMP = ".tmp"
POLL_S = 0.01


def try_lock(path: Path, *, create: bool = False, shared: bool = False, write: bool = True) -> int | None:
    """A descriptor that holds the lock of the file that is at ``path`` *now*; None when somebody else holds
    it, or there is no such file and none is to be made. Closing it, or the end of the process, lets go.
    ``shared``: beside others that share it. It may be written through unless that, or ``write`` is not asked.

    The lock is on a file, not on a name: whoever waits for one that is renamed or removed meanwhile would
    own what nobody sees.
    """
    flags = (
        os.O_CLOEXEC | (os.O_RDWR if write and not shared else os.O_RDONLY) | (os.O_CREAT if create else 0)
    )
    while True:
        try:
            fd = os.open(path, flags, 0o666)  # and the umask
        except FileNotFoundError:
            if create:
                raise
            return None
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if is_at(fd, path):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


@contextlib.contextmanager
def exclusive(path: Path, *, clock: Clock, wait_s: float | None = None) -> Iterator[int]:
    """Hold the lock file ``path``, one of all threads and processes at a time; it is gone afterwards, unless
    it was renamed. The body gets its descriptor. A holder that is killed holds it no longer.

    Raises ``TimeoutError`` when somebody else holds it for ``wait_s`` seconds.
    """
    began = clock.monotonic()
    while (fd := try_lock(path, create=True)) is None:
        if wait_s is not None and clock.monotonic() - began > wait_s:
            raise TimeoutError(f"{path} is held by another process for {wait_s:g} s")
        clock.sleep(POLL_S)
    try:
        yield fd
    finally:
        if is_at(fd, path):
            path.unlink()
        os.close(fd)


def is_at(fd: int, path: Path) -> bool:
    """Whether ``path`` still names the open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def write_whole(path: Path, data: bytes, *, clock: Clock | None = None) -> None:
    """Put ``data`` at ``path`` at one instant, durably; writers of one path take turns.

    Killed at any point, ``path`` is what it was or all of ``data``, and the private file beside it is what
    the next writer begins with. Raises ``OSError``.
    """
    private = path.with_name(f".{path.name}{_TMP}")
    with exclusive(private, clock=clock or SystemClock()) as fd:
        os.ftruncate(fd, 0)
        with open(fd, "wb", closefd=False) as stream:
            stream.write(data)
            stream.flush()
            os.fsync(fd)
        private.replace(path)
        sync_directory(path.parent)


def sweep(directory: Path, pattern: str) -> int:
    """Remove the private files of processes that are gone; how many those were."""
    removed = 0
    for path in directory.glob(pattern):
        fd = try_lock(path)
        if fd is not None:
            path.unlink(missing_ok=True)
            os.close(fd)
            removed += 1
    return removed


def sync_directory(directory: Path) -> None:
    """Make names in it durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
