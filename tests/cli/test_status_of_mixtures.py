"""durable status: what the newest checkpoint's mixture was to draw and has drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runs import Durable, manifests

from durable_core import DurableSession
from durable_core.data import DurableLoader, Mixture

BATCH, STEPS = 10, 12


class Documents:
    def __init__(self, name: str, size: int, tokens: int) -> None:
        self.dataset_id = f"sha256:{name}"
        self.lengths = np.full(size, tokens)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> int:
        return index


def trained(root: Path, steps: int = STEPS, **how: Any) -> Path:
    sources = {"code": Documents("code", 90, 30), "prose": Documents("prose", 50, 10)}
    mixture = Mixture(sources, {"code": 0.75, "prose": 0.25}, **how)
    loader = DurableLoader(mixture, BATCH, seed=3)
    state = {"model": torch.nn.Linear(1, 1), "loader": loader}
    with DurableSession.open(root, state=state, every_n_steps=1000) as session:
        for _ in loader:
            session.step()
            if session.steps == steps:
                break
        session.save(wait=True)
    return root


def test_target_and_draws_of_each_source(tmp_path: Path, durable: Durable) -> None:
    root = trained(tmp_path / "run")
    found = durable("status", root, "--json").document["mixture"]
    assert {name: (s["target"], s["share"], s["draws"], s["tokens"]) for name, s in found.items()} == {
        "code": (0.75, 0.75, 90, None),
        "prose": (0.25, 0.25, 30, None),
    }
    lines = durable("status", root).out.splitlines()
    assert [line.split()[:4] for line in lines[-2:]] == [
        ["code", "75.00%", "75.00%", "90"],
        ["prose", "25.00%", "25.00%", "30"],
    ]


def test_tokens_where_those_are_weighed(tmp_path: Path, durable: Durable) -> None:
    found = durable("status", trained(tmp_path / "run", unit="token"), "--json").document["mixture"]
    for name, length in (("code", 30), ("prose", 10)):
        assert found[name]["tokens"] == found[name]["draws"] * length and found[name]["unit"] == "token"
    assert found["code"]["share"] == pytest.approx(0.75, abs=0.01)


def test_a_source_that_ran_out_is_marked(tmp_path: Path, durable: Durable) -> None:
    root = trained(tmp_path / "run", exhaustion="renormalize", steps=13)  # 90 of code are drawn by then
    found = durable("status", root, "--json").document["mixture"]
    assert {name: (s["removed"], s["draws"], s["target"]) for name, s in found.items()} == {
        "code": (True, 90, 0.0),
        "prose": (False, 40, 1.0),
    }
    assert "ran out" in durable("status", root).out.splitlines()[-2]


def test_without_a_mixture_nothing_is_said(root: Path, durable: Durable) -> None:
    assert "mixture" not in durable("status", root, "--json").document


def test_a_manifest_that_cannot_be_read_is_told_and_the_rest_is_shown(root: Path, durable: Durable) -> None:
    manifests(root)[-1].write_bytes(b"{")
    found = durable("status", root, "--json")
    assert found.code == 0 and found.document["unreadable"] and found.document["step"] == 10
    assert "unreadable" in durable("status", root).out
