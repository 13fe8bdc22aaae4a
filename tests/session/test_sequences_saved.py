"""A mixture, packs and a buffer through real commits: what a restart finds, and what the manifest says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from durable_core import DurableSession
from durable_core.data import DurableLoader, Mixture, Packing
from durable_core.data.shuffle import BufferedShuffle
from durable_core.session.saving import split_position


class Documents:
    def __init__(self, name: str, size: int) -> None:
        self.dataset_id = f"sha256:{name}"
        self.lengths = np.array([1 + i * 5 % 9 for i in range(size)])
        self.blocks = np.full(size // 5, 5)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return np.full(self.lengths[index], index)


def mixed(**more: Any) -> Mixture:
    sources = {"a": Documents("a", 30), "b": Documents("b", 20)}
    return Mixture(sources, {"a": 0.7, "b": 0.3}, **more)


LOADERS: dict[str, Any] = {
    "mixture": lambda: DurableLoader(mixed(unit="document"), 2, packing=Packing(12), seed=3),
    "rows": lambda: DurableLoader(mixed(unit="packed"), 2, packing=Packing(12, "best_fit"), seed=3),
    "buffer": lambda: DurableLoader(
        Documents("c", 25), 2, order=BufferedShuffle(7), packing=Packing(8), seed=3
    ),
}


def life(root: Path, kind: str, steps: int) -> tuple[list[Any], Any]:
    """The batches that one process trains from the last committed step on, and where it leaves the loader."""
    loader = LOADERS[kind]()
    model = nn.Linear(1, 1)
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loader": loader}
    seen: list[Any] = []
    with DurableSession.open(root, state=state, every_n_steps=1000) as run:
        while len(seen) < steps:
            for batch in loader:
                seen.append(batch["input_ids"].tolist())
                run.step()
                if len(seen) == steps:
                    break
        run.save(wait=True)
    return seen, loader.state_dict()


@pytest.mark.parametrize("kind", LOADERS)
def test_lives_one_after_another_train_what_one_would(tmp_path: Path, kind: str) -> None:
    whole, _ = life(tmp_path / "whole", kind, 12)
    parts = [life(tmp_path / "parts", kind, steps)[0] for steps in (3, 5, 4)]
    assert [batch for part in parts for batch in part] == whole


def test_what_a_mixture_has_drawn_stays_with_the_cursor_and_a_streams_state_with_its_role() -> None:
    loader = LOADERS["mixture"]()
    position, role = split_position(loader.state_dict(), {"mine": 1})
    assert position is not None and set(position) >= {"plan", "source", "epoch"}
    assert role == {"own": {"mine": 1}, "position": {}}
    stream = {"epoch": 0, "source": {"workers": 1, "state": object()}}
    position, role = split_position(stream, None)
    assert position == {"epoch": 0} and set(role["position"]) == {"source"}
