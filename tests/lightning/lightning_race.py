"""Copies held up until the guard was asked or weights were changed; each commit beside its boundary."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from durable_core.commit.retention import Retention
from durable_core.engine import restore
from durable_core.engine.inspect import open_run
from durable_core.state import stable
from durable_core.state.staging import Staged, copying
from lightning_durable import DurableCheckpoint
from lightning_durable.fit import BEFORE_BATCH, Fit
from tests.lives import life

DEADLINE, BATCHES, WIDTH = 60.0, 6, 8


def live_tensors(trainer: L.Trainer) -> dict[str, Tensor]:
    held = {f"model/{name}": value for name, value in trainer.lightning_module.state_dict().items()}
    for number, optimizer in enumerate(trainer.optimizers):
        for index, entry in optimizer.state_dict()["state"].items():
            named = {f"optimizer/{number}/{index}/{key}": value for key, value in entry.items()}
            held |= {key: value for key, value in named.items() if isinstance(value, Tensor)}
    return held


class Race:
    """Patches a forked process: copies are held up, boundaries written down."""

    def __init__(self) -> None:
        self.boundaries: dict[int, dict[str, Tensor]] = {}
        self.void: list[str] = []
        self.changes = self.late = 0
        self._go = threading.Event()
        stable.WORTH_BYTES = 1
        real_copy, real_settle, real_save = copying._copy_alone, Staged.settle, Fit._save

        def held_up(destination: Tensor, source: Tensor) -> None:
            assert self._go.wait(DEADLINE)
            self.late += 1
            real_copy(destination, source)

        def asked(staged: Staged) -> None:
            self._go.set()
            real_settle(staged)
            self.void += [staged.void] if staged.void else []

        def saved(fit: Fit, place: str, **told: Any) -> None:
            if place == BEFORE_BATCH:
                held = live_tensors(fit._trainer).items()
                self.boundaries.setdefault(fit._step, {key: value.clone() for key, value in held})
            self._go.clear()
            real_save(fit, place, **told)

        copying._copy_alone, Staged.settle, Fit._save = held_up, asked, saved  # type: ignore[method-assign]

    def __deepcopy__(self, memo: Any) -> Race:
        return self  # averages copy the module

    def change(self, module: nn.Module) -> None:
        """Every weight, and all that the optimizers hold of them, behind torch's back."""
        self.changes += 1
        for parameter in module.parameters():
            parameter.data.add_(0.01)
        for optimizer in module.trainer.optimizers:
            for entry in optimizer.state.values():
                for value in entry.values():
                    if isinstance(value, Tensor) and value.dim():
                        value.data.add_(0.01)
        self._go.set()


class Net(L.LightningModule):
    def __init__(self, race: Race) -> None:
        super().__init__()
        self.race = race
        self.teacher = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return (self.net(batch[0]) - self.teacher(batch[0])).square().mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val", self.net(batch[0]).mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.net.parameters(), lr=0.01)


def fit(home: Path, race: Race, module: Net, *extra: L.Callback, every: int = 1, **settings: Any) -> None:
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(4 * BATCHES, WIDTH))
    durable = DurableCheckpoint(
        home / "run", every_n_train_steps=every, backlog="delay", retention=Retention(keep_last=100)
    )
    trainer = L.Trainer(
        **{"max_epochs": 2, **settings}, accelerator="cpu", devices=1, logger=False, default_root_dir=home,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
        num_sanity_val_steps=0, callbacks=[*extra, durable],
    )  # fmt: skip
    trainer.fit(module, DataLoader(data, batch_size=4), DataLoader(data, batch_size=12))


def committed(home: Path) -> dict[int, dict[str, Tensor]]:
    """The tensors of every checkpoint, by step."""
    reader, found = open_run(home / "run"), {}
    for info in reader.state.checkpoints.values():
        if not info.usable:
            continue
        state = restore.read(reader.tier, info.manifest, info.manifest_digest, "dp0").state["checkpoint"]
        weights = state.get("current_model_state", state["state_dict"])  # averages take the other's place
        held = {f"model/{name}": value for name, value in weights.items()}
        for number, optimizer in enumerate(state["optimizer_states"]):
            for index, entry in optimizer["state"].items():
                held |= {f"optimizer/{number}/{index}/{key}": value for key, value in entry.items()}
        found[info.step] = held
    return found


def same_bits(mine: Tensor, theirs: Tensor) -> bool:
    raw = [item.detach().contiguous().reshape(-1).view(torch.uint8) for item in (mine, theirs)]
    return mine.dtype == theirs.dtype and torch.equal(*raw)


def check(home: Path, race: Race, *, but: set[int] = frozenset()) -> None:
    """``but``: steps whose snapshots are void, so that nothing was committed."""
    found = committed(home)
    assert set(race.boundaries) - set(found) == but
    for step, expected in race.boundaries.items():
        for key, value in expected.items():
            assert step in but or same_bits(found[step][key], value), f"step {step}: {key}"


def run(home: Path, action: Callable[[Race], None]) -> None:
    """``action`` fits in a forked process; afterwards every checkpoint is its boundary's state."""

    def inside() -> None:
        race = Race()
        action(race)
        assert race.void == [], "the guard came after the change"
        assert race.changes and len(race.boundaries) > 3
        check(home, race)

    assert life(home, inside) == 0, (home / "output").read_text()[-4000:]
