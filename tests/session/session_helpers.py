"""A run over a state of one tensor: small enough to be restored hundreds of times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from durable_core.session import Cadence, Run, Settings
from durable_core.session.world import World
from durable_core.spec import RunSpec


def state_at(step: int, size: int = 64) -> dict[str, Any]:
    return {"w": torch.arange(size, dtype=torch.float32) + step, "step": step}


def start(root: str | Path, **settings: Any) -> Run:
    """Open, restore or commit the initial state, confirm."""
    settings.setdefault("cadence", Cadence(1))
    spec = settings.pop("spec", None)
    world = settings.pop("world", None)
    external = settings.pop("external", None)
    run = Run.open(root, settings=Settings(**settings), spec=spec, world=world, external=external)
    if run.fresh:
        run.confirm()
        run.save(state_at(0), {}, step=0, wait=True)
    else:
        run.load()
        run.confirm()
    return run


def train(run: Run, first: int, last: int, *, wait: bool = True) -> None:
    for step in range(first, last + 1):
        run.boundary(step)
        run.save(state_at(step), {}, step=step, wait=wait)


def restored(root: str | Path, **settings: Any) -> tuple[int, dict[str, Any]]:
    """Restore in a new generation; (step, state)."""
    run = Run.open(root, settings=Settings(takeover=True, **settings))
    loaded = run.load()
    run.confirm()
    run.close()
    return loaded.step, loaded.state


def check(step: int, state: dict[str, Any]) -> None:
    assert state["step"] == step
    assert torch.equal(state["w"], state_at(step, state["w"].numel())["w"])


__all__ = ["RunSpec", "World", "check", "restored", "start", "state_at", "train"]
