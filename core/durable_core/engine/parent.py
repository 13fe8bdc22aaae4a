"""L4. A process that ends with the one that started it, also when that is killed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Be killed when the thread that started this process ends; at once, if ``parent`` is gone already.

    ``OSError`` where the system knows no such thing: then only the launcher's keeper ends what is left.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "prctl"):
        raise OSError(errno.ENOSYS, "prctl")
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def follow() -> None:
    """``die_with`` whoever is the parent now, where the system can."""
    with contextlib.suppress(OSError):
        die_with(os.getppid())
