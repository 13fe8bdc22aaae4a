"""A small training run with every class of state in it; run as a script it resumes in a fresh process.

``python state_subject.py VARIANT CHECKPOINT SEED STEPS`` restores CHECKPOINT (doc.json, tensors.safetensors)
into objects built from another seed, trains STEPS more steps and prints what they were, bit for bit.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from durable_core.format import canonical
from durable_core.state.capture import capture, restore
from durable_core.state.rng import Streams
from durable_core.state.staging import SlotPool
from durable_core.state.tree import flatten, rebuild


class Net(nn.Module):
    """Tied weights, BatchNorm, dropout, and a non-persistent buffer that the forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.out.weight
        self.register_buffer("trail", torch.zeros(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.norm(self.inp(x)).relu())
        with torch.no_grad():
            self.trail.mul_(0.9).add_(hidden.mean(0))
        return self.tied(self.out(hidden) + self.trail)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=False),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adam-tensor-lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, history_size=4),
}


class Warmup:
    """A schedule object with a field of its own, as LambdaLR stores it."""

    def __init__(self) -> None:
        self.length = 5

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / self.length)


SCHEDULERS: dict[str, Any] = {
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.7, threshold=0.5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, Warmup()),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=40),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(o, 20)],
        milestones=[4],
    ),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [3, 3, 9], 0.5),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.97), lr_scheduler.ConstantLR(o, 0.5, total_iters=6)]
    ),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.05, step_size_up=3, cycle_momentum=False),
}


def build(optimizer: str, scheduler: str, seed: int) -> dict[str, Any]:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    model = Net()
    opt = OPTIMIZERS[optimizer](model.parameters())
    return {
        "model": model,
        "optimizer": opt,
        "scheduler": SCHEDULERS[scheduler](opt),
        "scaler": torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3),
        "ema": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True),
        "noise": torch.Generator().manual_seed(seed),
        "augment": np.random.default_rng(seed),
        "rng": Streams(),
    }


def train(objects: dict[str, Any], steps: int) -> list[str]:
    """A line per step: loss, learning rate, scale, sums over weights and averages, as exact hex floats."""
    model, optimizer, scaler = objects["model"], objects["optimizer"], objects["scaler"]
    lines = []
    for _ in range(steps):
        x = torch.randn(16, 6) + torch.rand(16, 6, generator=objects["noise"])
        x = x + random.random() + float(np.random.random()) + float(objects["augment"].random())
        if isinstance(optimizer, torch.optim.LBFGS):
            loss = optimizer.step(lambda x=x: _backward(model, optimizer, x))
        else:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        objects["ema"].update_parameters(model)
        scheduler = objects["scheduler"]
        value = float(loss.detach())
        scheduler.step(value) if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else scheduler.step()
        numbers = [value, float(optimizer.param_groups[0]["lr"]), float(scaler.get_scale())]
        for module in (model, objects["ema"]):
            everything = [*module.state_dict().values(), *module.buffers()]
            numbers.extend(float(tensor.double().sum()) for tensor in everything)
        lines.append(" ".join(map(float.hex, numbers)))
    return lines


def _backward(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss


def save(objects: dict[str, Any], folder: Path) -> None:
    """Through the real path: capture, flatten, stage, and only the staged bytes are written."""
    flat = flatten(capture(objects), prefix="state")
    slot = SlotPool(1).acquire()
    assert slot is not None
    staged = slot.stage(flat.tensors)
    tensors = {}
    for key, live in flat.tensors.items():
        raw = bytearray(b"".join(staged.view(piece) for piece in staged.slices if piece.key == key))
        tensors[key] = torch.frombuffer(raw, dtype=live.dtype).reshape(live.shape) if raw else live.clone()
    folder.mkdir(parents=True)
    (folder / "doc.json").write_bytes(canonical.dumps(flat.doc))
    save_file(tensors, folder / "tensors.safetensors")


def load(folder: Path) -> Any:
    doc = canonical.loads((folder / "doc.json").read_bytes(), key="doc.json")
    return rebuild(doc, load_file(folder / "tensors.safetensors"))


def main(optimizer: str, scheduler: str, folder: str, seed: str, steps: str) -> None:
    torch.set_num_threads(1)
    objects = build(optimizer, scheduler, int(seed))
    restore(objects, load(Path(folder)))
    print("\n".join(train(objects, int(steps))))


if __name__ == "__main__":
    main(*sys.argv[1:])
