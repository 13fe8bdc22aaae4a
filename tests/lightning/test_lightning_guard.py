"""Copying while the next batch is computed: whatever changes weights in a fit, every checkpoint committed
is the state of its boundary, bit for bit.

The race is forced: the copying thread waits until the guard has been asked, or the weights were changed. The
changes are made through ``.data``, so that torch does not count them: the guard has to come first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.plugins import MixedPrecision
from lightning_race import BATCHES, Net, Race, check, fit, run
from torch import Tensor

from lightning_durable import guard
from tests.lives import life

# --- hooks -------------------------------------------------------------------------------------

HOOKS = (
    "on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_start", "on_train_epoch_end",
    "on_validation_start", "on_validation_epoch_start", "on_validation_end",
)  # fmt: skip
WINDOWS = {"accumulate_grad_batches": 2, "val_check_interval": 1}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_of_a_callback_that_stands_before_ours(hook: str, tmp_path: Path) -> None:
    def action(race: Race) -> None:
        act = callbacks.LambdaCallback(**{hook: lambda trainer, module, *_: race.change(module)})
        fit(tmp_path, race, Net(race), act, **WINDOWS)

    run(tmp_path, action)


@pytest.mark.parametrize("hook", [*HOOKS, "configure_gradient_clipping"])
def test_a_hook_of_the_module(hook: str, tmp_path: Path) -> None:
    def hooked(self: Net, *_: Any, **__: Any) -> None:
        self.race.change(self)

    run(tmp_path, lambda race: fit(tmp_path, race, type("Hooked", (Net,), {hook: hooked})(race), **WINDOWS))


def test_an_epoch_that_a_hook_ends_after_the_boundary(tmp_path: Path) -> None:
    class Short(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 4 else None

        def on_train_epoch_end(self) -> None:
            self.race.change(self)

    run(tmp_path, lambda race: fit(tmp_path, race, Short(race)))


def test_a_callback_that_handles_an_exception(tmp_path: Path) -> None:
    class Failing(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            if self.trainer.global_step == 5:
                raise LookupError
            return super().training_step(batch, batch_idx)

    def action(race: Race) -> None:
        act = callbacks.LambdaCallback(on_exception=lambda trainer, module, _: race.change(module))
        module = Failing(race)
        with pytest.raises(LookupError):
            fit(tmp_path, race, module, act)

    run(tmp_path, action)


@pytest.mark.parametrize(
    "averaging",
    [
        lambda: callbacks.EMAWeightAveraging(decay=0.9),
        lambda: callbacks.StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1, annealing_epochs=1),
    ],
    ids=["EMAWeightAveraging", "StochasticWeightAveraging"],
)
def test_averages_that_are_swapped_in(averaging: Callable[[], L.Callback], tmp_path: Path) -> None:
    class Counted(Net):
        def on_validation_end(self) -> None:
            self.race.change(self)

    def action(race: Race) -> None:
        fit(tmp_path, race, Counted(race), averaging(), val_check_interval=2, max_epochs=3)

    run(tmp_path, action)


# --- updates -----------------------------------------------------------------------------------


def raced(kind: type[torch.optim.Optimizer], race: Race) -> type[torch.optim.Optimizer]:
    """``kind``, in whose step the change is made as soon as the closure has been evaluated."""

    def step(self: Any, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        race.changes += 1
        race._go.set()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(0.01)
        return loss

    return type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__})


class Manual(Net):
    def __init__(self, race: Race) -> None:
        super().__init__(race)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return raced(torch.optim.AdamW, self.race)(self.net.parameters(), lr=0.01)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        super().training_step(batch, batch_idx).backward()  # past Lightning's hooks
        optimizer.optimizer.step()


class RawClosure(Net):
    configure_optimizers = Manual.configure_optimizers

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
        optimizer.optimizer.step(optimizer_closure)


class NoLoss(RawClosure):
    """No backward pass, so none of its hooks; the update is made nevertheless."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return None if batch_idx % 2 else super().training_step(batch, batch_idx)


class Closed(Net):
    """The step as Lightning makes it."""

    configure_optimizers = Manual.configure_optimizers


class InManualStep(Manual):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(Net.training_step(self, batch, batch_idx))
        optimizer.step()


@pytest.mark.parametrize("kind", [Closed, Manual, InManualStep, RawClosure, NoLoss])
def test_an_update_however_it_is_made(kind: type[Net], tmp_path: Path) -> None:
    run(tmp_path, lambda race: fit(tmp_path, race, kind(race)))


