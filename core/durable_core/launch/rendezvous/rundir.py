"""L5. The run directory: where the processes of one node leave each other files while the launcher lives.

In memory where there is any. It is locked by its launcher, so that what dead ones have left can be told from
what is in use; the kernel releases a lock with its last holder, in whatever container that is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from durable_core.engine.launched import RunFiles

_PREFIX = "durable-launch-"
_LOCK = "lock"
_MEMORY = Path("/dev/shm")
#: Bytes that must be free in memory: beats, words and stacks of the workers of a node, with room to spare.
_ROOM = 8 << 20


def place() -> Path:
    """A directory in memory that this user can write to and that has room, else the one for temporaries."""
    if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK | os.X_OK):
        room = os.statvfs(_MEMORY)
        if room.f_bavail * room.f_frsize >= _ROOM:
            return _MEMORY
    return Path(tempfile.gettempdir())


class RunDir:
    """Made at once, private to the user (0700); what dead launchers have left there is removed first."""

    def __init__(self, within: Path | None = None) -> None:
        within = within or place()
        sweep(within)
        making = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}{os.getuid()}-", dir=within))
        self._lock = os.open(making / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = making.rename(within / making.name.removeprefix("."))  # locked when it can be seen
        self.files = RunFiles(self.path).prepare()

    def remove(self) -> None:
        """Harmless when repeated."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def sweep(within: Path) -> None:
    """Remove this user's run directories whose launcher is gone. One without a lock is what a launcher left
    that was killed while it removed it."""
    for path in within.glob(f"{_PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError):  # removed by another, or not ours to remove
            try:
                lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                shutil.rmtree(path, ignore_errors=True)
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
