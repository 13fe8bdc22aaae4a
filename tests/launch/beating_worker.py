"""A worker without a framework that makes steps, beats, and waits for the other one in each of them.

``beating_worker.py LOG ROOT WHAT``, two ranks. ``train``: until the file ``LOG/go`` is there; then rank 0
records that the run has succeeded. ``hang``: the same, but first rank 1 stops at step 20 for good.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from durable_core.clock import SystemClock
from durable_core.commit import ending
from durable_core.commit.journal import replay
from durable_core.engine import beats
from durable_core.engine.beats import Phase
from durable_core.engine.launched import Launched, RunFiles
from durable_core.engine.performer import Performer
from durable_core.launch.books import record_name
from durable_core.tier.posix import PosixTier
from durable_core.types import Token

LOG, ROOT, WHAT = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
RANK, GENERATION = int(os.environ["RANK"]), int(os.environ["DURABLE_GENERATION"])
FILES = RunFiles(Path(os.environ["DURABLE_RUN_DIR"]))
STEP_S = 0.05


def tell(**facts: object) -> None:
    with (LOG / f"{RANK}.log").open("a") as file:
        line = {"rank": RANK, "pid": os.getpid(), "generation": GENERATION, **facts}
        file.write(json.dumps(line) + "\n")


def stuck() -> None:
    while True:
        time.sleep(0.5)


def wait_for_peer(step: int) -> None:
    """In place of a collective: no rank is more than a step ahead."""
    while True:
        peer = beats.read(FILES.beat(1 - RANK))
        if peer is not None and peer.generation == GENERATION and peer.step >= step - 1:
            return
        time.sleep(0.005)


def finish() -> None:
    performer = Performer(PosixTier(ROOT), SystemClock())
    token = Token(GENERATION, record_name(os.environ["DURABLE_LAUNCH_ID"]))
    performer.run(ending.succeed(performer.run(replay()), token, c=None, target=None))


def main() -> None:
    tell(event="start")
    writer = beats.Writer(FILES.beat(RANK), Launched.of().nth)
    step = 0
    while not (LOG / "go").exists():
        writer.beat(time.monotonic(), Phase.STEP, generation=GENERATION, step=step)
        time.sleep(STEP_S)
        writer.own(STEP_S)
        if step == 20:
            tell(event="step 20")
        if WHAT == "hang" and RANK == 1 and GENERATION == 1 and step == 20:
            stuck()
        step += 1
        wait_for_peer(step)
    writer.beat(time.monotonic(), Phase.EXIT, generation=GENERATION, step=step)
    tell(event="end", step=step)
    if RANK == 0:
        finish()


main()
