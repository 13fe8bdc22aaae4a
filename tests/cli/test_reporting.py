"""durable report: failure statistics from the journal, against histories whose figures are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import Durable

from durable_core.cli.report import Line, tally
from durable_core.clock import SystemClock
from durable_core.commit import claim, ending
from durable_core.commit.journal import EMPTY
from durable_core.commit.state import CheckpointInfo, Failure, Life, RunState
from durable_core.engine.performer import Performer
from durable_core.launch.causes import Origin
from durable_core.launch.classes import F
from durable_core.launch.classify import Verdict
from durable_core.launch.retry import Policy, decide, record
from durable_core.tier.posix import PosixTier
from durable_core.types import CheckpointState, Promise


class Made:
    """A run as its journal would tell it."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.rows: list[CheckpointInfo] = []
        self.failures: list[Failure] = []

    def begin(self, at: float, restore: int | None = None, drained: int | None = None) -> None:
        self.lives.append(Life(len(self.lives) + 1, at, restore_point=restore, drain_step=drained))

    def commit(self, at: float, step: int) -> None:
        g, c = len(self.lives), len(self.rows)
        self.rows.append(CheckpointInfo(c, step, g, None, "0" * 8, CheckpointState.COMMITTED, seq=1, time=at))

    def fail(self, at: float, failure: str, step: int | None, **more: object) -> None:
        payload = {"class": failure, "signature": "s", "evidence": {}, "step": step, "charged": True, **more}
        self.failures.append(Failure(0, len(self.lives), "0" * 32, payload, at))

    def state(self) -> RunState:
        base = RunState(run_id="r", generation=len(self.lives))
        checkpoints, lives, failures = base.checkpoints, base.lives, base.failures
        for info in self.rows:
            checkpoints = checkpoints.added(info)
        for life in self.lives:
            lives = lives.append(life)
        for one in self.failures:
            failures = failures.append(one)
        return RunState(
            run_id="r", generation=len(self.lives), checkpoints=checkpoints, lives=lives, failures=failures
        )


def lines(
    made: Made, trained: dict[int, float] | None = None, launches: dict[int, str] | None = None
) -> dict[str, Line]:
    return {line.failure: line for line in tally(made.state(), trained or {}, launches or {})}


def test_counts_shares_and_times() -> None:
    made = Made()
    made.begin(0.0)
    made.commit(100.0, 10)
    made.fail(150.0, "F1", 14, detect_s=0.2)
    made.begin(155.0, restore=0)
    made.commit(160.0, 11)
    made.fail(400.0, "F5", 30, detect_s=9.0)
    made.begin(410.0, restore=1)
    made.commit(420.0, 31)
    made.fail(700.0, "F1", 40, detect_s=0.4)
    made.begin(701.0, restore=2)
    found = lines(made, {4: 720.0}, {1: "a", 2: "a", 3: "a", 4: "b"})
    crash, hang = found["F1"], found["F5"]
    assert (crash.count, crash.title, hang.count) == (2, "process crash", 1)
    assert crash.share == pytest.approx(2 / 3)
    assert crash.detect_s == pytest.approx(0.3) and hang.detect_s == 9.0
    assert crash.repair_s == pytest.approx((10.0 + 20.0) / 2) and hang.repair_s == 20.0
    assert (crash.automatic, hang.automatic) == (0.5, 1.0)
    assert (crash.lost_steps, hang.lost_steps) == ((14 - 10) + (40 - 31), 30 - 11)
    assert list(found) == ["F1", "F5"], "the most frequent first"


def test_a_generation_that_was_replaced_without_a_record_is_counted_as_such() -> None:
    made = Made()
    made.begin(0.0)
    made.commit(5.0, 3)
    made.begin(9.0, restore=0)
    (line,) = lines(made).values()
    assert (line.failure, line.title, line.count, line.repair_s) == ("", "not recorded", 1, None)
    assert line.lost_steps is None, "nobody said how far it had come"
    made.commit(12.0, 7)
    made.begin(20.0, restore=0)
    assert lines(made)[""].lost_steps == 7 - 3, "that much is known"


def test_a_generation_that_another_launch_took_over_is_told_as_that() -> None:
    made = Made()
    made.begin(0.0)
    made.commit(5.0, 3)
    made.begin(9.0, restore=0)
    (line,) = tally(made.state(), {}, {1: "a", 2: "b"}, {1})
    assert (line.failure, line.title, line.automatic) == ("takeover", "taken over by another launch", 0.0)


def test_a_planned_stop_and_what_workers_say_of_themselves_are_no_failures() -> None:
    made = Made()
    made.begin(0.0, drained=4)
    made.commit(5.0, 4)
    made.failures.append(
        Failure(0, 1, "0" * 32, {"class": "F10", "signature": "s", "evidence": {}, "step": 2}, 3.0)
    )
    made.begin(9.0, restore=0)
    assert lines(made) == {}


def test_the_last_failure_counts_although_nothing_follows() -> None:
    made = Made()
    made.begin(0.0)
    made.fail(10.0, "F16", None)
    (line,) = lines(made).values()
    assert (line.count, line.repair_s, line.automatic, line.lost_steps, line.mtbf_s) == (
        1,
        None,
        None,
        0,
        10.0,
    )


def test_of_several_records_of_a_generation_the_last_is_its_end() -> None:
    made = Made()
    made.begin(0.0)
    made.fail(10.0, "F5", 3)
    made.fail(11.0, "F1", 3)
    assert list(lines(made)) == ["F1"]


# --- at the command line ---------------------------------------------------------------------


def test_a_run_without_failures(durable: Durable, root: Path) -> None:
    found = durable("report", root, "--json")
    assert found.code == 0
    assert found.document["classes"] == [] and found.document["interruptions"] == 0
    assert "nothing has failed" in durable("report", root).out


def test_a_journal_with_a_failure_as_a_launcher_records_it(durable: Durable, tmp_path: Path) -> None:
    root = tmp_path / "run"
    performer = Performer(PosixTier(root), SystemClock())
    digest = "sha256:" + "0" * 64
    view = performer.run(
        claim.create_run(
            EMPTY, launch_id="a", run_id="r", spec={}, spec_digest=digest, seed=0, promise=Promise.BITWISE
        )
    )
    first = performer.run(claim.claim_generation(view, launch_id="a", members=("dp0",)))
    verdict = Verdict(F.F1, "s", 5, 0, "it was killed", (), Origin.OUTSIDE, "host-a")
    state = first.view.state
    decision = decide(state, verdict, Policy(), jitter=0.5, now=0.0)
    fields = record(state, verdict, decision)
    more = {name: fields[name] for name in ("action", "charged", "placement", "onset")}
    view = performer.run(
        ending.record_failure(
            first.view, first.token, failure_class=fields["failure"], signature=fields["signature"],
            evidence=fields["evidence"], step=fields["step"], further={**fields["further"], **more},
        )
    )  # fmt: skip
    performer.run(claim.claim_generation(view, launch_id="a", members=("dp0",)))
    found = durable("report", root, "--json").document
    (line,) = found["classes"]
    assert (line["failure"], line["count"], line["share"], line["automatic"]) == ("F1", 1, 1.0, 1.0)
    assert "process crash" in durable("report", root).out


def test_without_a_run(durable: Durable, tmp_path: Path) -> None:
    assert durable("report", tmp_path).code == 3
