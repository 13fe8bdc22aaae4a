"""What ``accelerator.prepare`` gives back is saved and restored as what was given to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from durable_core import DurableSession
from durable_core.data import DurableLoader
from durable_core.state import capture

accelerate = pytest.importorskip("accelerate")


class Killed(BaseException):
    """The process ends here: nothing more is saved."""


class Script:
    def __init__(self, *, prepared: bool = True) -> None:
        torch.manual_seed(3)
        self.model: Any = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler: Any = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.backward: Any = torch.Tensor.backward
        if prepared:
            accelerator = accelerate.Accelerator(cpu=True)
            self.model, self.optimizer, self.scheduler = accelerator.prepare(
                self.model, self.optimizer, self.scheduler
            )
            self.backward = accelerator.backward
        rows = torch.arange(24, dtype=torch.float32).reshape(24, 1)
        self.loader = DurableLoader(rows, 2, seed=1, dataset_id="rows")

    @property
    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def run(self, root: Path, end: int, *, killed_at: int | None = None) -> None:
        with DurableSession.open(root, state={**self.objects, "loader": self.loader}, every_n_steps=2) as run:
            while run.steps < end:
                for batch in self.loader:
                    if run.steps >= end:
                        break
                    if run.steps == killed_at:
                        raise Killed
                    self.optimizer.zero_grad()
                    self.backward(self.model(batch).square().mean())
                    self.optimizer.step()
                    self.scheduler.step()
                    run.step()
                    run.flush()

    def saved(self) -> Any:
        return capture.capture(self.objects)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


def test_a_prepared_loop_killed_within_a_step_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = Script()
    whole.run(tmp_path / "whole", 15)
    with pytest.raises(Killed):
        Script().run(tmp_path / "killed", 15, killed_at=7)
    again = Script()
    again.run(tmp_path / "killed", 15)
    assert equal(whole.saved(), again.saved())
    assert whole.scheduler.scheduler.last_epoch == 15


def test_a_run_goes_on_with_and_without_accelerate(tmp_path: Path) -> None:
    whole = Script(prepared=False)
    whole.run(tmp_path / "whole", 10)
    Script().run(tmp_path / "mixed", 6)
    again = Script(prepared=False)
    again.run(tmp_path / "mixed", 10)
    assert equal(whole.saved(), again.saved())
