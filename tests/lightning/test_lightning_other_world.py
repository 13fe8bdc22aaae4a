"""A fit goes on with another number of processes, its accumulation rescaled: each step keeps its samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning_subject as subject
import pytest
import torch
from lightning_check import run_life
from lightning_subject import Case, Notes, at_line, lines

from durable_core.engine.audit import audit
from durable_core.engine.inspect import open_run
from durable_core.types import CheckpointState, Promise


class Dry(subject.Plain):
    """Without dropout, whose masks are each replica's own; it tells what it has learnt."""

    def __init__(self, case: Case, notes: Notes) -> None:
        super().__init__(case, notes)
        self.drop = torch.nn.Identity()

    def on_train_end(self) -> None:
        learnt = torch.cat([p.detach().flatten() for p in self.parameters()]).tolist()
        self.notes.write("learnt", weights=learnt)


class DryNormed(Dry):
    """With statistics that differ between the replicas."""

    def __init__(self, case: Case, notes: Notes) -> None:
        super().__init__(case, notes)
        self.first = torch.nn.Sequential(torch.nn.Linear(subject.WIDTH, 12), torch.nn.BatchNorm1d(12))


subject.MODULES.update(Dry=Dry, DryNormed=DryNormed)
EXACT = {"promise": "exact-order"}
TWO = Case("Dry", samples=48, epochs=2, every=1, durable=EXACT)  # 2 processes x 4 samples
ONE = replace(TWO, accumulate=2)  # 1 process x 4 samples x 2


def life(
    home: Path, name: str, case: Case, world: int, kill: tuple[str, int] | None = None
) -> dict[int, list[int]]:
    """Step -> the ids of all its processes together, sorted."""
    strikes = {} if kill is None else {world - 1: at_line(*kill)}
    codes = run_life(case, home, name, world, strikes)
    output = (home / "output").read_text()[-3000:]
    assert codes == [0] * world if kill is None else codes[world - 1] == -9, output
    found: dict[int, list[int]] = {}
    for rank in range(world):
        for line in lines(home, "batch", log=f"{name}{rank}"):
            found.setdefault(line["step"], []).extend(line["ids"])
    return {step: sorted(ids) for step, ids in found.items()}


def test_two_processes_one_and_two_again(tmp_path: Path) -> None:
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    whole.mkdir(), changed.mkdir()
    expected = life(whole, "log", TWO, 2)
    found = life(changed, "a", TWO, 2, ("batch", 4))
    found |= life(changed, "b", ONE, 1, ("batch", 10))  # within an accumulation
    found |= life(changed, "c", TWO, 2)
    assert list(expected) == list(range(12)) and found == expected
    report = audit(open_run(changed / "run"))
    assert report.sound and report.consumption.ids_checked, report.to_json()
    assert (report.consumption.repeated, report.consumption.skipped) == (0, 0)
    learnt = [
        lines(home, "learnt", log=log)[0]["weights"] for home, log in ((whole, "log0"), (changed, "c0"))
    ]
    assert learnt[1] == pytest.approx(learnt[0], rel=1e-3, abs=1e-5)
    assert "is of dp0, dp1 and goes on with dp0" in (changed / "output").read_text()


def test_a_finished_epoch_with_a_short_batch_is_finished_in_the_new_size(tmp_path: Path) -> None:
    """44 samples: 6 batches of 8 and less, or 11 of 4."""
    case = replace(TWO, samples=44, epochs=1)
    found = life(tmp_path, "a", case, 2)
    found |= life(tmp_path, "b", replace(case, accumulate=2, epochs=2), 1)
    whole = tmp_path / "whole"
    whole.mkdir()
    assert found == life(whole, "a", replace(case, epochs=2), 2)
    assert audit(open_run(tmp_path / "run")).sound


def test_statistics_of_the_first_replica_go_on_in_the_open(tmp_path: Path) -> None:
    case = replace(TWO, kind="DryNormed", epochs=1)
    life(tmp_path, "a", case, 2, ("batch", 4))
    life(tmp_path, "b", replace(case, accumulate=2), 1)
    output = (tmp_path / "output").read_text()
    assert "of dp0 alone: " in output and "first.1.running_mean" in output


def test_bits_are_not_promised_over_a_change_of_processes(tmp_path: Path) -> None:
    case = replace(TWO, epochs=1, durable={})
    life(tmp_path, "a", case, 2, ("batch", 4))
    assert run_life(replace(case, accumulate=2), tmp_path, "b", 1, {}) == [1]
    output = (tmp_path / "output").read_text()
    assert "SpecMismatchError" in output and 'go on with promise="exact-order"' in output
    reader = open_run(tmp_path / "run")
    assert not any(info.state is CheckpointState.CORRUPT for info in reader.state.checkpoints.values())
    life(tmp_path, "c", replace(case, accumulate=2, durable=EXACT), 1)
    reader = open_run(tmp_path / "run")
    assert reader.state.promise is Promise.EXACT_ORDER and audit(reader).sound
    lowered: list[Any] = [e.record.payload for e in reader.entries() if e.record.kind == "promise.lowered"]
    assert len(lowered) == 1 and "roles was 'dp0, dp1' and is 'dp0'" in lowered[0]["reason"]
