"""A small training run at any root; as a script: ``remote_loop.py ROOT STEPS`` prints the final digest."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from durable_core import DurableSession
from durable_core.data import DurableLoader


class Points(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index / 64) + 0.01 * torch.randn(8)


def digest(module: torch.nn.Module) -> str:
    """Of the parameters, bit for bit."""
    data = b"".join(p.detach().numpy().tobytes() for p in module.parameters())
    return hashlib.sha256(data).hexdigest()


def train(
    root: str,
    steps: int,
    *,
    ballast: int = 0,
    at: Callable[[int, DurableSession], None] = lambda step, session: None,
    **settings: Any,
) -> str:
    """Train to ``steps`` and finish; the digest of the weights. ``ballast``: further MiB of state, which
    change in every step. ``at`` is called after each boundary."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    extra = torch.nn.Linear(1, 1)
    extra.register_buffer("ballast", torch.zeros(ballast * 2**18, dtype=torch.int32))
    loader = DurableLoader(Points(), batch_size=4, seed=3, dataset_id="points-64")
    state = {"model": model, "optimizer": optimizer, "extra": extra, "loader": loader}
    with DurableSession.open(root, state=state, every_n_steps=1, **settings) as session:
        at(session.steps, session)
        for batch in _batches(loader):
            if session.steps >= steps:
                break
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            extra.ballast.add_(session.steps + 1)
            session.step(loss=loss.item())
            at(session.steps, session)
            if session.steps >= steps:
                break
        session.finish()
    return digest(model)


def _batches(loader: DurableLoader) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


if __name__ == "__main__":
    print(train(sys.argv[1], int(sys.argv[2])))
