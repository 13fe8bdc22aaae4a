"""durable audit on real runs: resumed ones pass, a planted loader that skips or repeats fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import BATCH, EPOCHS, SIZE, Durable, train

from durable_core import DurableSession
from durable_core.cli import output
from durable_core.data import DurableLoader


def test_the_published_shape(root: Path, durable: Durable) -> None:
    found = durable("audit", root, "--json")
    assert found.code == 0
    wanted = {"steps": 10, "samples": SIZE * EPOCHS, "repeated": 0, "skipped": 0}
    assert wanted.items() <= found.document.items()
    assert sum(found.document["by_source"].values()) == SIZE * EPOCHS
    assert found.document["ids_checked"] and found.document["unverified"]
    assert "exactly once" in durable("audit", root).out


@pytest.mark.parametrize("stop", [1, 4, 6, 8])
def test_a_resumed_run_passes(tmp_path: Path, durable: Durable, stop: int) -> None:
    train(tmp_path / "run", steps=stop)
    train(tmp_path / "run")
    found = durable("audit", tmp_path / "run", "--json").document
    assert (found["ok"], found["samples"], found["steps"]) == (True, SIZE * EPOCHS, 10)


def test_retirement_takes_nothing_from_the_audit(root: Path, durable: Durable) -> None:
    before = durable("audit", root, "--json").document
    durable("gc", root, "--keep-last", 1)
    assert durable("audit", root, "--json").document == before


def test_a_dataset_with_an_identity_is_verified(tmp_path: Path, durable: Durable) -> None:
    loader = DurableLoader(list(range(SIZE)), batch_size=BATCH, seed=0, dataset_id="sha256:" + "0" * 64)
    with DurableSession.open(tmp_path / "run", state={"loader": loader}):
        pass
    assert durable("audit", tmp_path / "run", "--json").document["unverified"] is False


class Crooked:
    """Ledger rows as a loader would leave them that fetched something else than was due."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.seen: list[Any] = []

    def __call__(self, row: Any) -> Any:
        self.seen.append(row)
        if len(self.seen) != 4:
            return row
        if self.fault == "skips":
            return replace(row, ids=(row.ids + 1) % SIZE)
        assert self.fault == "repeats"
        return replace(row, ids=self.seen[0].ids)


@pytest.mark.parametrize("fault", ["skips", "repeats"])
def test_a_planted_fault_fails(
    tmp_path: Path, durable: Durable, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    crooked, drain_rows = Crooked(fault), DurableLoader.drain_rows
    monkeypatch.setattr(DurableLoader, "drain_rows", lambda self: tuple(map(crooked, drain_rows(self))))
    train(tmp_path / "run")
    found = durable("audit", tmp_path / "run", "--json")
    assert found.code == output.FAILED and not found.document["ok"]
    assert found.document["skipped"] == found.document["repeated"] > 0
    assert "FAILED" in durable("audit", tmp_path / "run").out
    assert durable("verify", tmp_path / "run").code == 0, "the bytes are as they were written"


def test_steps_without_a_ledger_are_not_proven(tmp_path: Path, durable: Durable) -> None:
    model = torch.nn.Linear(2, 2)
    with DurableSession.open(tmp_path / "run", state={"model": model}, every_n_steps=1) as session:
        session.step()
        session.flush()
    found = durable("audit", tmp_path / "run", "--json")
    assert found.code == output.FAILED and "left no ledger" in found.document["notes"][0]
    assert "NOT PROVEN" in durable("audit", tmp_path / "run").out


def test_a_run_that_has_not_begun_has_nothing_to_answer_for(tmp_path: Path, durable: Durable) -> None:
    loader = DurableLoader(list(range(SIZE)), batch_size=BATCH, seed=0)
    with DurableSession.open(tmp_path / "run", state={"loader": loader}):
        pass
    found = durable("audit", tmp_path / "run", "--json")
    assert (found.code, found.document["steps"], found.document["samples"]) == (0, 0, 0)
    said = durable("audit", tmp_path / "run").out
    assert "nothing was trained yet" in said and "exactly once" not in said


@pytest.mark.parametrize("name", ["dp0.safetensors", "index.json"])
def test_a_damaged_ledger_proves_nothing(root: Path, durable: Durable, name: str) -> None:
    victim = next(root.glob(f"ledger/*-c00000001-*/{name}"))
    victim.chmod(0o644)
    victim.write_bytes(victim.read_bytes()[:-1] + b"\x07")
    found = durable("audit", root, "--json")
    assert found.code == output.CORRUPT
    assert found.document["error"]["key"] == victim.relative_to(root).as_posix()


def test_a_damaged_manifest_takes_only_its_cursor(root: Path, durable: Durable) -> None:
    for manifest in root.glob("checkpoints/*/manifest.json"):
        manifest.chmod(0o644)
        manifest.write_bytes(b"{}")
    found = durable("audit", root, "--json")
    assert found.code == 0 and not found.document["ids_checked"]
    assert any("cursor" in note for note in found.document["notes"])
