"""A writer over memory, a peer and a disk in front of its root; it stops itself (SIGSTOP) with step 9 on its
way to all of them. Woken up, it goes on; what it is told is printed, one event a line.

    python -m tests.session.zombie_tiers_writer ROOT PLACES POINT
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from pathlib import Path

from durable_core import Disk, Memory, Peer, Tiers
from durable_core.engine import probe
from durable_core.errors import FencedError
from durable_core.events import Event
from durable_core.types import CrashPoint
from tests.session.session_helpers import start, state_at

#: Far beyond what the others do meanwhile: only its generation can keep its snapshot from being adopted.
STEP = 9
SIZE = 32


def tiers_of(base: Path) -> Tiers:
    """``base``: a directory with ``peer``, the address of an agent."""
    address = (base / "peer").read_text()
    return Tiers(
        memory=Memory(every_n_steps=1, directory=base / "memory"),
        peer=Peer((address,), every_n_steps=1),
        disk=Disk(base / "disk"),
    )


def tell(event: Event) -> None:
    """One write a line: events come from several threads, and ``print`` writes text and line end apart."""
    sys.stdout.write(json.dumps(event.to_json()) + "\n")
    sys.stdout.flush()


def main(root: str, base: Path, point: str) -> int:
    run = start(root, tiers=tiers_of(base))
    run.save(state_at(1), {}, step=1, wait=True)
    run.flush()
    run.board.listeners.append(tell)

    def stop(reached: CrashPoint) -> None:
        if reached is CrashPoint[point]:
            probe.install(None)
            # to this very thread: to the process, the signal may let it run on for a few instructions
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    probe.install(stop)
    try:
        run.save(state_at(STEP, SIZE), {}, step=STEP, wait=True)
    except FencedError:
        return 76
    finally:
        with contextlib.suppress(FencedError):
            run.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
