"""The job of ``restarts.py``: DDP over gloo that says when it is where, in lines of ``$RESTARTS_MARKS``.

``lightning``: a ``Trainer`` with ``DurableCheckpoint``; ``plain``: a loop with ``DurableSession``. Both keep
each step in memory (``--memory``), have AdamW over ``--state-mb`` of parameters and moments, and start a
helper process in each worker, as loaders and trackers do. Ends when it is stopped.
"""

from __future__ import annotations

import time

BEGUN = time.monotonic()  # before the imports that are measured

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import lightning.pytorch as pl  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from lightning.pytorch.callbacks import Callback  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402

from durable_core import DurableSession, Memory, Tiers  # noqa: E402
from durable_core.data import DurableLoader  # noqa: E402
from lightning_durable import DurableCheckpoint  # noqa: E402

IMPORTED = time.monotonic()
RANK = int(os.environ["RANK"])


def mark(what: str, at: float | None = None, **more: Any) -> None:
    """One line, whole: it is shorter than a page and appended."""
    now = time.monotonic() if at is None else at
    line = {"what": what, "at": now, "rank": RANK, "pid": os.getpid(), **more}
    with open(os.environ["RESTARTS_MARKS"], "ab", buffering=0) as file:  # noqa: PTH123
        file.write(json.dumps(line).encode() + b"\n")


class Points(Dataset[torch.Tensor]):
    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.width,), (index % 97) / 97.0)


def network(state_mb: float) -> tuple[nn.Module, int]:
    """Parameters that make ``state_mb`` (10^6 bytes) together with AdamW's two moments."""
    width = 512
    layers = max(1, round(state_mb * 1e6 / (3 * 4 * width * (width + 1))))
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))), width


def points(width: int) -> DurableLoader:
    return DurableLoader(
        Points(width), batch_size=4, seed=1, dataset_id="points", replica=RANK,
        replicas=int(os.environ["WORLD_SIZE"]),
    )  # fmt: skip


class Net(pl.LightningModule):
    def __init__(self, state_mb: float) -> None:
        super().__init__()
        self.net, self.width = network(state_mb)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch).square().mean()
        return loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        mark("step", step=self.trainer.global_step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def train_dataloader(self) -> DurableLoader:
        return points(self.width)


class Marks(Callback):
    """Last in the list: what it sees begin, the others have done."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        mark("group")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        mark("restored", step=trainer.global_step)


def tiers(args: argparse.Namespace) -> Tiers:
    return Tiers(memory=Memory(every_n_steps=args.memory_every, directory=args.memory))


def lightning(args: argparse.Namespace) -> None:
    root = Path(args.root)
    durable = DurableCheckpoint(root, every_n_train_steps=args.every, tiers=tiers(args))
    pl.seed_everything(1, verbose=False)
    trainer = pl.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), max_steps=1_000_000,
        strategy=DDPStrategy(process_group_backend="gloo"), callbacks=[durable, Marks()], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, log_every_n_steps=1_000_000,
    )  # fmt: skip
    trainer.fit(Net(args.state_mb))


def plain(args: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    mark("group")
    torch.manual_seed(1)
    net, width = network(args.state_mb)
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    loader = points(width)
    state = {"model": net, "optimizer": optimizer, "loader": loader}
    with DurableSession.open(args.root, state=state, every_n_steps=args.every, tiers=tiers(args)) as run:
        mark("restored", step=run.steps)
        while True:
            for batch in loader:
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                mark("step", step=run.steps + 1)
                run.step(loss=loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=("lightning", "plain"))
    parser.add_argument("--root", required=True)
    parser.add_argument("--memory", default="/dev/shm")
    parser.add_argument("--memory-every", type=int, default=1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--state-mb", type=float, default=100.0)
    parser.add_argument(
        "--stubborn", action="store_true", help="rank 0 outlives its peer and ignores SIGTERM"
    )
    args = parser.parse_args()
    mark("script", BEGUN)
    mark("imported", IMPORTED)
    subprocess.Popen(["sleep", "100000"])
    if args.stubborn and RANK == 0:
        signal.signal(signal.SIGTERM, lambda *_: mark("ignored"))
    try:
        {"lightning": lightning, "plain": plain}[args.job](args)
    except RuntimeError:
        if not args.stubborn:
            raise
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
