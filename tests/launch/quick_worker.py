"""A worker that imports no framework: ``quick_worker.py LOG WHAT [ARGS]``. It writes what it does to
``LOG/<rank>.log``.

``wait``: until the file ``LOG/go`` is there. ``stubborn``: the same, without hearing SIGTERM. ``drain``:
the same, ending with 75 at SIGTERM; ``drain-slowly``: a second later. ``parent``: with children that hide.
``fail MESSAGE``: at once. ``leave STATUS``: at once. ``finish``: append the record that the run has
succeeded. ``part``: the same, while the ranks from 2 on end at once. What is done ``LOG/once`` times is done
only in the first attempts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LOG, WHAT, *ARGS = Path(sys.argv[1]), *sys.argv[2:]
RANK = int(os.environ["RANK"])
_SLEEP = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(1, flush=True); time.sleep(600)"
)


def tell(**facts: object) -> None:
    told = {name: value for name, value in os.environ.items() if name.startswith("DURABLE_")}
    attempt = told.get("DURABLE_ATTEMPT", "").rpartition("/")[2]
    line = {"rank": RANK, "pid": os.getpid(), "attempt": attempt, "told": told, **facts}
    with (LOG / f"{RANK}.log").open("a") as file:
        file.write(json.dumps(line) + "\n")


def wait() -> None:
    while not (LOG / "go").exists():
        time.sleep(0.01)


def child(*wrapper: str, env: dict[str, str] | None = None, **options: object) -> int:
    """A process that does not hear SIGTERM, started as told; it is ready when it is written down."""
    command = [*wrapper, sys.executable, "-S", "-c", _SLEEP, str(LOG)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    assert process.stdout is not None and process.stdout.read(1)
    return int(process.pid)


def finish() -> None:
    from durable_core.clock import SystemClock
    from durable_core.commit import ending
    from durable_core.commit.journal import replay
    from durable_core.engine.performer import Performer
    from durable_core.launch.books import record_name
    from durable_core.tier.posix import PosixTier
    from durable_core.types import Token

    performer = Performer(PosixTier(Path(ARGS[0])), SystemClock())
    token = Token(int(os.environ["DURABLE_GENERATION"]), record_name(os.environ["DURABLE_LAUNCH_ID"]))
    if RANK == 0:
        performer.run(ending.succeed(performer.run(replay()), token, c=None, target=None))


def drain(*_: object) -> None:
    said = Path(os.environ["DURABLE_RUN_DIR"]) / "stopping"
    tell(event="drained", why=said.read_text() if said.exists() else "")
    sys.exit(75)


def drain_slowly(*_: object) -> None:
    tell(event="draining")
    time.sleep(1)
    sys.exit(75)


def main() -> None:
    tell(event="start")
    if WHAT == "fail" and RANK == 1:
        raise ValueError(" ".join(ARGS))
    if WHAT == "leave":
        sys.exit(int(ARGS[0]) if RANK == 1 else 0)
    if WHAT == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if WHAT == "drain-slowly":
        signal.signal(signal.SIGTERM, drain_slowly)
    if WHAT == "drain":
        signal.signal(signal.SIGTERM, drain)
    if WHAT == "parent":
        tell(event="child", child=child(start_new_session=True), how="a session of its own")
        tell(event="child", child=child(), how="the group of the worker")
        tell(event="child", child=child("env", "-i", start_new_session=True), how="without environment")
    tell(event="ready")
    if WHAT in ("wait", "stubborn", "drain", "drain-slowly", "parent"):
        wait()
    if WHAT == "part" and RANK < 2:
        wait()
        finish()
    if WHAT == "finish":
        wait()
        finish()
    tell(event="end")


main()
