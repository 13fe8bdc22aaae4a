"""The run under test: a Trainer, dropout, augmentation from all three generators, a schedule, notes of it.

A run is a ``Case``. Each life of it is a forked process (its frameworks are imported already) that dies by
SIGKILL where told. Every batch and every step is one appended line, so a kill leaves whole lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from accelerate_durable.transformers import DurableTrainerCallback, DurableTrainerMixin
from tests.lives import Line, check_stretches, kill_self, life

SAMPLES, BATCH, EPOCHS, WIDTH = 48, 4, 2, 6


def digest(*tensors: Tensor) -> str:
    total = hashlib.blake2b(digest_size=10)
    for tensor in tensors:
        total.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    return total.hexdigest()


class Samples(Dataset[dict[str, Tensor]]):
    """``{ids, x}``: fixed noise plus fresh draws from torch, python and numpy."""

    def __init__(self, count: int = SAMPLES) -> None:
        self.base = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        draws = torch.rand(WIDTH) + random.random() + float(np.random.rand())
        return {"ids": torch.tensor(index), "x": self.base[index] + 0.1 * draws}


class Notes(TrainerCallback):
    """Writes lines; SIGKILLs itself after the line that ``kill`` names: ``("step", 7)``, once what was staged
    before it is durable: where a restart begins is then no matter of chance."""

    durable: DurableTrainerCallback | None = None

    def __init__(self, path: Path, kill: tuple[str, int] | None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._kill, self._count = kill, {"batch": 0}

    def write(self, what: str, **line: Any) -> None:
        self._count[what] = self._count.get(what, 0) + 1
        os.write(self._fd, json.dumps({"what": what, **line}).encode() + b"\n")
        if self._kill == (what, self._count[what]):
            if self.durable is not None:
                self.durable.flush()
            kill_self()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.rand(1)  # what a callback draws at the start of an epoch belongs to it

    def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        lr = kw["lr_scheduler"].get_last_lr()[0]
        self.write("step", step=state.global_step, lr=lr, weights=digest(*kw["model"].parameters()))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self.write("eval", step=state.global_step, loss=metrics["eval_loss"], best=state.best_metric)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        told = {name: value for name, value in logs.items() if name in ("loss", "grad_norm", "train_loss")}
        if told:
            self.write("log", step=state.global_step, **told)


class Counting(TrainerCallback, ExportableState):
    """A callback with a state of its own, which stops the training once it has seen enough."""

    def __init__(self, enough: int = 10**9) -> None:
        self.enough, self.steps, self.epochs = enough, 0, 0

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epochs += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps += 1
        control.should_training_stop = self.steps >= self.enough

    def state(self) -> dict[str, Any]:
        counts = {"steps": self.steps, "epochs": self.epochs}
        return {"args": {"enough": self.enough}, "attributes": counts}


class ShortEpochs(TrainerCallback):
    """Leaves every epoch after so many steps of it."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_epoch_stop = state.global_step % self._steps == 0


class Model(nn.Module):
    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 12)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(12, 1)
        self._notes = (notes,)

    def forward(self, ids: Tensor, x: Tensor, return_loss: bool = True) -> dict[str, Tensor]:
        hidden = self.drop(torch.relu(self.first(x)))
        if self.training:
            self._notes[0].write("batch", ids=ids.tolist(), x=digest(x), hidden=digest(hidden))
        return {"loss": self.last(hidden).square().mean()}


class MixedIn(DurableTrainerMixin, Trainer):
    """By class rather than by ``attach``."""


