"""Restore is all or nothing: what does not fit is named before the first object is touched."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from durable_core.errors import PromiseError, RestoreError, SpecMismatchError, UsageError
from durable_core.state import capture as capturing
from durable_core.state.capture import capture, merge, restore
from durable_core.state.contract import ORDER
from durable_core.state.modules import module_extras
from durable_core.state.rng import Streams
from durable_core.state.tree import flatten, rebuild


class Counter:
    state_version = 2

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["value"]


def objects(width: int = 4) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(8, width)).sum().backward()
    optimizer.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3),
        "scaler": torch.amp.GradScaler("cpu"),
        "counter": Counter(5),
        "rng": Streams(),
    }


def stored(tree: Any) -> Any:
    flat = flatten(tree, prefix="state")
    return rebuild(copy.deepcopy(flat.doc), {key: tensor.clone() for key, tensor in flat.tensors.items()})


def everything(live: dict[str, Any]) -> Any:
    flat = flatten(capture(live), prefix="state")
    return flat.doc, {key: tensor.tolist() for key, tensor in flat.tensors.items()}


def edit(path: str, value: Any) -> Callable[[Any], None]:
    *parents, last = path.split("/")

    def apply(tree: Any) -> None:
        for part in parents:
            tree = tree[int(part) if part.isdigit() else part]
        if value is None:
            del tree[int(last) if last.isdigit() else last]
        else:
            tree[int(last) if last.isdigit() else last] = value

    return apply


DAMAGE: dict[str, Callable[[Any], None]] = {
    "model: 0.bias is only in the model": edit("model/0.bias", None),
    "model: extra is only in the checkpoint": edit("model/extra", torch.ones(1)),
    "model: 0.weight is float32[2, 2]": edit("model/0.weight", torch.ones(2, 2)),
    "model: 0.weight is float64[4, 4]": edit("model/0.weight", torch.ones(4, 4, dtype=torch.float64)),
    "model: its state is not a dict": edit("model", [1]),
    "optimizer: parameter groups": edit("optimizer/param_groups/0/params", [0, 1]),
    "optimizer: state for parameter 9": edit("optimizer/state/9", {}),
    "optimizer: exp_avg of parameter 0": edit("optimizer/state/0/exp_avg", torch.ones(3)),
    "optimizer: its state is not": edit("optimizer", {}),
    "optimizer: was a torch.optim.sgd.SGD": edit("_objects/optimizer/class", "torch.optim.sgd.SGD"),
    "scheduler: base_lrs has 2 entries": edit("scheduler/base_lrs", [1.0, 2.0]),
    "scaler: the scaler is enabled here": edit("scaler", {}),
    "counter: state version 1": edit("_objects/counter/version", 1),
    "counter: in the checkpoint, but": lambda tree: edit("_objects/other", tree["_objects"]["counter"])(tree),
    "counter: not in the checkpoint": edit("_objects/counter", None),
    "rng: random stream 'torch'": edit("rng/torch", b"nonsense"),
    "<tree>: not a captured state": edit("_objects", None),
}


@pytest.mark.parametrize("message", sorted(DAMAGE))
def test_what_does_not_fit_is_named_and_nothing_is_touched(message: str) -> None:
    tree = stored(capture(objects()))
    live = objects()
    DAMAGE[message](tree)
    before = everything(live)
    with pytest.raises(SpecMismatchError) as caught:
        restore(live, tree)
    expected = message.replace("counter: in", "other: in")
    assert any(field.startswith(expected) for field in caught.value.fields), caught.value.fields
    assert "or fork" not in caught.value.hint  # it would restore the same objects
    assert everything(live) == before


def test_every_fault_is_listed_at_once() -> None:
    tree = stored(capture(objects(4)))
    with pytest.raises(SpecMismatchError) as caught:
        restore(objects(6), tree)
    assert len(caught.value.fields) > 8 and "more" in str(caught.value)


def test_a_missing_device_stream_is_a_promise_error_before_anything_is_touched() -> None:
    tree = stored(capture(objects()))
    tree["rng"]["cuda:5"] = bytes(16)
    live = objects()
    before = everything(live)
    with pytest.raises(PromiseError):
        restore(live, tree)
    assert everything(live) == before


def test_the_order_is_fixed_and_random_streams_are_last(monkeypatch: pytest.MonkeyPatch) -> None:
    live = objects()
    tree = stored(capture(live))
    written: list[str] = []
    monkeypatch.setattr(capturing, "_write", lambda obj, state, tree, name, *, modes: written.append(name))
    order = restore(dict(reversed(live.items())), tree)
    assert list(order) == written == ["model", "optimizer", "scaler", "scheduler", "counter", "rng"]
    kinds = capturing.kinds(live)
    assert [kinds[name] for name in order] == sorted((kinds[name] for name in order), key=ORDER.index)


def test_an_object_that_fails_while_loading_is_a_restore_error() -> None:
    live = objects()
    tree = stored(capture(live))
    tree["counter"] = {}
    with pytest.raises(RestoreError, match=r"'counter'.*partly restored"):
        restore(live, tree)


def test_an_older_state_is_migrated_before_anything_is_touched() -> None:
    class Newer(Counter):
        state_version = 3

        def migrate_state_dict(self, state: Any, version: int) -> Any:
            assert version == 2
            return {"value": state["value"] * 10}

    tree = stored(capture({"counter": Counter(5)}))
    newer = Newer()
    restore({"counter": newer}, tree)
    assert newer.value == 50


def test_separate_captures_merge_for_one_restore() -> None:
    live = objects()
    shared = {name: obj for name, obj in live.items() if name != "rng"}
    own = {"rng": live["rng"]}
    tree = merge(stored(capture(shared)), stored(capture(own)))
    assert restore(objects(), tree)[-1] == "rng"
    with pytest.raises(UsageError):
        merge(capture(own), capture(own))


def test_tensor_keys_read_like_the_state() -> None:
    keys = set(flatten(capture(objects()), prefix="state").tensors)
    assert {"state/model/0.weight", "state/optimizer/state/0/exp_avg"} <= keys


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(2, 2)
        self.register_buffer("fixed", torch.ones(3), persistent=False)
        self.register_buffer("grown", None, persistent=False)
        self.register_buffer("dropped", torch.ones(1), persistent=False)
        self.register_buffer("kept", torch.ones(2))


def test_non_persistent_buffers_frozen_parameters_and_modes_come_back() -> None:
    model = Cached()
    model.fixed.fill_(3.0)
    model.grown = torch.arange(4.0)
    model.dropped = None  # type: ignore[assignment]
    model.frozen.weight.requires_grad_(False)
    model.frozen.eval()
    assert set(module_extras(model)) == {"fixed", "grown", "dropped"}

    fresh = Cached()
    fixed = fresh.fixed
    restore({"model": fresh}, stored(capture({"model": model})))
    assert fresh.fixed is fixed and torch.equal(fixed, torch.full((3,), 3.0))
    assert torch.equal(fresh.grown, torch.arange(4.0)) and fresh.dropped is None
    assert [p.requires_grad for p in fresh.parameters()] == [False, True]
    assert fresh.training and not fresh.frozen.training
    assert set(fresh.state_dict()) == set(model.state_dict())


def test_moments_wider_than_their_parameter_are_not_rounded() -> None:
    """torch's own load_state_dict casts state to the parameter's dtype."""

    def build() -> tuple[nn.Parameter, torch.optim.Optimizer]:
        parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        return parameter, torch.optim.SGD([parameter], lr=0.1, momentum=0.9)

    moment = torch.tensor([1.0, 1.0 + 2**-20, 3.0, 4.0])
    parameter, optimizer = build()
    optimizer.state[parameter]["momentum_buffer"] = moment.clone()
    optimizer.state[parameter]["history"] = [moment.clone(), None, 3]
    other, fresh = build()
    restore({"optimizer": fresh}, stored(capture({"optimizer": optimizer})))
    assert torch.equal(fresh.state[other]["momentum_buffer"], moment)
    assert torch.equal(fresh.state[other]["history"][0], moment)


def test_module_format_versions_reach_the_loading_module() -> None:
    seen: list[Any] = []

    class Versioned(nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
            seen.append(metadata.get("version"))
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    tree = stored(capture({"model": nn.Sequential(Versioned(2, 2), nn.Linear(2, 2))}))
    restore({"model": nn.Sequential(Versioned(2, 2), nn.Linear(2, 2))}, tree)
    assert seen == [3]


def test_tied_weights_stay_tied() -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    model, fresh = build(), build()
    flat = flatten(capture({"model": model}), prefix="state")
    assert len(flat.tensors) == 3
    restore({"model": fresh}, stored(capture({"model": model})))
    assert fresh[1].weight is fresh[0].weight
    assert torch.equal(fresh[0].weight, model[0].weight)
