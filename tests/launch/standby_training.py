"""A small training of two gloo workers; its result depends on all random streams and on the data's order."""

import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from durable_core import DurableSession
from durable_core.data import DurableLoader

ROOT, KILL_AT = Path(sys.argv[1]), int(sys.argv[2])
RANK, STEPS = int(os.environ["RANK"]), 8


class Noise(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index)) + torch.randn(4)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    loader = DurableLoader(Noise(), batch_size=2, seed=3, dataset_id="noise", replica=RANK, replicas=2)
    state = {"model": net, "optimizer": optimizer, "loader": loader}
    seen = []
    with DurableSession.open(ROOT / "run", state=state, every_n_steps=2) as run:
        random.seed(run.steps), np.random.seed(run.steps)
        for batch in loader:
            loss = model(batch).square().mean() * (1 + random.random() + np.random.rand())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss.item())
            seen.append(f"{run.steps} {batch.sum().item()!r} {loss.item()!r}")
            if run.steps == KILL_AT:
                run.flush()
                dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
            if run.steps == STEPS:
                break
        run.finish()
    weights = [parameter.detach().numpy().tobytes().hex() for parameter in net.parameters()]
    streams = [torch.randn(2).tolist(), random.random(), np.random.rand()]
    (ROOT / f"end-{RANK}").write_text("\n".join([*seen, *weights, repr(streams)]))


main()
