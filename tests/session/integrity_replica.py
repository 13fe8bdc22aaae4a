"""One replica of a small DDP run in which a bit may flip; its weights in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from durable_core import DurableSession, Integrity
from durable_core.data import DurableLoader
from durable_core.errors import NumericFault

SIZE, WIDTH, BATCH = 96, 6, 4


class Samples:
    dataset_id = "integrity-samples"

    def __init__(self) -> None:
        self.x = torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Tensor:
        return self.x[index] + 0.1 * torch.rand(WIDTH)


def flip(tensor: Tensor, bit: int = 20) -> None:
    """One bit of its first element: of bit 20 nobody sees anything in a loss."""
    tensor.view(-1).view(torch.int32)[0] ^= 1 << bit


def main(told: dict[str, Any]) -> None:
    try:
        train(told)
    except NumericFault as fault:
        print(fault)
        raise SystemExit(fault.exit_code) from None


def train(told: dict[str, Any]) -> None:
    rank, world = told["rank"], told["world"]
    torch.manual_seed(11)
    if world > 1:
        store = f"file://{told['store']}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 5), torch.nn.Dropout(0.2), torch.nn.Linear(5, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    loader = DurableLoader(Samples(), batch_size=BATCH, seed=5, replica=rank, replicas=world)
    wrapped = DistributedDataParallel(model) if world > 1 else model
    state = {"model": wrapped, "optimizer": optimizer, "loader": loader}
    integrity = Integrity(**told["integrity"])
    with DurableSession.open(
        told["root"], state=state, every_n_steps=3, backlog="delay", integrity=integrity
    ) as run:
        while run.steps < told["steps"]:
            for x in loader:
                loss = run.recompute(lambda x=x: gradients(wrapped, optimizer, x, run.steps + 1, told))
                if told["flip"] == ["gradient", rank, run.steps + 1]:
                    flip(next(model.parameters()).grad)
                optimizer.step()
                run.step(loss=loss)
                if run.steps >= told["steps"]:
                    break
    said = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
    Path(told["weights"]).write_text(json.dumps(said))
    if world > 1:
        dist.destroy_process_group()


_computed: dict[int, int] = {}


def gradients(model: Any, optimizer: Any, x: Tensor, step: int, told: dict[str, Any]) -> float:
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    _computed[step] = _computed.get(step, 0) + 1
    if told["flip"] == ["computing", told["rank"], step] and _computed[step] == 1:
        flip(next(model.parameters()).grad)
    return loss.item()
