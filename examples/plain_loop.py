"""A plain PyTorch loop that survives kill -9: the core alone, no framework.

    python examples/plain_loop.py --root runs/plain          # kill it whenever you like, start it again
    durable audit runs/plain                                 # every sample exactly once
    python examples/plain_loop.py --memory /dev/shm          # a kill costs at most one step, not --every

The model learns a noisy sine; dropout and the noise make the result depend on every random stream,
so the digest printed at the end is the same only if the run was the same.
"""

from __future__ import annotations

import argparse
import hashlib
import math

import torch
from torch import nn
from torch.utils.data import Dataset

from durable_core import DurableSession, Memory, Tiers
from durable_core.data import DurableLoader


class NoisySine(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """4,096 points of a sine; the noise is drawn anew for every sample of every epoch."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / len(self) * 2 * math.pi])
        return x, torch.sin(x) + 0.1 * torch.randn(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="runs/plain")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--memory", metavar="TMPFS", help="seal every step in memory, as in /dev/shm")
    args = parser.parse_args()

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * 64)
    loader = DurableLoader(NoisySine(), batch_size=64, seed=7, dataset_id="noisy-sine-4096")
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
    tiers = Tiers(memory=Memory(every_n_steps=1, directory=args.memory)) if args.memory else None

    with DurableSession.open(args.root, state=state, every_n_steps=args.every, tiers=tiers) as run:
        print(f"restored from {run.restored}" if run.restored else "a new run")
        while loader.cursor.epoch < args.epochs:
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                run.step(loss=loss.item())
        run.finish()
        print(f"{run.steps} steps")

    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
