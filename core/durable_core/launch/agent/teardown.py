"""L5. Ending a group of workers, in bounded time and completely."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from durable_core.launch.agent import sweeping
from durable_core.launch.agent.starting import Process

#: Looks at /proc before a teardown gives up on what SIGKILL does not end: a process that waits for a device.
_LOOKS = 60
_STEP_S = 0.02


@dataclass(frozen=True)
class Stopped:
    """What it took. ``forced``: workers that did not end by themselves in the grace; ``swept``: further
    processes that were found and killed; ``stuck``: those that SIGKILL did not end."""

    forced: tuple[int, ...] = ()
    swept: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()


def stop(
    processes: Sequence[Process], *, graced: Callable[[], bool], wait: Callable[[float], object],
    rest: Callable[[], Collection[int]], parted: Callable[[int], bool] = lambda pid: False,
    first: signal.Signals = signal.SIGTERM, meant: Callable[[int], int] = lambda pid: pid,
) -> Stopped:  # fmt: skip
    """``first`` to each worker alone, SIGKILL to its whole process group once ``graced()`` is false or it has
    ``parted`` (nothing but the end of its interpreter is left of it), then to all of ``rest()``.

    The first signal is for the worker and not for its helpers: it may need those to finish what it does (a
    batch, a save). ``meant``: the worker's own process, where another one was started around it. Bounded by
    the grace and about 30 s for what does not even die of SIGKILL.
    """
    living = [process for process in processes if process.poll() is None]
    for process in living:
        _send(meant(process.pid), first)
    while living and graced():
        wait(_STEP_S)
        living = [process for process in living if process.poll() is None]
        for process in living:
            if parted(process.pid):
                _kill_group(process.pid)
    for process in living:
        _kill_group(process.pid)
    swept: set[int] = set()
    leaders = {process.pid for process in processes}

    def find() -> set[int]:
        found = set(rest()) | {process.pid for process in processes if process.poll() is None}
        swept.update(found - leaders)
        return found

    stuck = sweeping.sweep(find, wait, looks=_LOOKS)
    return Stopped(tuple(process.pid for process in living), tuple(sorted(swept)), tuple(sorted(stuck)))


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_group(leader: int) -> None:
    """Only while the leader has not been waited for: its number may be another's afterwards."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
