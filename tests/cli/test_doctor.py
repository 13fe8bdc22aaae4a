"""The checklist of ten lines: each passes on evidence, and each can fail by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from durable_core import DurableSession, RunSpec
from durable_core.cli import doctor
from durable_core.cli.doctor import Patient, examine
from durable_core.clock import SystemClock
from durable_core.commit import claim
from durable_core.data import DurableLoader
from durable_core.engine.inspect import open_run
from durable_core.engine.performer import Performer
from durable_core.errors import TierUnavailable
from durable_core.format import canonical, layout
from durable_core.launch.machine import State
from durable_core.tier.posix import PosixTier

NOW = 1_900_000_000.0
DRILLS = ("full-disk", "read-only", "hang", "straggler", "preemption", "controller-kill")


def train(root: Path, steps: int, spec: RunSpec | None = None, data: bool = True) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DurableLoader(TensorDataset(torch.randn(64, 4)), batch_size=4, seed=1)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if data:
        state["loader"] = loader
    with DurableSession.open(root, state=state, every_n_steps=2, spec=spec) as run:
        for (batch,) in loader:
            if run.steps >= steps:
                break
            model(batch).sum().backward()
            optimizer.step()
            run.step()


def told(patient: Patient) -> dict[int, bool | None]:
    return {line.number: line.passed for line in examine(patient)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was restarted once, and proven by a controller."""
    home = tmp_path_factory.mktemp("doctor") / "run"
    spec = RunSpec.from_json({
        **RunSpec().to_json(), "checkpoint": {**RunSpec().to_json()["checkpoint"], "rpo_steps": 10},
        "failure": {"collective_timeout_seconds": 60.0},
    })  # fmt: skip
    train(home, 4, spec)
    train(home, 8, spec)
    performer = Performer(PosixTier(home), SystemClock())
    payload = {"state": State.RUNNING.value, "reason": "2 steps were verified", "evidence": {}}
    view, epoch = performer.run(claim.claim_controller(open_run(home).view, "controller", reconciles=True))
    performer.run(
        claim.enter(view, payload, launch_id="controller", epoch=epoch, generation=2, op_id="0" * 32)
    )
    document = {"v": 1, "time": NOW, "generation": 2, "agents": {"0": {"standbys": 1}}}
    performer.tier.put(layout.CONTROLLER_HINT, canonical.dumps(document))
    return home


@pytest.fixture
def patient(root: Path) -> Patient:
    reader = open_run(root)
    drills = {name: {"passed": True, "time": NOW - 3600} for name in DRILLS}
    return Patient(reader, reader.manifest(reader.newest_usable()), drills, NOW)


def test_a_run_that_has_everything_passes_all_ten_lines(patient: Patient) -> None:
    assert {line.number: line.evidence for line in examine(patient) if line.passed is not True} == {}


def without(name: str) -> Callable[[Patient], Patient]:
    return lambda patient: replace(
        patient, drills={drill: row for drill, row in patient.drills.items() if drill != name}
    )


def failed(name: str) -> Callable[[Patient], Patient]:
    return lambda patient: replace(patient, drills={**patient.drills, name: {"passed": False, "time": NOW}})


def no_manifest(patient: Patient) -> Patient:
    return replace(patient, manifest=None)


def no_objects(patient: Patient) -> Patient:
    assert patient.manifest is not None
    return replace(patient, manifest=replace(patient.manifest, objects=()))


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (1, no_manifest),
        (2, no_objects),
        (4, without("full-disk")),
        (5, failed("hang")),
        (6, without("preemption")),
        (9, lambda patient: replace(patient, now=NOW + 8 * 86400)),
        (9, failed("kill-in-compute")),
        (10, failed("controller-kill")),
    ],
)
def test_each_line_fails_when_its_evidence_is_gone(
    patient: Patient, line: int, change: Callable[[Patient], Patient]
) -> None:
    assert told(change(patient))[line] is False


def test_a_store_that_cannot_prove_its_primitive_fails_the_third_line(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: PosixTier) -> None:
        raise TierUnavailable("no hard links here")

    monkeypatch.setattr(PosixTier, "probe", broken)
    assert told(patient)[3] is False


def test_no_standby_fails_the_seventh_line_unless_the_spec_waives_it(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_report", lambda patient: None)
    assert told(patient)[7] is False


def test_a_restart_that_nobody_proved_fails_the_eighth_line(tmp_path: Path) -> None:
    train(tmp_path / "run", 4)
    train(tmp_path / "run", 8)
    reader = open_run(tmp_path / "run")
    assert told(Patient(reader, reader.manifest(reader.newest_usable())))[8] is False


def test_a_run_without_its_data_position_fails_the_first_line(tmp_path: Path) -> None:
    train(tmp_path / "run", 4, data=False)
    reader = open_run(tmp_path / "run")
    line = examine(Patient(reader, reader.manifest(reader.newest_usable())))[0]
    assert line.passed is False
    assert "no data position" in line.evidence


def test_what_was_never_tried_is_not_shown_and_what_failed_is_a_failure(patient: Patient) -> None:
    untried = {line.number: line for line in examine(replace(patient, drills={}))}
    assert (untried[10].passed, untried[10].shown) == (False, False)
    assert "--record ROOT" in untried[10].hint and "--record ROOT" in untried[6].hint
    failed = {"controller-kill": {"passed": False, "time": NOW}}
    assert {line.number: line.shown for line in examine(replace(patient, drills=failed))}[10]
