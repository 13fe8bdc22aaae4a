"""One replica of a small run whose number of replicas changes from life to life."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from durable_core import DurableSession
from durable_core.data import DurableLoader

SIZE, WIDTH, STEP = 44, 6, 8  # samples, features, samples of an optimizer step


class Samples:
    dataset_id = "elastic-samples"

    def __init__(self) -> None:
        self.x = torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self.x[index] + 0.1 * torch.rand(WIDTH)


def main(told: dict[str, Any]) -> None:
    rank, world, accumulate = told["rank"], told["world"], told["accumulate"]
    torch.manual_seed(11)
    if world > 1:
        store = f"file://{told['store']}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    if told["normed"]:
        model.insert(1, torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    promise = told["promise"]
    loader = DurableLoader(
        Samples(), batch_size=STEP // world // accumulate, seed=5, replica=rank, replicas=world,
        promise=promise or "bitwise", accumulate=accumulate,
    )  # fmt: skip
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    asked = {"promise": promise, "resume": told["resume"], "from_first": tuple(told["from_first"])}
    with (
        Path(told["log"]).open("a", buffering=1) as log,
        DurableSession.open(told["root"], state=state, every_n_steps=1, **asked) as session,
    ):
        told_of = {"start": session.steps, "stream": torch.rand(()).item()}
        log.write(json.dumps(told_of) + "\n")
        while session.steps < told["steps"]:
            batches = iter(loader)
            while session.steps < told["steps"]:
                window = list(islice(batches, accumulate))
                if not window:
                    break
                loss = sum((model(x).square().mean() / len(window) for _, x in window), torch.zeros(()))
                loss.backward()
                told_loss = average(model, loss.detach(), world)
                optimizer.step()
                optimizer.zero_grad()
                session.step(loss=told_loss)
                ids = [i for index, _ in window for i in index.tolist()]
                log.write(json.dumps({"step": session.steps, "ids": ids, "loss": told_loss}) + "\n")
    if world > 1:
        dist.destroy_process_group()


def average(model: torch.nn.Module, loss: torch.Tensor, world: int) -> float:
    for value in [loss, *(p.grad for p in model.parameters())]:
        if world > 1 and value is not None:
            dist.all_reduce(value)
            value /= world
    return loss.item()
