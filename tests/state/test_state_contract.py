"""Nothing is skipped silently: objects without a contract are named, and what is not captured is reported."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from durable_core.errors import UsageError
from durable_core.state.contract import Kind, adapt, check, check_all, classify
from durable_core.state.coverage import coverage, scalars
from durable_core.state.rng import Named, Streams


class Holder:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def test_objects_without_a_contract_are_all_named() -> None:
    with pytest.raises(UsageError) as caught:
        check_all({"good": Holder(), "queue": object(), "step": 3})
    message = str(caught.value)
    assert "'queue'" in message and "'step'" in message and "good" not in message
    for name in ("", "_hidden"):
        with pytest.raises(UsageError):
            check(name, Holder())


def test_classification_is_by_declaration_type_then_name() -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    declared = Holder()
    declared.state_kind = "topology"  # type: ignore[attr-defined]
    expected = {
        Kind.TOPOLOGY: [("x", declared), ("mesh", Holder())],
        Kind.PARAMETERS: [("net", net), ("ema_like_name", net)],
        Kind.OPTIMIZER: [("o", optimizer), ("optimizer2", Holder())],
        Kind.SCALER: [("s", torch.amp.GradScaler("cpu"))],
        Kind.SCHEDULER: [("s", torch.optim.lr_scheduler.StepLR(optimizer, 1))],
        Kind.EMA: [("avg", torch.optim.swa_utils.AveragedModel(net)), ("ema", Holder())],
        Kind.LOOP: [("anything", Holder())],
        Kind.DATA: [("train_loader", Holder())],
        Kind.RNG: [("g", random.Random()), ("g", torch.Generator()), ("s", Streams())],
    }
    for kind, examples in expected.items():
        for name, obj in examples:
            assert classify(name, obj) is kind, (kind, name)
    declared.state_kind = "weights"  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="weights"):
        classify("x", declared)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wrappers_are_looked_through() -> None:
    net = nn.Linear(2, 2)
    assert adapt(torch.compile(net)) is net
    assert isinstance(adapt(random.Random()), Named)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
        self.register_buffer("mask", torch.ones(2), persistent=False)
        self.noise = torch.Generator()
        self.augment = np.random.default_rng(0)
        self.running = torch.zeros(2)
        self.calls = 0
        self.width = 2


def test_the_report_finds_what_is_not_declared() -> None:
    model = Noisy()
    report = coverage({"model": model})
    assert {item.path for item in report.missing} == {"model.noise", "model.augment", "model.running"}
    assert all(item.hint for item in report.missing)
    assert "model.mask" in {item.path for item in report.captured}
    assert {item.path for item in report.derivable} == {"model.calls", "model.width"}

    declared = coverage({"model": model, "noise": model.noise, "augment": model.augment})
    assert {item.path for item in declared.missing} == {"model.running"}
    assert not declared.complete


def test_a_counter_that_moves_is_missing_not_derivable() -> None:
    model = Noisy()
    earlier = scalars({"model": model})
    model.calls += 1
    report = coverage({"model": model}, earlier=earlier)
    assert "model.calls" in {item.path for item in report.missing}
    assert {item.path for item in report.derivable} == {"model.width"}


def test_an_object_without_a_contract_or_version_is_in_the_report() -> None:
    report = coverage({"bad": object(), "old": Holder()})
    assert [item.path for item in report.missing] == ["bad"]
    hint = next(item.hint for item in report.captured if item.path == "old")
    assert hint.startswith("declare state_version")
