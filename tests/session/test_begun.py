"""Whether training has begun on a batch is seen from what it changes, whatever the loop is like."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from durable_core.session.begun import LEAVES, Begun, left_within


class Counts:
    """A state object of the user's own."""

    seen: int
    names: list[str]
    rows: list[Any]
    average: dict[str, torch.Tensor]

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Parts:
    def __init__(self) -> None:
        self.model: Any = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        self.loose = torch.zeros(2, requires_grad=True)
        self.optimizer = torch.optim.AdamW([*self.model.parameters(), self.loose])
        self.optimizer.state[self.loose] = {"step": torch.zeros(()), "exp_avg": torch.zeros(2)}
        self.scheduler = lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=50)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.scaler.scale(torch.zeros(()))  # it makes its tensors now
        self.average = torch.zeros(3)
        self.counts = Counts(seen=1, names=["a"], average={"w": self.average}, model=self.model)
        self.generator = torch.Generator()

    @property
    def state(self) -> dict[str, Any]:
        return {name: item for name, item in vars(self).items() if name not in ("loose", "average")}

    def marked(self) -> Begun:
        begun = Begun(self.state)
        begun.mark()
        return begun


def written(parts: Parts) -> None:
    with torch.no_grad():
        parts.model[0].weight.add_(1)


def rebound(parts: Parts) -> None:
    """A new tensor, perhaps where the old one was."""
    parts.model[1].running_mean = parts.model[1].running_mean * 0.9


def other_group(parts: Parts) -> None:
    parts.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def averaged(parts: Parts) -> None:
    parts.average.add_(1)


def averaged_anew(parts: Parts) -> None:
    parts.counts.average["w"] = parts.counts.average["w"] * 0.9


def damped(parts: Parts) -> None:
    parts.optimizer.state[parts.loose]["exp_avg"].mul_(0.5)


def scaled(parts: Parts) -> None:
    parts.scaler._growth_tracker.add_(1)  # type: ignore[union-attr]  # what update() does


CHANGES: dict[str, tuple[Callable[[Parts], object], str]] = {
    "forward": (lambda p: p.model.eval()(torch.ones(2, 2)), "forward pass"),
    "write": (written, "were written"),
    "loose": (lambda p: p.loose.detach().add_(1), "were written"),
    "buffer": (rebound, "were written"),
    "part": (lambda p: p.model.append(nn.Linear(1, 1)), "other parts"),
    "group": (other_group, "other parts"),
    "moment": (damped, "were written"),
    "rate": (lambda p: p.optimizer.param_groups[0].update(lr=0.5), "'optimizer' was changed"),
    "schedule": (lambda p: p.scheduler.__dict__.update(last_epoch=7), "'scheduler' was changed"),
    "scale": (scaled, "'scaler' was changed"),
    "python": (lambda p: random.random(), "random numbers"),
    "numpy": (lambda p: np.random.rand(), "random numbers"),
    "torch": (lambda p: torch.rand(1), "random numbers"),
    "generator": (lambda p: torch.rand(1, generator=p.generator), "'generator' was changed"),
    "count": (lambda p: p.counts.__dict__.update(seen=2), "'counts' was changed"),
    "list": (lambda p: p.counts.names.append("b"), "'counts' was changed"),
    "average": (averaged, "'counts' was changed"),
    "average anew": (averaged_anew, "'counts' was changed"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_found_and_named(change: str) -> None:
    parts = Parts()
    make, named = CHANGES[change]
    begun = parts.marked()
    assert begun.found() == ""
    make(parts)
    assert named in begun.found()
    begun.mark()
    assert begun.found() == ""


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: lr_scheduler.ReduceLROnPlateau(o),
        lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0),
        lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o), lr_scheduler.CosineAnnealingLR(o, 5)], [3]
        ),
        lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
        ),
    ],
)
def test_every_kind_of_scheduler_can_be_compared(make: Callable[[Any], Any]) -> None:
    begun = Begun({"scheduler": make(torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1))})
    begun.mark()
    assert begun.found() == ""


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {}

    def set_extra_state(self, state: Any) -> None: ...


class Logs(list[int]):
    def state_dict(self) -> dict[str, Any]:
        return {"rows": list(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self[:] = state["rows"]


class Slotted:
    __slots__ = ("n",)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def endless() -> Counts:
    counts = Counts(rows=[])
    counts.rows.append(counts.rows)
    return counts


@pytest.mark.parametrize(
    "item",
    [Counts(inner=Counts()), Counts(rows=list(range(LEAVES))), Counts(seen={1}), endless(), Logs(), Slotted(),
     Extra(1, 1)],
)  # fmt: skip
def test_what_cannot_be_compared_counts_as_changed(item: Any) -> None:
    begun = Begun({"mine": item})
    begun.mark()
    assert "cannot be compared" in begun.found()


def test_tensors_without_a_count_of_writes_count_as_changed() -> None:
    with torch.inference_mode():
        model = nn.BatchNorm1d(2, affine=False)
    begun = Begun({"model": model})
    begun.mark()
    assert "were written" in begun.found()
    assert "not known" in Begun({}).found()


@pytest.mark.parametrize(
    ("durable", "stepped", "taken", "found", "said"),
    [
        (50, True, 1, "", None),
        (
            40,
            True,
            1,
            "a forward pass was computed",
            r"taken after step 50, and training had begun .*a forward",
        ),
        (
            40,
            True,
            0,
            "an optimizer has stepped",
            r"training went on .*follows step 40 .*right after run\.step",
        ),
        (50, True, 1, "an optimizer has stepped", None),
        (50, False, 1, "", None),
        (50, False, 2, "", r"2 batches were taken, and run\.step\(\) was never called.*still at step 50"),
        (50, False, 1, "an optimizer has stepped", r"1 batch.*never called.*an optimizer has stepped"),
        (50, False, 0, "an optimizer has stepped", r"^run\.step\(\) was never called"),
    ],
)
def test_what_is_said_of_a_block_that_is_left(
    durable: int, stepped: bool, taken: int, found: str, said: str | None
) -> None:
    told = left_within(50, durable, stepped=stepped, taken=taken, found=found)
    assert (told is None) if said is None else re.search(said, told or "")
