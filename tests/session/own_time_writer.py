"""One of two data-parallel ranks; the second computes longer in each forward pass.

    own_time_writer.py ROOT MEETING RANK STEPS EVERY

EVERY: backward passes of a step. Prints the seconds of each step.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from durable_core import DurableSession
from durable_core.data import DurableLoader

SLOW_S = 0.1


class Model(nn.Module):
    def __init__(self, slow: bool) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.slow = slow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.slow:
            time.sleep(SLOW_S)
        return self.layers(x * self.frozen)


def main(root: str, meeting: str, rank: int, steps: int, every: int) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = DistributedDataParallel(Model(slow=rank == 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(8 * steps * every, 4))
    loader = DurableLoader(data, batch_size=4, seed=3, dataset_id="own", replica=rank, replicas=2)
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    took: list[float] = []
    with DurableSession.open(root, state=state, every_n_steps=1000) as session:
        batches = iter(loader)
        while session.steps < steps:
            began = time.monotonic()
            optimizer.zero_grad()
            for part in range(every):
                (x,) = next(batches)
                with model.no_sync() if part < every - 1 else contextlib.nullcontext():
                    model(x).square().mean().backward()
            optimizer.step()
            session.step()
            took.append(time.monotonic() - began)
    print(json.dumps(took))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