def test_updates_overlap_with_nothing_but_the_pass_before_them(tmp_path: Path) -> None:
    """Or the cases above would prove nothing: with torch's own optimizer there is something to race with."""

    def action(race: Race) -> None:
        fit(tmp_path, race, Closed(race))
        assert race.late > 20

    run(tmp_path, action)


class Sharp(torch.optim.SGD):
    """Climbs before it descends, by a method that is no step."""

    def climb(self, race: Race) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(0.01)
        race.changes += 1
        race._go.set()


class Sharpened(Manual):
    def configure_optimizers(self) -> Any:
        return Sharp(self.net.parameters(), lr=0.01)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.optimizer.climb(self.race)
        optimizer.zero_grad()
        self.manual_backward(Net.training_step(self, batch, batch_idx))
        optimizer.step()


class ScheduleFree(torch.optim.SGD):
    """Other weights for evaluation, and others again before its closure."""

    race: Race

    def step(self, closure: Any = None) -> Any:
        self.swap()
        return super().step(closure)

    def swap(self) -> None:
        Sharp.climb(self, self.race)  # type: ignore[arg-type]


class Swapping(Net):
    def configure_optimizers(self) -> Any:
        ScheduleFree.race = self.race
        return ScheduleFree(self.net.parameters(), lr=0.01)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.trainer.optimizers[0].swap()


class Searching(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.net.parameters(), lr=0.01, max_iter=3)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.race.changes += 1
        self.race._go.set()
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("kind", [Sharpened, Swapping, Searching])
def test_an_optimizer_that_changes_weights_before_any_guard(kind: type[Net], tmp_path: Path) -> None:
    run(tmp_path, lambda race: fit(tmp_path, race, kind(race)))


def test_mixed_precision_with_steps_that_are_skipped(tmp_path: Path) -> None:
    class Overflowing(Closed):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return loss * float("inf") if batch_idx == 3 else loss

    def action(race: Race) -> None:
        precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
        fit(tmp_path, race, Overflowing(race), plugins=[precision], gradient_clip_val=1.0)
        assert race.changes < 2 * BATCHES, "no step was skipped"

    run(tmp_path, action)


def test_an_optimizer_that_runs_in_the_backward_pass(tmp_path: Path) -> None:
    class InBackward(Net):
        def on_train_start(self) -> None:
            for parameter in self.net[0].parameters():
                parameter.register_post_accumulate_grad_hook(self.descend)

        def descend(self, parameter: Tensor) -> None:
            parameter.data.add_(0.01)
            self.race.changes += 1
            self.race._go.set()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.net[2].parameters(), lr=0.01)

    run(tmp_path, lambda race: fit(tmp_path, race, InBackward(race)))


# --- what no guard can come before -------------------------------------------------------------


@pytest.mark.parametrize("of", ["net", "teacher"])
def test_weights_written_in_the_training_step_void_the_snapshot(of: str, tmp_path: Path) -> None:
    """Torch counts the write: nothing wrong is committed, and the next snapshot is copied at once."""

    class Writing(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            if self.trainer.global_step >= 4:  # the saves that are compared are long past
                with torch.no_grad():
                    for parameter in getattr(self, of).parameters():
                        parameter.add_(0.01)
                self.race._go.set()
            return super().training_step(batch, batch_idx)

    def inside() -> None:
        race = Race()
        fit(tmp_path, race, Writing(race))
        assert len(race.void) == 1
        check(tmp_path, race, but={4})

    assert life(tmp_path, inside) == 0, (tmp_path / "output").read_text()[-4000:]


def test_trainer_and_optimizers_are_left_as_they_were(tmp_path: Path) -> None:
    def inside() -> None:
        race = Race()
        module = Net(race)
        fit(tmp_path, race, module)
        assert [type(callback).__module__ for callback in module.trainer.callbacks].count(
            "lightning_durable.settling"
        ) == 0
        assert not module.trainer.optimizers[0]._optimizer_step_pre_hooks

    assert life(tmp_path, inside) == 0, (tmp_path / "output").read_text()[-4000:]


def test_a_seed_of_chance_is_told_from_a_chosen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    before = torch.random.get_rng_state()
    try:
        torch.manual_seed(1 << 40)
        assert not guard.seed_is_chosen()
        torch.manual_seed(7)
        assert guard.seed_is_chosen()
    finally:
        torch.random.set_rng_state(before)
