"""What the Lightning callback costs a step: one on which nothing is saved, and one sealed in memory.

The same tiny training with and without the callback, alternating in one process; the median time of a step,
taken inside the training loop. Part of what is added is the durable loader, which seeds every sample (here in
the training process, with workers there); it is measured alone as well and taken off. Then a model of
``--mebibytes`` with and without a snapshot in memory at every step. Prints one JSON document.

    python tests/bench/lightning_step.py [--steps 1500] [--rounds 5] [--mebibytes 16]
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from durable_core import Memory, Tiers
from durable_core.data import DurableLoader
from lightning_durable import DurableCheckpoint

NEVER = 1_000_000_000
STEP_S = 0.1  # the step against which the cost is stated


class Tiny(L.LightningModule):
    """As little work as a step can do; notes when each batch begins."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, width), nn.Linear(width, width))
        self.begun: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.begun.append(time.perf_counter())
        loss: Tensor = self.layer(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def step_seconds(steps: int, *callbacks: L.Callback, width: int = 1) -> float:
    loader = DataLoader(TensorDataset(torch.zeros(4 * steps, 4)), batch_size=4, shuffle=True)
    module = Tiny(width)
    trainer = L.Trainer(
        accelerator="cpu", max_steps=steps, max_epochs=-1, callbacks=list(callbacks), logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    return median_gap(module.begun)


def batch_seconds(batches: int, *, durable: bool) -> float:
    """The loader alone; each batch is acknowledged as a step would."""
    dataset = TensorDataset(torch.zeros(4 * batches, 4))
    loader: Any = (DurableLoader if durable else DataLoader)(dataset, batch_size=4, shuffle=True)
    moments = []
    for step, _ in enumerate(loader, start=1):
        moments.append(time.perf_counter())
        if durable:
            loader.acknowledge(1, step=step)
    return median_gap(moments)


def median_gap(moments: list[float]) -> float:
    late = moments[len(moments) // 5 :]
    return statistics.median(after - before for before, after in pairwise(late))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mebibytes", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    plain, durable, plain_loader, durable_loader = [], [], [], []
    unsealed, sealed = [], []
    width, few = round((args.mebibytes * 2**20 / 4) ** 0.5), max(20, args.steps // 20)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for number in range(args.rounds):
            callback = DurableCheckpoint(str(Path(scratch) / str(number)), every_n_train_steps=NEVER)
            plain.append(step_seconds(args.steps))
            durable.append(step_seconds(args.steps, callback))
            plain_loader.append(batch_seconds(args.steps, durable=False))
            durable_loader.append(batch_seconds(args.steps, durable=True))
            tiers = Tiers(memory=Memory(every_n_steps=1))
            root = str(Path(scratch) / f"sealed-{number}")
            unsealed.append(step_seconds(few, width=width))
            sealed.append(
                step_seconds(
                    few, DurableCheckpoint(root, every_n_train_steps=NEVER, tiers=tiers), width=width
                )
            )
    # Of the quietest rounds: a busy machine only ever adds.
    added = min(durable) - min(plain)
    loader = min(durable_loader) - min(plain_loader)
    cost = added - loader
    figures: dict[str, Any] = {
        "step_plain_s": min(plain),
        "added_s": added,
        "of_that_loader_s": loader,
        "callback_cost_s": cost,
        "share_of_a_100_ms_step": cost / STEP_S,
        "within_0.1_percent": cost <= 0.001 * STEP_S,
        "sealed_mebibytes": args.mebibytes,
        "step_unsealed_s": min(unsealed),
        "added_by_a_seal_per_step_s": min(sealed) - min(unsealed),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
