"""Small runs to be attacked: one of a bare ``Run``, one of a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from durable_core import DurableSession
from durable_core.data import DurableLoader
from durable_core.session import Cadence, Run, Settings


def state_at(step: int) -> dict[str, Any]:
    return {"w": torch.arange(8, dtype=torch.float32) + step, "step": step}


def start(root: Path, *, spec: Any = None, external: str | None = None, **settings: Any) -> Run:
    """Open; restore, or commit the initial state; ready to train."""
    settings.setdefault("cadence", Cadence(1))
    run = Run.open(root, settings=Settings(**settings), spec=spec, external=external)
    if run.fresh:
        run.confirm()
        run.save(state_at(0), {}, step=0, wait=True)
    else:
        run.load()
        run.confirm()
    return run


class Parts:
    """A model, its optimizer and a loader over 24 samples in batches of 2."""

    def __init__(self, *, seed: int | None = 1) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        rows = torch.arange(24, dtype=torch.float32).reshape(24, 1)
        self.loader = DurableLoader(rows, 2, seed=seed, dataset_id="rows")  # type: ignore[arg-type]

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}

    def update(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(batch).mean().backward()
        self.optimizer.step()

    def train(self, run: DurableSession, steps: int) -> None:
        """``steps`` more steps; each save is waited for, so that none is skipped."""
        end = run.steps + steps
        while run.steps < end:
            for batch in self.loader:
                self.update(batch)
                run.step()
                run.flush()
                if run.steps == end:
                    return

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]
