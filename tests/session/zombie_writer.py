"""A writer that stops itself (SIGSTOP) with step 2 staged but not committed; woken up, it goes on."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from session_helpers import start, state_at

from durable_core import errors
from durable_core.engine import probe
from durable_core.types import CrashPoint


def main(root: Path, point: str) -> int:
    run = start(root)
    run.save(state_at(1), {}, step=1, wait=True)

    def stop(reached: CrashPoint) -> None:
        if reached is CrashPoint[point]:
            probe.install(None)
            # not os.kill: another thread may take that, and this one run on
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    probe.install(stop)
    try:
        run.save(state_at(2, 32), {}, step=2, wait=True)
    except errors.FencedError as error:
        print(type(error).__name__)
        return 76
    print("committed")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
