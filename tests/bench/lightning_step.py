"""What the Lightning callback costs a step on which nothing is saved.

The same tiny training with torch's loader, with the durable loader (which seeds every sample, here in the
training process) and with the callback, alternating in one process; the median time of a step, taken inside
the training loop. Prints one JSON document.

    python tests/bench/lightning_step.py [--steps 1500] [--rounds 5]
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

from durable_core.data import DurableLoader
from lightning_durable import DurableCheckpoint

NEVER = 1_000_000_000
STEP_S = 0.1  # the step against which the cost is stated


class Tiny(L.LightningModule):
    """As little work as a step can do; notes when each batch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.begun: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.begun.append(time.perf_counter())
        loss: Tensor = self.layer(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def step_seconds(steps: int, *callbacks: L.Callback, durable_loader: bool = False) -> float:
    dataset = TensorDataset(torch.zeros(4 * steps, 4))
    make = DurableLoader if durable_loader else DataLoader
    loader = make(dataset, batch_size=4, shuffle=True)
    module = Tiny()
    trainer = L.Trainer(
        accelerator="cpu", max_steps=steps, max_epochs=-1, callbacks=list(callbacks), logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    late = module.begun[steps // 5 :]
    return statistics.median(after - before for before, after in pairwise(late))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    plain, loader, callback = [], [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for number in range(args.rounds):
            durable = DurableCheckpoint(str(Path(scratch) / str(number)), every_n_train_steps=NEVER)
            plain.append(step_seconds(args.steps))
            loader.append(step_seconds(args.steps, durable_loader=True))
            callback.append(step_seconds(args.steps, durable, durable_loader=True))
    cost = min(callback) - min(loader)  # of the quietest rounds: a busy machine only ever adds
    figures: dict[str, Any] = {
        "step_plain_s": min(plain),
        "durable_loader_cost_s": min(loader) - min(plain),
        "callback_cost_s": cost,
        "share_of_a_100_ms_step": cost / STEP_S,
        "within_0.1_percent": cost <= 0.001 * STEP_S,
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