@dataclass(frozen=True)
class Case:
    """``args`` go to the ``TrainingArguments``, ``durable`` to the callback (``None``: without one)."""

    workers: int = 0
    accumulate: int = 1
    seed: int = 3
    every: int | str = 5
    samples: int = SAMPLES
    epochs: float = EPOCHS
    mixin: bool = False
    args: dict[str, Any] = field(default_factory=dict, hash=False)
    durable: dict[str, Any] = field(default_factory=dict, hash=False)
    callbacks: Callable[[], list[TrainerCallback]] = field(default=list, hash=False)
    evaluates: bool = False
    dataset: Any = None
    resume: Any = None

    def arguments(self, home: Path) -> TrainingArguments:
        given: dict[str, Any] = {
            "output_dir": str(home / "out"), "seed": self.seed, "use_cpu": True, "report_to": [],
            "per_device_train_batch_size": BATCH, "num_train_epochs": self.epochs, "learning_rate": 0.05,
            "gradient_accumulation_steps": self.accumulate, "dataloader_num_workers": self.workers,
            "save_strategy": "no", "logging_steps": 3, "disable_tqdm": True, "dataloader_pin_memory": False,
        }  # fmt: skip
        return TrainingArguments(**{**given, **self.args})

    def plain(
        self, home: Path, kill: tuple[str, int] | None = None, root: Path | None = None
    ) -> tuple[Trainer, DurableTrainerCallback]:
        """The two, not attached; of a ``mixin`` they are by then."""
        notes = Notes(home / "notes", kill)
        args = self.arguments(home)
        torch.manual_seed(self.seed)
        durable = DurableTrainerCallback(root or home / "run", every_n_steps=self.every, **self.durable)
        notes.durable = durable
        callbacks = [*self.callbacks(), notes]
        kind = MixedIn if self.mixin else Trainer
        trainer = kind(
            model=Model(notes),
            args=args,
            train_dataset=self.dataset or Samples(self.samples),
            eval_dataset=Samples(8) if self.evaluates else None,
            callbacks=[*callbacks, durable] if self.mixin else callbacks,
        )
        return trainer, durable

    def run(self, home: Path, kill: tuple[str, int] | None = None, root: Path | None = None) -> None:
        """One life: trains to the end, unless it is killed."""
        trainer, durable = self.plain(home, kill, root)
        if not self.mixin:
            durable.attach(trainer)
        output = trainer.train(resume_from_checkpoint=self.resume)
        state = trainer.state
        history = [{k: v for k, v in row.items() if not _is_timing(k)} for row in state.log_history]
        end = {
            "step": output.global_step,
            "loss": output.training_loss,
            "weights": digest(*trainer.model.parameters()),
            "history": history,
            "best": [state.best_metric, state.best_global_step],
            "callbacks": [
                item.state() for item in trainer.callback_handler.callbacks if isinstance(item, Counting)
            ],
        }
        (home / "end").write_text(json.dumps(end))


def _is_timing(name: str) -> bool:
    return name.endswith(("_runtime", "_per_second"))


def lines(home: Path) -> list[Line]:
    path = home / "notes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def end_of(home: Path) -> Line:
    found: Line = json.loads((home / "end").read_text())
    return found


class References:
    """Uninterrupted runs, each made once."""

    def __init__(self, home: Path) -> None:
        self._home, self._made = home, dict[str, tuple[list[Line], Line]]()

    def of(self, case: Case) -> tuple[list[Line], Line]:
        case = replace(case, resume=None)
        key = repr(case)
        if key not in self._made:
            home = self._home / str(len(self._made))
            home.mkdir()
            assert life(home, lambda: case.run(home)) == 0, (home / "output").read_text()
            self._made[key] = lines(home), end_of(home)
        return self._made[key]


def killed_and_resumed(
    case: Case, home: Path, kills: list[tuple[str, int]], then: Case | None = None
) -> tuple[list[list[Line]], Line]:
    """The lines of each life, and the end. ``then``: what the lives after the first are."""
    lives: list[list[Line]] = []
    told = 0
    for kill in [*kills, None]:
        code = life(home, partial(case.run, home, kill))
        assert code == (0 if kill is None else -9), (home / "output").read_text()
        lives.append(lines(home)[told:])
        told += len(lives[-1])
        case = then or case
    return lives, end_of(home)


def check_same(
    references: References,
    case: Case,
    home: Path,
    kills: list[tuple[str, int]],
    *,
    anew: bool = False,
    **more: Any,
) -> None:
    """``anew``: the last life begins at the beginning, rather than in the middle."""
    expected, end = references.of(case)
    lives, found = killed_and_resumed(case, home, kills, **more)
    check_stretches(expected, lives)
    assert (len(lives[-1]) == len(expected)) is anew, "it did not begin where it was to"
    assert found == end
