"""L5. Whether this process may fork workers: what a forked worker would share with its siblings, or lack.

A fork copies one thread. So with a second one a lock may stay held for ever; with a device's driver, a
process group or a helper process started, the copy holds handles that are not its own. Of what remains:

=======================  =====================================================================================
inherited                why it does no harm
=======================  =====================================================================================
modules                  of installed packages only; they are read, and copied when written to
random streams           ``random`` seeds itself again after a fork; those of numpy and torch are seeded
                         again by ``zygote``; those of devices have not begun
hash seed                with ``PYTHONHASHSEED`` unset all workers of a node share one, which each might have
had environment              replaced as a whole; what was read at import is looked at (``environment``)
descriptors              0, 1 and 2 are replaced; the channel to the agent is closed; others make it unsafe
signals                  no handler but Python's own; mask and dispositions are those the agent passed on
directory, umask,        those of the agent when the standby was started; the agent changes none of them
limits, oom_score
logging                  handlers hold ``sys.stderr``, which writes to the new descriptor 2; its lock is free
warnings                 those of imports are shown once, by the standby
=======================  =====================================================================================
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_SELF = Path("/proc/self")
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/infiniband/", "/dev/davinci")
_SHARED = ("socket:", "pipe:", "anon_inode:")


def settle() -> None:
    """End what can be ended, so that a look finds only what stays.

    OpenBLAS starts threads when it is loaded and joins them before each fork, so that they start anew on
    both sides: hence a fork for nothing. What the collector has kept so far it need not look at again, which
    also leaves those pages unwritten, and so shared.
    """
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    gc.collect()
    gc.freeze()


def open_files() -> dict[int, str]:
    """This process's descriptors and what each is."""
    found = {}
    for entry in (_SELF / "fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except FileNotFoundError:  # the one that the directory was read with
            continue
    return found


def doubts(before: dict[int, str]) -> tuple[str, ...]:
    """Why not to fork, each with its evidence; empty when nothing speaks against it.

    ``before``: ``open_files()`` of before the imports.
    """
    return tuple(_doubts(before))


def _doubts(before: dict[int, str]) -> Iterator[str]:
    threads = sorted((_SELF / "task").iterdir())
    if len(threads) != 1:
        names = [(thread / "comm").read_text().strip() for thread in threads]
        yield f"{len(threads)} threads: {', '.join(names)}"
    try:
        children = (_SELF / "task" / str(os.getpid()) / "children").read_text().split()
    except FileNotFoundError:
        yield "this kernel does not show child processes"
    else:
        yield from (f"child process {child}" for child in children)
    for number, what in open_files().items():
        if before.get(number) != what and what.startswith((*_DEVICES, *_SHARED)):
            yield f"descriptor {number} is {what}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        yield "torch has a CUDA context"
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        yield "torch has a process group"
