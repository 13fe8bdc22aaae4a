"""A run that stops itself (SIGSTOP) with step 3 on its way to the store; woken up, it goes on."""

from __future__ import annotations

import signal
import sys
import threading

from remote_loop import train

from durable_core import DurableSession, errors
from durable_core.engine import probe
from durable_core.types import CrashPoint


def main(root: str, point: str) -> int:
    def stop(reached: CrashPoint) -> None:
        if reached is CrashPoint[point]:
            probe.install(None)
            # to this very thread: to the process, the signal may let it run on for a few instructions
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def at(step: int, session: DurableSession) -> None:
        session.flush()
        if step == 2:
            probe.install(stop)

    try:
        train(root, 6, at=at)
    except errors.FencedError as error:
        print(type(error).__name__)
        return 76
    print("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
