"""L3. Appending to a new file past the page cache, straight from the memory the bytes lie in.

A buffered write costs a copy, and page cache that training could use; ``O_DIRECT`` neither, but it takes
whole blocks at whole blocks of memory only. Where memory and file are in step, blocks go out from
where they are; the rest goes through a small buffer. Where the file system refuses, all is buffered.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import TYPE_CHECKING

from durable_core.tier.syscalls import write_all

if TYPE_CHECKING:
    from numpy import uint8
    from numpy.typing import NDArray

#: The block: no disk has larger ones, and pages of the file are written one way or the other, never both.
BLOCK = 4096
_BOUNCE = 4 << 20
#: Shorter runs are worth no write of their own.
_RUN = 1 << 20
_CHUNK = 16 << 20
_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


class BufferedFile:
    """Appends through the page cache to an empty file that is open for writing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def append(self, view: memoryview) -> int:
        return write_all(self._fd, view)

    def flush(self) -> None:
        """Everything is with the kernel already."""


class DirectFile:
    """Appends past the page cache to an empty file that is open for writing.

    Until ``flush`` has returned, some of what was appended may be in this process's memory only.
    ``OSError`` as of the system's calls.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._direct: bool | None = None  # not tried yet
        self._at = 0  # bytes that are with the kernel; whole blocks, as long as it is direct
        self._held = 0  # bytes in the buffer
        self._buffer = mmap.mmap(-1, _BOUNCE)

    def append(self, view: memoryview) -> int:
        """The bytes of ``view``; it is done with when this returns."""
        import numpy as np  # for the address, and to copy without the interpreter's lock; not small

        rest = np.frombuffer(view, np.uint8) if view else np.empty(0, np.uint8)
        while len(rest):
            gap = -self._held % BLOCK
            run = (len(rest) - gap) // BLOCK * BLOCK
            if run >= _RUN and (rest.ctypes.data + gap) % BLOCK == 0:
                self._hold(rest[:gap])
                self._write(self._taken())
                self._write(rest[gap : gap + run].data)
                rest = rest[gap + run :]
            else:
                taken = min(len(rest), _BOUNCE - self._held)
                self._hold(rest[:taken])
                rest = rest[taken:]
                if self._held == _BOUNCE:
                    self._write(self._taken())
        return len(view)

    def flush(self) -> None:
        """Hand everything to the kernel. Nothing may be appended afterwards."""
        last = self._taken()
        if self._direct:
            whole = len(last) // BLOCK * BLOCK
            self._write(last[:whole])
            last = last[whole:]
            self._set_direct(False)
        self._direct = False
        self._write(last)

    def _hold(self, part: NDArray[uint8]) -> None:
        import numpy as np

        target = np.frombuffer(self._buffer, np.uint8)[self._held : self._held + len(part)]
        np.copyto(target, part)
        self._held += len(part)

    def _taken(self) -> memoryview:
        """What the buffer holds; from now on it holds nothing."""
        held, self._held = self._held, 0
        return memoryview(self._buffer)[:held]

    def _write(self, view: memoryview) -> None:
        while view:
            done = self._write_some(view[:_CHUNK])
            if done == 0:
                raise OSError(errno.EIO, "wrote nothing")
            self._at += done
            view = view[done:]

    def _write_some(self, view: memoryview) -> int:
        if self._direct is None:
            self._direct = self._set_direct(True)
        try:
            return os.pwrite(self._fd, view, self._at)
        except OSError as error:
            if not self._direct or error.errno not in _REFUSED:
                raise
            # Accepted when asked for and refused when used, or a short write left it between two blocks.
            self._direct = self._set_direct(False)
            return os.pwrite(self._fd, view, self._at)

    def _set_direct(self, direct: bool) -> bool:
        """Whether the file is now written directly."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        wanted = flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, wanted)
        except OSError as error:
            if not direct or error.errno not in _REFUSED:
                raise
            return False
        return direct


def on_a_block_device(fd: int) -> bool:
    """Whether the file lies on a disk of this machine: memory and network file systems have device 0:x."""
    return os.major(os.fstat(fd).st_dev) != 0
