"""A small run under DDP and gloo, as users write one: a script for launchers to start.

``gloo_writer.py ROOT STEPS LOG [SECONDS_PER_STEP]``. One line of JSON for each start and each step goes to
``LOG.<rank>``; at the end rank 0 writes the digest of the weights to ``LOG.done``. While ``LOG.hold`` is
there no process makes a second step.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from durable_core import DurableSession
from durable_core.data import DurableLoader

SIZE, WIDTH = 64, 6


class Samples:
    dataset_id = "gloo-samples"

    def __init__(self) -> None:
        self.x = torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self.x[index]


def main(root: str, steps: int, log: str, pace: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(11)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    hold = Path(f"{log}.hold")
    told = {name: value for name, value in os.environ.items() if name.startswith("DURABLE_")}
    with Path(f"{log}.{rank}").open("a", buffering=1) as out:

        def tell(**facts: object) -> None:
            out.write(json.dumps({"pid": os.getpid(), "at": time.time(), **facts}) + "\n")

        tell(event="start", told=told)
        dist.init_process_group("gloo")
        model = DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(WIDTH, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        )
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        loader = DurableLoader(Samples(), batch_size=4, seed=5, replica=rank, replicas=world)
        state = {"model": model, "optimizer": optimizer, "loader": loader}
        with DurableSession.open(root, state=state, every_n_steps=1) as session:
            tell(event="opened", generation=session.run.generation, step=session.steps)
            while session.steps < steps:
                for index, x in loader:
                    loss = model(x).square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    time.sleep(pace)
                    tell(event="step", step=session.steps + 1, ids=index.tolist())
                    session.step(loss=loss.item())
                    while hold.exists():
                        time.sleep(0.01)
                    if session.steps >= steps:
                        break
            session.finish()
        if rank == 0:
            weights = hashlib.sha256()
            for value in model.state_dict().values():
                weights.update(value.numpy().tobytes())
            Path(f"{log}.done").write_text(weights.hexdigest(), encoding="utf-8")
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]) if len(sys.argv) > 4 else 0.0)
