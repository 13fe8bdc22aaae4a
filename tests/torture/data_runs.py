"""A whole training over a data pipeline, killed with real SIGKILLs; run as a module, it is one life of it.

The training is a plain loop with a session that saves every second step in the background. It says every
batch it takes; each line of each life must be the uninterrupted run's, and so must the weights at the end,
and the audit must find every sample once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from durable_core.testing.crash import VARIABLE
from tests.torture.data_lives import digest
from tests.torture.pipelines import NAMED, Pipeline

STEPS = 18
HOME = Path(__file__).parents[2]
POINTS = ("K1", "K3", "K4", "K5", "K6", "K7", "K8", "K9", "K10", "K11", "K12", "K13")


def train(pipeline: str, root: str, workers: int) -> None:
    """One life: a line a step, then the digest of the weights."""
    import torch

    from durable_core.session import DurableSession

    torch.manual_seed(3)
    torch.set_num_threads(1)
    loader = NAMED[pipeline].make(workers, 0, 1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    with DurableSession.open(root, state=state, every_n_steps=2, takeover=True) as run:
        while run.steps < STEPS:
            for batch in loader:
                found = digest(batch)
                values = (
                    torch.frombuffer(bytearray(bytes.fromhex(found[:16])), dtype=torch.uint8).float() / 255
                )
                loss = model(values).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.step(loss=float(loss))
                print(f"{run.steps} {found}", flush=True)
                if run.steps >= STEPS:
                    break
        run.finish()
    print(f"end {digest(dict(model.state_dict()))}", flush=True)


@dataclass
class Tally:
    kills: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    samples: int = 0
    repeated: int = 0
    skipped: int = 0
    faults: list[str] = field(default_factory=list)


def live(pipeline: str, root: Path, workers: int, *, lines: int | None = None, point: str = "") -> list[str]:
    """The lines that a life said. It is killed at a crash point, or when it has said so many lines."""
    environment = {**os.environ, VARIABLE: point, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    call = [sys.executable, "-m", "tests.torture.data_runs", pipeline, str(root), str(workers)]
    process = subprocess.Popen(
        call, cwd=HOME, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line.strip())
        if lines is not None and len(said) >= lines:
            break
    if process.poll() is None and lines is not None:
        os.killpg(process.pid, signal.SIGKILL)  # the workers with it
    process.stdout.close()
    status = process.wait()
    if point or lines is not None:
        return said
    if status:
        raise RuntimeError(f"{pipeline} in {root} ended with status {status}")
    return said


def harass(pipeline: Pipeline, home: Path, kills: int, seed: int, tally: Tally) -> None:
    """One run killed ``kills`` times, compared with one that was left alone."""
    chance = random.Random(f"{pipeline.name}:{seed}")
    reference = live(pipeline.name, home / "reference", pipeline.workers[0])
    known = dict(line.split() for line in reference)
    root = home / "killed"
    faults = []
    for number in range(kills + 1):
        workers = chance.choice(pipeline.workers[4:] or pipeline.workers)
        strike: dict[str, Any] = {}
        if number < kills:
            strike = {"lines": chance.randint(1, 5)}
            if number % 2:
                strike = {"point": f"{chance.choice(POINTS)}:{chance.randint(1, 3)}", "lines": 8}
        said = live(pipeline.name, root, workers, **strike)
        died = not said or not said[-1].startswith("end")
        tally.kills[pipeline.name] += died
        tally.lines += len(said)
        faults += [
            f"life {number}: {line!r}" for line in said if known.get(line.split()[0]) != line.split()[1]
        ]
    if not said or said[-1] != reference[-1]:
        faults.append(f"the end is {said[-1:]}, not {reference[-1]!r}")
    report = audited(root)
    tally.samples += report["samples"]
    tally.repeated += report["repeated"]
    tally.skipped += report["skipped"]
    if not report["ok"]:
        faults.append(f"audit: {report['findings'] or report['notes']}")
    tally.faults += [f"{pipeline.name}: {fault}" for fault in faults]


def audited(root: Path) -> dict[str, Any]:
    call = [sys.executable, "-m", "durable_core.cli", "audit", str(root), "--json"]
    done = subprocess.run(call, cwd=HOME, capture_output=True, text=True, timeout=120, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
