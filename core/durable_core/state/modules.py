"""L3. Modules: what ``state_dict`` holds, and what it leaves out although later updates depend on it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_DEFAULT_VERSION = 1


def read(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The module's ``state_dict`` (qualified name -> live tensor or extra state), and what it does not say:
    frozen parameters, submodules in eval mode, format versions other than 1."""
    state = module.state_dict()
    versions = getattr(state, "_metadata", {})
    facts = {
        "frozen": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        "eval": [name for name, child in module.named_modules() if not child.training],
        "versions": {
            name: entry["version"]
            for name, entry in sorted(versions.items())
            if entry.get("version", _DEFAULT_VERSION) != _DEFAULT_VERSION
        },
    }
    return dict(state), facts


def module_extras(module: nn.Module) -> dict[str, Tensor | None]:
    """Non-persistent buffers by fully qualified name; ``state_dict`` omits them, updates may not."""
    return {
        f"{prefix}.{name}" if prefix else name: child._buffers[name]
        for prefix, child in module.named_modules()
        for name in sorted(child._non_persistent_buffers_set)
        if name in child._buffers
    }


def problems(module: nn.Module, state: Any, extras: Mapping[str, Any]) -> Iterator[str]:
    """What keeps ``state`` and ``extras`` from being loaded, one line each; nothing is changed."""
    if not isinstance(state, dict):
        yield "its state is not a dict"
        return
    live = module.state_dict()
    for name in sorted({*live, *state}):
        if name not in live or name not in state:
            yield f"{name} is only in the {'checkpoint' if name in state else 'model'}"
        else:
            yield from _misfit(name, live[name], state[name])
    owners = dict(module.named_modules())
    for name, value in extras.items():
        owner, _, attribute = name.rpartition(".")
        if owner not in owners or not attribute:
            yield f"buffer {name} belongs to no submodule of the model"
        elif value is not None and not isinstance(value, Tensor):
            yield f"buffer {name} is not a tensor"


def write(
    module: nn.Module, state: dict[str, Any], extras: Mapping[str, Any], said: Mapping[str, Any], *,
    modes: bool = True,
) -> None:  # fmt: skip
    """Load in place: parameters and buffers keep their identity, so optimizers keep their references.
    ``modes``: what is frozen and what is evaluated becomes as it was, too."""
    loading: OrderedDict[str, Any] = OrderedDict(state)
    versions = said.get("versions", {})
    loading._metadata = {  # type: ignore[attr-defined]
        name: {"version": versions.get(name, _DEFAULT_VERSION)}
        for name, _ in module.named_modules(remove_duplicate=False)
    }
    module.load_state_dict(loading, strict=True)
    _write_extras(module, extras)
    if not modes:
        return
    frozen, evaluating = set(said.get("frozen", ())), set(said.get("eval", ()))
    for name, parameter in module.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)
    for name, child in module.named_modules():
        child.training = name not in evaluating


def _write_extras(module: nn.Module, extras: Mapping[str, Any]) -> None:
    owners = dict(module.named_modules())
    first = next(module.parameters(), None)
    for name, value in extras.items():
        owner_name, _, attribute = name.rpartition(".")
        owner = owners[owner_name]
        current = owner._buffers.get(attribute)
        if value is None:
            owner.register_buffer(attribute, None, persistent=False)
        elif current is not None and current.shape == value.shape and current.dtype == value.dtype:
            with torch.no_grad():
                current.copy_(value)
        else:  # a cache that forward creates or grows
            like = current if current is not None else first
            device = like.device if like is not None else value.device
            owner.register_buffer(attribute, value.to(device, copy=True), persistent=False)


def _misfit(name: str, live: Any, stored: Any) -> Iterator[str]:
    if isinstance(live, Tensor) != isinstance(stored, Tensor):
        yield f"{name} is a tensor only in the {'model' if isinstance(live, Tensor) else 'checkpoint'}"
    elif isinstance(live, Tensor) and (live.shape != stored.shape or live.dtype != stored.dtype):
        yield f"{name} is {_words(stored)} in the checkpoint and {_words(live)} in the model"


def _words(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
