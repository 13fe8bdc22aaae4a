"""A run spec in the launcher's terms."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from durable_core.clock import SystemClock
from durable_core.commit.state import Failure, Life, RunState
from durable_core.commit.vector import Vector
from durable_core.launch.agent.flags import parse
from durable_core.launch.agent.terms import Terms
from durable_core.launch.classes import TABLE, F, Retry, Unit
from durable_core.launch.declared import limits, policy, spent
from durable_core.launch.retry import Policy
from durable_core.session.world import collective_timeout
from durable_core.spec import Budgets, FailurePolicy, RunSpec, pairs, runfile
from durable_core.spec.sections import CLASSES, NEVER_RETRIED


def test_what_is_not_declared_is_the_launchers_own() -> None:
    assert policy(RunSpec()) == Policy(declared=False), "the same delays and budgets with a run file"
    assert policy(RunSpec(failure=FailurePolicy(max_restarts=3))).declared


def test_what_is_declared_decides() -> None:
    failure = FailurePolicy(
        max_restarts=3,
        retries=pairs({"F1": 2}),
        backoff_seconds=0.5,
        backoff_max_seconds=8,
        repeat_threshold=4,
        quarantine=("node", "data"),
    )  # fmt: skip
    found = policy(RunSpec(failure=failure, budgets=Budgets(wall_seconds=60)))
    assert (found.restarts, found.budgets, found.repeats_elsewhere) == (3, {F.F1: 2}, 4)
    assert found.quarantine == {Unit.NODE, Unit.DOMAIN, Unit.DATA, Unit.CHECKPOINT}
    assert (found.backoff_s, found.backoff_max_s, found.limits) == (0.5, 8.0, {"wall_s": 60.0})


@pytest.mark.parametrize(
    ("declared", "asked", "of_run", "of_launch"),
    [(None, None, 10, None), (None, 0, 10, 0), (None, 50, 50, 50), (3, None, 3, None), (3, 0, 3, 0),
     (3, 50, 3, 50)],
)  # fmt: skip
def test_a_flag_binds_its_launch_and_the_run_file_the_run(
    declared: int | None, asked: int | None, of_run: int, of_launch: int | None
) -> None:
    flags = parse([*(() if asked is None else ("--max-restarts", str(asked))), "train.py"], lambda: "id")
    spec = RunSpec(failure=FailurePolicy(max_restarts=declared))
    found = Terms(flags, runfile.Declared(spec, {})).policy(RunState())
    assert (found.restarts, found.launch_restarts) == (of_run, of_launch)


def test_every_budget_has_what_it_is_held_against() -> None:
    budgets = Budgets(
        device_hours=1, wall_seconds=1, cost=1, currency="EUR", device_hour_price=3, failures=1, lost_steps=1
    )
    used = spent(budgets, device_hours=2, wall_seconds=4, failures=5, lost_steps=6)
    assert used.keys() == limits(budgets).keys() and used["cost"] == 6


def test_the_classes_that_a_spec_may_budget_are_those_that_are_retried() -> None:
    assert tuple(F) == CLASSES
    assert {F(name) for name in NEVER_RETRIED} == {f for f, row in TABLE.items() if row.retry is Retry.NONE}


@pytest.mark.parametrize("name", sorted(NEVER_RETRIED))
def test_a_budget_for_the_others_is_refused(name: str) -> None:
    with pytest.raises(Exception, match="never tried again"):
        FailurePolicy(retries=pairs({name: 1}))


def test_workers_are_told_the_timeout_that_the_run_file_declares(tmp_path: Path) -> None:
    example = Path(__file__).parents[1] / "spec" / "run.yaml"
    text = example.read_text().replace("failure:\n", "failure:\n  collective_timeout_seconds: 90\n")
    (tmp_path / "run.yaml").write_text(text)
    terms = Terms.of(parse(["--spec", str(tmp_path / "run.yaml"), "train.py"], lambda: "id"), tmp_path)
    assert collective_timeout(terms.told) == timedelta(seconds=90)
    assert runfile.load(terms.told["DURABLE_SPEC"]).owner == "pretraining"
    told = terms.policy(RunState())
    assert told.restarts == 8 and told.budgets[F.F5] == 3
    silent = Terms.of(parse(["train.py"], lambda: "id"), tmp_path)
    assert "DURABLE_COLLECTIVE_TIMEOUT_S" not in silent.told and "DURABLE_SPEC" not in silent.told


def test_what_lies_between_a_stop_and_the_next_start_is_charged_to_no_budget(tmp_path: Path) -> None:
    week = 7 * 86400.0
    lives = Vector[Life]().append(Life(1, 0.0, members=("dp0",))).append(Life(2, week, members=("dp0",)))
    payload = {"class": "F1", "signature": "s", "evidence": {}, "step": 1}
    ends = [Failure(at, at + 1, f"{at:032x}", payload, time) for at, time in enumerate((61.0, week + 9.0))]
    failures = Vector[Failure]().append(ends[0]).append(ends[1])
    run = RunState(run_id="r", generation=2, lives=lives, failures=failures)
    used = Terms.of(parse(["train.py"], lambda: "id"), tmp_path).spent(SystemClock())(run)
    assert (used["wall_s"], used["device_hours"]) == (70.0, 70 / 3600)


def test_a_run_that_is_started_again_without_its_run_file_keeps_its_budgets(tmp_path: Path) -> None:
    spec = RunSpec(failure=FailurePolicy(max_restarts=1), budgets=Budgets(wall_seconds=60))
    run = RunState(run_id="r", generation=1, spec=spec.to_json())
    terms = Terms.of(parse(["train.py"], lambda: "id"), tmp_path)
    assert terms.policy(run).restarts == 1 and terms.policy(run).limits == {"wall_s": 60.0}
    assert terms.policy(RunState()).restarts == Policy().restarts, "before it is known"
    other = RunState(run_id="r", spec={"v": 10**6})
    assert terms.policy(other).restarts == Policy().restarts, "another version's"
