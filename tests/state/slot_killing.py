"""SIGKILL at random instants while slots are staged, copied, sealed: what the next process then finds.

    python tests/state/slot_killing.py DIRECTORY KILLS SEED

Forks its victims from one process that never used torch's threads, so a kill costs milliseconds. Prints
JSON; ends with 1 when a snapshot is torn, or one that was acknowledged is not there.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
from pathlib import Path

import torch
from slot_subject import RUN, check, train_until_killed

from durable_core.state.snapshots import SlotMemory, leftovers
from durable_core.state.staging import SlotPool


def one_life(directory: Path, chance: random.Random) -> int:
    """Kill a victim; the number of seals it had acknowledged."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        train_until_killed(SlotPool(2, SlotMemory(RUN, directory=directory, role="dp0")), writer)
    os.close(writer)
    seen = 0
    for _ in range(chance.randrange(1, 6)):
        seen += len(os.read(reader, 1))
    select.select([], [], [], chance.random() * 0.004)  # not a wait for anything: this picks the instant
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while data := os.read(reader, 4096):
        seen += len(data)
    os.close(reader)
    return seen


def main() -> int:
    directory, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    chance = random.Random(seed)
    counts = {"kills": 0, "whole": 0, "refused": 0, "torn": 0, "lost": 0, "left": 0}
    memory = SlotMemory(RUN, directory=directory)
    for _ in range(kills):
        acknowledged = one_life(directory, chance)
        survey = memory.survey()
        steps = []
        for snapshot in survey.snapshots:
            try:
                steps.append(check(snapshot))
            except AssertionError:
                counts["torn"] += 1
            snapshot.close()
        counts["kills"] += 1
        counts["whole"] += len(steps)
        counts["refused"] += len(survey.refused)
        counts["lost"] += max(steps, default=0) not in (acknowledged, acknowledged + 1)
        memory.free()
        counts["left"] += len(leftovers(directory))
    print(json.dumps(counts))
    return int(bool(counts["torn"] or counts["lost"] or counts["left"]))


if __name__ == "__main__":
    sys.exit(main())
