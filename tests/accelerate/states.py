"""A small training of which the tests of ``save_state`` and ``load_state`` make what they need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import ProjectConfiguration, set_seed
from adapter_parts import as_in_a_new_process
from torch.utils.data import DataLoader, TensorDataset

from accelerate_durable import Accelerator, again
from accelerate_durable.durable import Durable
from accelerate_durable.folders import POINTER
from durable_core.engine.inspect import Reader, open_run

BATCHES = 5  # of an epoch

_begun: list[Training] = []


def end_all() -> None:
    """Nothing of what a test has begun goes on after it."""
    while _begun:
        begun = _begun.pop()
        if isinstance(begun.accelerator, Accelerator):
            begun.durable.reset()


class Counts:
    """What a script registers: how many epochs it has done."""

    def __init__(self) -> None:
        self.epochs = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]


@dataclass
class Training:
    """One process's part, up to its end or its kill."""

    accelerator: Accelerator
    model: torch.nn.Module
    optimizer: Any
    scheduler: Any
    loader: Any
    counts: Counts

    @property
    def durable(self) -> Durable:
        return self.accelerator.durable

    def batches(self) -> Iterator[torch.Tensor]:
        """One pass; each batch is trained on when the next one is asked for."""
        for x, y in self.loader:
            with self.accelerator.accumulate(self.model):
                loss = ((self.model(x) - y) ** 2).mean() + torch.rand(()) * 0
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            yield loss.detach()

    def epoch(self) -> list[float]:
        """The losses of a pass, and what follows it."""
        losses = [float(loss) for loss in self.batches()]
        self.scheduler.step()
        self.counts.epochs += 1
        return losses

    def stop(self) -> None:
        """The process is gone, for the run; what it had staged is durable."""
        assert self.durable.session is not None
        self.durable.session.close()

    def weights(self) -> list[float]:
        return [float(value) for p in self.model.parameters() for value in p.detach().flatten()]

    def everything(self) -> Any:
        """Equal for two runs that are the same."""
        moments = self.optimizer.optimizer.state_dict()["state"]
        exact = {k: [v.tolist() for v in of.values()] for k, of in moments.items()}
        return self.weights(), exact, self.scheduler.get_last_lr(), self.counts.epochs


def begin(
    home: Path, root: str = "run", *, naming: bool = True, limit: int | None = None, accumulate: int = 1,
    seed: int = 3, each_node: bool = False, durable: bool = True,
) -> Training:  # fmt: skip
    """As a process that has just been started. ``durable=False``: under plain Accelerate."""
    as_in_a_new_process(home / root)
    again._left.clear()  # of a process before this one
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    set_seed(seed)
    project = ProjectConfiguration(
        str(home), automatic_checkpoint_naming=naming, total_limit=limit, save_on_each_node=each_node
    )
    kind, more = (Accelerator, {"durable": home / root}) if durable else (Accelerator.__mro__[2], {})
    accelerator = kind(project_config=project, gradient_accumulation_steps=accumulate, cpu=True, **more)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    x = torch.randn(4 * BATCHES, 3, generator=torch.Generator().manual_seed(1))
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    counts = Counts()
    accelerator.register_for_checkpointing(counts)
    _begun.append(Training(accelerator, *accelerator.prepare(model, optimizer, scheduler, data), counts))
    return _begun[-1]


# --- what is left on the disk ---------------------------------------------------------------------------


def directories(home: Path) -> list[str]:
    """Of automatic naming, what is hidden included; in the order of their numbers."""
    parent = home / "checkpoints"
    found = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    return sorted(found, key=lambda name: (len(name), name))


def pointer(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / POINTER).read_text())
    return found


def run(home: Path, root: str = "run") -> Reader:
    return open_run(home / root)


def pinned(home: Path, root: str = "run") -> set[int]:
    return {info.c for info in run(home, root).committed() if info.pinned}


def named(*places: Path) -> set[int]:
    """Checkpoints that directories in ``places`` name."""
    return {pointer(path.parent)["c"] for place in places for path in place.glob(f"*/{POINTER}")}
