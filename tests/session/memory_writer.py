"""A plain loop whose snapshots are sealed in memory at every step; it kills itself where it is told to.

    memory_writer.py ROOT MEMORY STEPS EVERY [STEP | STEP:POINT]

Checkpoints come every EVERY steps. With ``STEP`` it dies (SIGKILL) at that boundary, once what was staged
before is sealed; with ``STEP:POINT`` at that crash point of the save at that boundary.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from durable_core import DurableSession, Memory, Tiers
from durable_core.data import DurableLoader
from durable_core.engine import probe
from durable_core.types import CrashPoint


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_at(point: CrashPoint) -> None:
    probe.install(lambda reached: die() if reached is point else None)


def digest(model: nn.Module) -> str:
    data = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(data).hexdigest()[:16]


def main(root: str, memory: str, steps: int, every: int, death: str = "") -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(64, 16, generator=torch.Generator().manual_seed(5)))
    loader = DurableLoader(data, batch_size=4, seed=3, dataset_id="memory")
    at, _, point = death.partition(":")
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    tiers = Tiers(memory=Memory(every_n_steps=1, directory=memory))
    with DurableSession.open(root, state=state, every_n_steps=every, tiers=tiers, backlog="delay") as run:
        print("restored", run.restored, flush=True)
        while run.steps < steps:
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                if run.steps + 1 == int(at or -1):
                    run.flush()  # what the last boundary staged is sealed
                    if not point:
                        die()
                    optimizer.step()
                    dying_at(CrashPoint[point])
                    run.step()
                    run.flush()
                    raise AssertionError(f"{point} was not reached")
                optimizer.step()
                run.step()
                if run.steps == steps:
                    break
        run.finish()
    print("digest", digest(model), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
