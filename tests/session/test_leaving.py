"""What a process does with the others of its run, and what it compares, when it leaves its block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from durable_core import DurableSession
from durable_core.session import World


def test_a_block_left_with_everything_durable_waits_for_nobody(tmp_path: Path) -> None:
    """Another process may have raised, or left before: what is asked of it is never answered."""
    asked: list[Any] = []

    def all_gather(value: Any) -> list[Any]:
        asked.append(value)
        return [value]

    world = World("dp0", ("dp0",), lambda value: value, all_gather)
    model = torch.nn.Linear(1, 1)
    with DurableSession.open(tmp_path, state={"model": model}, world=world, every_n_steps=1) as session:
        session.step()
        session.flush()
        asked.clear()
    assert asked == []
    with DurableSession.open(tmp_path, state={"model": model}, world=world, every_n_steps=100) as session:
        session.step()
        asked.clear()
    assert "" in asked
