"""An error ends one member of a group whose other one is dead: what waits for that one holds nothing up."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from durable_core import DurableSession
from durable_core.session import World, plain

#: Far below the 300 s that a commit waits for another writer.
LIMIT_S = 60.0


def test_a_commit_that_waits_for_the_dead_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "PEERS_S", 0.1)
    world = World("dp0", ("dp0", "dp1"), lambda value: value, lambda value: [value, value])
    model = torch.nn.Linear(2, 2)
    ended: list[BaseException] = []

    def member() -> None:
        state: dict[str, Any] = {"model": model}
        monkeypatch.setattr(DurableSession, "_begin", lambda self, seed: self.run.confirm())
        try:
            with DurableSession.open(tmp_path, state=state, every_n_steps=1, world=world) as session:
                session.save()  # the other never gives its receipt
                raise RuntimeError("Connection closed by peer")
        except RuntimeError as error:
            ended.append(error)

    thread = threading.Thread(target=member, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert [str(error) for error in ended] == ["Connection closed by peer"]
