"""One small real run and the outcome of a command; shared by the tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from durable_core import DurableSession
from durable_core.data import DurableLoader

SIZE, BATCH, EPOCHS = 20, 4, 2


def train(root: Path, steps: int | None = None) -> None:
    """Two epochs of 5 batches of 4, committed at 0, 3, 6, 9 and 10; or up to ``steps``."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DurableLoader(list(range(SIZE)), batch_size=BATCH, shuffle=True, seed=1)
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    with DurableSession.open(root, state=state, every_n_steps=3) as session:
        while loader.cursor.epoch < EPOCHS:
            for _ in loader:
                model(torch.randn(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                session.step()
                session.flush()
                if session.steps == steps:
                    return
        session.finish()


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Stdout, which has to be exactly one JSON object and nothing else."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


Durable = Callable[..., Outcome]


def manifests(root: Path) -> list[Path]:
    """Oldest checkpoint first."""
    return sorted(root.glob("checkpoints/*/manifest.json"), key=lambda path: path.parent.name[8:17])
