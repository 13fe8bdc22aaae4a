"""A model, a loader and a loop, of which the tests of the adapter make what they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from torch.utils.data import DataLoader, Dataset

from accelerate_durable import again
from accelerate_durable.leaving import How

SAMPLES = 22


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index), torch.full((3,), float(index)) + torch.rand(3)


def shuffled(size: int = 4) -> DataLoader[Any]:
    return DataLoader(Numbers(), size, shuffle=True)


def forget_accelerate() -> None:
    """What Accelerate keeps of a process; the next accelerator begins anew."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    PartialState._reset_state()


def as_in_a_new_process(root: Path) -> None:
    """Of what this process has trained at ``root``, it knows nothing any more."""
    before = again._open.get(str(root))
    if before is not None:
        before.close(How.TAKEN)
    again._left.pop(str(root), None)


def training(accelerator: Any, loader: Any, width: int = 1) -> tuple[Any, Any, Any]:
    model = nn.Linear(3, width)
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01), loader)
    return prepared[0], prepared[1], prepared[2]


def step(accelerator: Any, model: Any, optimizer: Any, batch: Any) -> None:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch[1]).sum())
        optimizer.step()
        optimizer.zero_grad()
