"""durable status of a run that a controller looks after: slow is told from damaged, old from new (REC-07)."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from controller_world import FakeClock, World

from durable_core.cli.app import run
from durable_core.cli.doctor import Patient, examine
from durable_core.clock import SystemClock
from durable_core.commit import ending
from durable_core.engine import heartbeat
from durable_core.engine.beats import Phase
from durable_core.engine.inspect import open_run
from durable_core.format import canonical, layout
from durable_core.launch.controller import report
from durable_core.launch.machine import GroupPhase


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "root", tmp_path / "dir", clock=FakeClock(time.time()))
    with made.stack:
        yield made


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def durable(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The command line, in this process."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return Outcome(code, capsys.readouterr().out)

    return call


def told(world: World, controller: Any, durable: Any) -> dict[str, Any]:
    controller.step()
    controller.close()
    found = durable("status", world.root, "--json")
    assert found.code == 0
    document: dict[str, Any] = found.document
    return document


def test_a_run_that_does_well(world, durable):
    controller = world.controller()
    world.running(controller)
    world.commit(2)
    document = told(world, controller, durable)
    assert (document["state"], document["health"]["is"]) == ("running", "healthy")
    assert document["newest_durable"]["step"] == 2 and document["recoverable"] == {"disk": 2}
    assert [row["step"] for row in document["controller"]["ranks"]] == [2, 2]
    assert document["budget"]["charged"] == 0 and document["budget"]["restarts"] == 10
    text = durable("status", world.root).out
    assert re.search(r"^reported \d+\.\d s ago; what follows is as it was then$", text, re.MULTILINE)
    assert "healthy" in text and "does not cover" in text and "No alert means" in text


def test_a_straggler_is_slow_and_no_damage(world, durable):
    controller = world.controller()
    world.running(controller)
    for step in range(3, 20):
        world.clock.wall += 0.2
        world.steps(step, own={0: 0.1, 1: 0.2})
        world.group()
        controller.step()
    document = told(world, controller, durable)
    assert (document["state"], document["health"]["is"]) == ("running", "slow")
    (slow,) = document["controller"]["stragglers"]
    assert slow["rank"] == 1 and slow["ratio"] == pytest.approx(2.0)
    assert "slow rank" in durable("status", world.root).out


def violated(document: dict[str, Any]) -> tuple[str, str, str, int | None]:
    first = document["controller"]["violations"][0]
    assert first["since"] <= time.time() + 60 and first["reason"] in document["health"]["because"]
    return document["state"], document["health"]["is"], first["invariant"], first["rank"]


def test_a_hang_breaks_progress(world, durable):
    controller = world.controller()
    world.running(controller)
    world.beat(0, Phase.STEP, 3)
    world.clock.wall += 3.0
    world.group()
    document = told(world, controller, durable)
    assert violated(document) == ("suspect", "damaged", "progress", 1)
    assert document["controller"]["ranks"][1]["exit"] is None, "it lives"
    assert "progress" in durable("status", world.root).out


def test_numbers_that_are_none_break_health(world, durable):
    controller = world.controller()
    world.running(controller)
    world.failed("F12", step=2, culprit=1)
    document = told(world, controller, durable)
    assert violated(document) == ("suspect", "damaged", "health", 1)
    assert len(document["integrity"]["numeric_findings"]) == 1


def test_a_stale_member_breaks_membership(world, durable):
    controller = world.controller()
    world.running(controller)
    world.begin()
    world.group()
    world.steps(9)
    controller.step()
    world.beat(1, Phase.STEP, 10, generation=1)
    assert violated(told(world, controller, durable)) == ("suspect", "damaged", "membership", 1)
    proof = examine(Patient(open_run(world.root), None))[7]
    assert proof.passed is True and "of 1 restarts 1 were proven" in proof.evidence


def test_a_group_that_comes_up_is_not_damaged(world, durable):
    controller = world.controller()
    world.create()
    world.begin()
    world.opened()
    world.group(GroupPhase.STARTING)
    document = told(world, controller, durable)
    assert (document["state"], document["health"]["is"]) == ("starting", "starting")


def test_a_report_that_is_old_is_said_to_be(world, durable):
    world.clock.wall -= 600
    controller = world.controller()
    world.running(controller)
    document = told(world, controller, durable)
    assert document["controller"]["stale"] and document["state"] == "stopped", "no heartbeat either"
    assert "nobody trains it; start the same command" in durable("status", world.root).out
    heartbeat.Heartbeat(world.tier, SystemClock(), "l1", 1, list).beat()
    document = durable("status", world.root, "--json").document
    assert (document["state"], document["health"]["is"]) == ("running", "unknown")
    assert "the controller has not reported for " in document["health"]["because"]
    assert "what follows is old" in durable("status", world.root).out


@pytest.mark.parametrize("drained", [False, True])
def test_a_fresh_report_of_a_launcher_that_was_killed_is_not_believed(world, durable, drained):
    controller = world.controller()
    world.running(controller)
    world.commit(2)
    if drained:
        world.run(ending.drain(world.state_view(), world.token, reason="SIGTERM", step=2))
    assert told(world, controller, durable)["state"] == ("draining" if drained else "running")
    last = report.read(world.tier)
    assert last is not None
    world.tier.put(layout.CONTROLLER_HINT, canonical.dumps({**last.document, "pid": ended_process()}))
    document = durable("status", world.root, "--json").document
    assert (document["state"], document["health"]["is"]) == ("drained" if drained else "stopped", "stopped")
    said = "stopped as planned at step 2" if drained else "nobody trains it"
    assert document["health"]["because"] == f"{said}; start the same command to go on"


def ended_process() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def test_people_are_shown_no_documents(world, durable):
    controller = world.controller()
    world.running(controller)
    further = {"charged": True, "beyond": 7, "action": "restart", "placement": "h"}
    world.failed("F1", step=7, further=further, what="rank 1 was killed by SIGKILL")
    controller.close()
    lines = durable("status", world.root).out.splitlines()
    (row,) = [line for line in lines if "was killed by SIGKILL" in line]
    assert row.split()[2:5] == ["1", "F1", "7"]
    assert not any("{" in line or "evidence=" in line or len(line) > 160 for line in lines), lines
    about_the_run = lines[: next(at for at, line in enumerate(lines) if line.startswith("failed "))]
    assert all(len(line.split()) > 1 for line in about_the_run), "no empty rows"


def test_an_end_needs_no_controller(world, durable):
    controller = world.controller()
    world.running(controller)
    world.cancel()
    document = told(world, controller, durable)
    assert (document["state"], document["health"]["is"]) == ("cancelled", "over")


def test_a_later_launch_without_a_controller_is_not_judged_by_the_old_one(world, durable):
    from durable_core.commit import claim

    controller = world.controller()
    world.running(controller)
    controller.close()
    world.run(claim.claim_generation(world.state_view(), launch_id="plain", members=("dp0",), takeover=True))
    document = durable("status", world.root, "--json").document
    assert document["health"]["is"] == "stopped" and document["controller"] is None


def test_failures_burn_a_budget_and_progress_forgives_them(world, durable):
    controller = world.controller()
    world.running(controller)
    world.commit(5)
    world.failed("F1", step=7, further={"charged": True, "beyond": 7, "action": "restart", "placement": "h"})
    world.begin()
    budget = told(world, controller, durable)["budget"]
    assert (budget["unforgiven"], budget["charged"], budget["by_class"]) == (1, 1, {"F1": 1})
    world.commit(9)
    assert durable("status", world.root, "--json").document["budget"]["charged"] == 0
