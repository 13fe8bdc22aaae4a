"""L3. System calls done whole, and what their errors mean to a tier."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from durable_core.errors import TierDenied, TierError, TierFull, TierUnavailable

#: No space or quota left (or a file larger than allowed).
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Not allowed here, or something else is in the way.
DENIED = frozenset(
    {errno.EROFS, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
)
#: How file systems without hard links answer ``link()``.
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
#: A ``link()`` or ``rename()`` that failed so did nothing; after any other error a server may have done it.
NOT_APPLIED = FULL | DENIED | NO_LINKS | {errno.ENOENT, errno.ENAMETOOLONG, errno.EINVAL}

#: One call transfers fewer than 2**31 bytes.
_CHUNK = 1 << 30


def tier_error(error: OSError, doing: str) -> TierError:
    """The error for an operation that was definitely not applied."""
    message = f"cannot {doing}: {error.strerror or error}"
    if error.errno in FULL:
        return TierFull(message, hint="free space or raise the quota; saving resumes by itself")
    if error.errno in DENIED:
        return TierDenied(message, hint="check the mount, the permissions and what lies at this path")
    return TierUnavailable(
        message,
        hint="check that a sound file system is mounted there, where directories can be made",
    )


@contextlib.contextmanager
def mapped(doing: str, *, passing: type[OSError] | tuple[type[OSError], ...] = ()) -> Iterator[None]:
    """Turn an ``OSError`` into the tier's error that says ``doing``, except those in ``passing``."""
    try:
        yield
    except passing:
        raise
    except OSError as error:
        raise tier_error(error, doing) from error


def write_all(fd: int, view: memoryview) -> int:
    """Write all of a byte buffer; its length."""
    total = len(view)
    while view:
        done = os.write(fd, view[:_CHUNK])
        if done == 0:
            raise OSError(errno.EIO, "wrote nothing")
        view = view[done:]
    return total


def read_all(fd: int, offset: int, out: memoryview) -> int:
    """Fill ``out`` from ``offset``; the bytes read, fewer only at the end of the file."""
    got = 0
    while got < len(out):
        done = os.preadv(fd, [out[got : got + _CHUNK]], offset + got)
        if done == 0:
            break
        got += done
    return got


def lock(fd: int) -> bool | None:
    """Whether this open file now holds the lock of the file; ``None`` where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return None
        raise
    return True


def scan(directory: Path) -> list[tuple[Path, bool]]:
    """Files and directories (``True``) in a directory; nothing when there is none."""
    with mapped(f"list {directory}"):
        try:
            with os.scandir(directory) as entries:
                return [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return []
