"""``open(hold=True)`` and ``reapply``: what a script computed after its start leaves no trace."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from durable_core import DurableSession
from durable_core.data import DurableLoader
from durable_core.session import Loaded, Run
from durable_core.state import capture, rng


class Averages:
    """An object of the user's, which keeps what it is given: as many do."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.shadow = {name: value.clone() for name, value in model.state_dict().items()}
        self.seen: list[int] = []

    def update(self) -> None:
        for name, value in self._model.state_dict().items():
            self.shadow[name].copy_(value)
        self.seen.append(len(self.seen))

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow, self.seen = state["shadow"], state["seen"]


class Script:
    """Of everything that has a state, one; ``rare`` does not step before step 3."""

    def __init__(self) -> None:
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(5)
        self.model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model[0].parameters(), lr=0.1)
        self.rare = torch.optim.AdamW(self.model[3].parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.SequentialLR(
            self.optimizer,
            [
                torch.optim.lr_scheduler.ConstantLR(self.optimizer, 0.5, 3),
                torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9),
            ],
            [3],
        )
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.rare, patience=0)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        self.averages = Averages(self.model)
        self.generator = torch.Generator().manual_seed(1)
        self.loader = DurableLoader(torch.arange(32.0).reshape(16, 2), 2, seed=1, dataset_id="rows")
        self.batches: Iterator[Any] = iter(())

    @property
    def objects(self) -> dict[str, Any]:
        return {
            "model": self.model, "optimizer": self.optimizer, "rare": self.rare, "scheduler": self.scheduler,
            "plateau": self.plateau, "scaler": self.scaler, "averages": self.averages,
            "generator": self.generator,
        }  # fmt: skip

    def open(self, root: Path, **more: Any) -> DurableSession:
        state = {**self.objects, "loader": self.loader}
        return DurableSession.open(root, state=state, every_n_steps=1000, **more)

    def update(self, batch: torch.Tensor, *, rare: bool) -> None:
        noise = torch.rand(batch.shape, generator=self.generator) + random.random() + np.random.random()
        self.scaler.scale(self.model(batch + noise).square().mean()).backward()
        self.scaler.step(self.optimizer)
        if rare:
            self.scaler.step(self.rare)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.rare.zero_grad()
        self.scheduler.step()
        self.plateau.step(1.0)
        self.averages.update()

    def everything(self) -> Any:
        return capture.capture(self.objects), rng.capture()

    def saved(self) -> Any:
        """``everything``, as it is now whatever happens to it."""
        return frozen(self.everything())

    def train(self, session: DurableSession, steps: int) -> None:
        batches = iter(self.loader)
        for _ in range(steps):
            self.update(next(batches), rare=session.steps >= 3)
            session.step()


def frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [frozen(item) for item in value]
    return value


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


@pytest.fixture
def run_of_two_steps(tmp_path: Path) -> Path:
    script = Script()
    with script.open(tmp_path / "run") as session:
        script.train(session, 2)
    return tmp_path / "run"


def disturb(script: Script) -> None:
    """What bodies of finished epochs may do, and more: everything is trained on."""
    for batch in torch.rand(3, 2, 2):
        script.update(batch, rare=True)
    script.model.eval()
    script.model[0].weight.requires_grad_(False)


def test_what_was_computed_since_the_start_leaves_no_trace(run_of_two_steps: Path) -> None:
    script = Script()
    with script.open(run_of_two_steps, hold=True) as session:
        restored = script.saved()
        assert script.rare.state == {}, "an optimizer that has not stepped yet"
        for _ in range(2):  # what is held is not what the objects were given
            disturb(script)
            assert not equal(restored[0], script.saved()[0]) and not equal(restored[1], script.saved()[1])
            session.reapply()
            assert equal(restored, script.saved())
        assert session.restored == (session.newest or (0, 0))[:2]
        session._updated = False  # of the disturbance


def test_training_goes_on_as_without_the_disturbance(run_of_two_steps: Path, tmp_path: Path) -> None:
    whole = Script()
    with whole.open(tmp_path / "whole") as session:
        whole.train(session, 6)
    script = Script()
    with script.open(run_of_two_steps, hold=True) as session:
        disturb(script)
        session.reapply()
        session.release()
        script.train(session, 4)
    assert equal(whole.saved(), script.saved())


def test_the_loader_is_left_alone(run_of_two_steps: Path) -> None:
    script = Script()
    with script.open(run_of_two_steps, hold=True) as session:
        at = script.loader.cursor
        first = next(iter(script.loader))
        session.reapply()
        assert (script.loader.cursor, script.loader.outstanding) == (at, 1)
        script.update(first, rare=False)
        session.step()
        assert script.loader.cursor.batch == at.batch + 1


def test_modes_may_stay_as_the_script_has_set_them(run_of_two_steps: Path) -> None:
    script = Script()
    with script.open(run_of_two_steps, hold=True) as session:
        script.model.eval()
        script.model[0].weight.requires_grad_(False)
        session.reapply(modes=False)
        assert not script.model.training and not script.model[0].weight.requires_grad
        session.reapply()
        assert script.model.training and script.model[0].weight.requires_grad


@pytest.mark.parametrize("how", ["fresh", "released", "not held"])
def test_without_anything_held_nothing_happens(how: str, run_of_two_steps: Path, tmp_path: Path) -> None:
    script = Script()
    root = tmp_path / "fresh" if how == "fresh" else run_of_two_steps
    with script.open(root, hold=how != "not held") as session:
        if how == "released":
            session.release()
        disturb(script)
        before = script.saved()
        session.reapply()
        assert equal(before, script.saved())
        session._updated = False


@pytest.mark.parametrize("hold", [False, True])
def test_what_is_let_go_costs_no_memory(
    hold: bool, run_of_two_steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[weakref.ref[torch.Tensor]] = []
    load = Run.load

    def loaded(run: Run) -> Loaded:
        found = load(run)
        read.extend(weakref.ref(tensor) for tensor in found.state["model"].values())
        return found

    monkeypatch.setattr(Run, "load", loaded)
    with Script().open(run_of_two_steps, hold=hold) as session:
        gc.collect()
        assert any(tensor() is not None for tensor in read) == hold
        session.release()
        gc.collect()
        assert read and all(tensor() is None for tensor in read)


def test_updated_says_whether_an_optimizer_has_stepped(tmp_path: Path) -> None:
    script = Script()
    with script.open(tmp_path) as session:
        assert not session.updated
        script.update(next(iter(script.loader)), rare=False)
        assert session.updated
        session.step()
        assert not session.updated
