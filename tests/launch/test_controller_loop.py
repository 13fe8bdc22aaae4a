"""The controller over real files: what it says, asks and stores, one look at a time, with time by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from controller_world import LIMITS, TERMS, World

from durable_core.engine import words
from durable_core.engine.beats import Phase
from durable_core.errors import Fenced, TierUnavailable
from durable_core.format.record import Kind
from durable_core.launch.controller import report
from durable_core.launch.controller.__main__ import parser, settings_of
from durable_core.launch.controller.loop import AFTER_S
from durable_core.launch.liveness import Limits
from durable_core.launch.machine import GroupPhase
from durable_core.spec import Goal, RecoveryGoals, RunSpec
from durable_core.spec.codec import encode

STACK = """Current thread 0x0000000000000001 (most recent call first):
  File "/x/train.py", line 3 in stuck
  File "/x/train.py", line 9 in <module>
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "root", tmp_path / "dir")
    with made.stack:
        yield made


def test_nothing_is_done_before_there_is_a_run(world):
    controller = world.controller()
    controller.step()
    world.create()
    controller.step()
    assert world.records()[-1].kind is Kind.RUN_CREATED, "the workers have not opened it yet"
    world.opened()
    controller.step()
    assert world.records()[-1].kind is Kind.CONTROLLER_CLAIMED


def test_a_group_comes_up_through_every_state(world):
    controller = world.controller()
    world.create()
    world.begin()
    world.opened()
    controller.step()
    assert world.states() == [], "STARTING is what the claim says"
    world.group()
    for rank in (0, 1):
        world.beat(rank, Phase.RESTORE)
        controller.step()
    assert world.states() == ["restoring"]
    world.beat(0, Phase.STEP, 0)
    controller.step()
    assert world.states() == ["restoring"], "one of two has restored"
    world.steps(1)
    controller.step()
    assert world.states() == ["restoring", "probation"]
    world.steps(2)
    controller.step()
    assert world.states() == ["restoring", "probation", "running"]
    controller.step()
    assert len(world.records(Kind.RUN_STATE)) == 3


def test_steps_that_came_all_between_two_looks_are_made_up_for(world):
    controller = world.controller()
    world.create()
    world.begin()
    world.opened()
    world.group()
    world.steps(50)
    controller.step()
    assert world.states() == ["restoring", "probation", "running"]


def test_running_counts_steps_from_the_restore_point(world):
    controller = world.controller()
    world.running(controller)
    world.commit(40)
    world.begin()
    world.group()
    world.steps(41)
    controller.step()
    assert world.states()[-1] == "probation"
    world.steps(42)
    controller.step()
    assert world.states()[-1] == "running"


def stall(world, controller, seconds=3.0):
    """Rank 1 stands still at step 2 in STEP, rank 0 waits for it in the next."""
    world.beat(0, Phase.STEP, 3)
    world.clock.wall += seconds
    world.group()
    controller.step()


def test_a_hang_is_suspected_diagnosed_and_then_ended(world):
    controller = world.controller()
    world.running(controller)
    stall(world, controller)
    assert world.states()[-1] == "suspect"
    (dump,) = world.requests()
    assert dump.kind == "dump" and dump.generation == 1
    world.files.stacks(1).write_text(STACK)
    world.clock.wall += 4.0
    world.group()
    controller.step()
    assert world.states()[-1] == "fencing"
    restart = next(request for request in world.requests() if request.kind == "restart")
    assert restart.failure == "F5" and restart.evidence["stall"]["rank"] == 1
    assert restart.evidence["stall"]["frames"] == ["train.py:<module>", "train.py:stuck"]
    (bundle,) = world.incidents()
    assert restart.evidence["incident"] == bundle
    document = json.loads(world.tier.get(bundle))
    assert "train.py" in document["stacks"]["1"] and document["beats"]["1"]["step"] == 2
    for _ in range(3):
        controller.step()
    assert len(world.requests()) == 2 and len(world.incidents()) == 1


def test_a_process_that_lives_and_stands_still_breaks_progress_and_not_membership(world):
    controller = world.controller()
    world.running(controller)
    stall(world, controller)
    found = latest(world, controller)["violations"]
    assert {(one["invariant"], one["confirmed"]) for one in found} == {("progress", False)}
    assert found[0]["rank"] == 1 and found[0]["since"] < found[1]["since"] < world.clock.now()


def test_who_has_no_room_for_beats_is_not_taken_for_hanging(world):
    controller = world.controller()
    world.create()
    world.begin()
    world.opened()
    world.group()
    world.files.mute(1).touch()
    for step in range(4):
        world.beat(0, Phase.STEP, step)
        controller.step()
    world.clock.wall += 2 * TERMS.join_s
    world.beat(0, Phase.STEP, 9)
    world.group()
    controller.step()
    assert world.states()[-1] == "running" and not world.requests()


def test_no_room_for_a_request_is_told_and_looked_past(world, monkeypatch):
    controller = world.controller()
    world.running(controller)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("durable_core.launch.controller.loop.ask", full)
        stall(world, controller)
        assert "No space left" in controller.trouble
    controller.step()
    assert controller.trouble == "" and [request.kind for request in world.requests()] == ["dump"]


def test_a_suspicion_is_lifted(world):
    controller = world.controller()
    world.running(controller)
    stall(world, controller)
    for step in (3, 4, 5):
        world.clock.wall += 0.6
        world.steps(step)
        world.group()
        controller.step()
    assert world.states()[-2:] == ["suspect", "running"]
    assert [request.kind for request in world.requests()] == ["dump"]


def test_nothing_is_ended_before_its_stacks_were_asked_for(world):
    """Far beyond the hard limit at the first look, as after a pause of the store."""
    controller = world.controller()
    world.running(controller)
    stall(world, controller, 29.0)
    controller.step()
    assert world.states()[-1] == "suspect"
    world.clock.wall += 1.0
    world.group()
    controller.step()
    assert world.states()[-1] == "fencing"


def test_what_comes_and_goes_does_not_fill_the_journal(world):
    controller = world.controller()
    world.running(controller)
    stall(world, controller)
    world.steps(4)
    controller.step()
    assert world.states()[-1] == "suspect", "not at once"


def test_every_suspicion_of_a_generation_is_one_of_its_own(world):
    controller = world.controller()
    world.running(controller)
    for step in (3, 6):
        stall(world, controller)
        for _ in range(3):
            world.clock.wall += 0.5
            world.steps(step)
            world.group()
            controller.step()
    assert world.states()[-4:] == ["suspect", "running"] * 2
    said = world.records(Kind.RUN_STATE)
    assert len({record.op_id for record in said}) == len(said)
    assert [request.kind for request in world.requests()] == ["dump"] * 2


def test_a_silent_agent_is_suspected_and_its_group_left_alone(world):
    """FENCE-05, DETECT-02: one missed report or two are nothing, several a suspicion, none of them an end."""
    controller = world.controller()
    world.running(controller)
    world.group()
    for seconds in range(1, 40):
        world.clock.wall += 1.0
        world.steps(2 + seconds)
        controller.step()
        assert world.states()[-1] == ("running" if seconds <= 5 else "suspect")
    assert world.requests() == []
    assert "has not reported" in latest(world, controller)["violations"][0]["reason"]


def test_a_stale_member_is_named(world):
    controller = world.controller()
    world.running(controller)
    world.begin()
    world.group()
    world.steps(9)
    controller.step()
    assert world.states()[-1] == "running"
    world.beat(1, Phase.STEP, 10, generation=1)
    controller.step()
    (violation,) = latest(world, controller)["violations"]
    assert violation["invariant"] == "membership" and violation["rank"] == 1
    assert "of generation 1, not 2" in violation["reason"]


def test_wrong_numbers_are_a_matter_of_health_while_the_group_trains_on(world):
    controller = world.controller()
    world.running(controller)
    world.failed("F12", step=2, culprit=1)
    world.steps(3)
    controller.step()
    (violation,) = latest(world, controller)["violations"]
    assert (violation["invariant"], violation["rank"], violation["failure"]) == ("health", 1, "F12")
    assert world.states()[-1] == "suspect" and world.requests() == []


@pytest.mark.parametrize(
    ("goal", "words"), [({"rpo_steps": 4}, "5 steps"), ({"rpo_seconds": 3.0}, "for 4 s")]
)
def test_more_at_risk_than_declared_breaks_durability(world, goal, words):
    controller = world.controller()
    recovery = RecoveryGoals(goals=(Goal("process", rpo_steps=1), Goal("host", **goal)))
    world.running(controller, spec=encode(RunSpec(seed=1, recovery=recovery)))
    world.commit(2)
    world.clock.wall += 1.0
    world.steps(6)
    world.group()
    controller.step()
    assert world.states()[-1] == "running"
    world.clock.wall += 3.0 - (0.5 if "rpo_steps" in goal else 0.0)
    world.steps(7)
    world.group()
    controller.step()
    (violation,) = latest(world, controller)["violations"]
    assert violation["invariant"] == "durability" and words in violation["reason"]
    assert world.states()[-1] == "suspect" and world.requests() == []


def test_a_straggler_damages_nothing_and_is_shown(world):
    controller = world.controller()
    world.running(controller)
    for step in range(3, 20):
        world.clock.wall += 0.5
        world.steps(step, own={0: 0.1, 1: 0.2 + step / 10_000})
        world.group()
        controller.step()
    assert world.states()[-1] == "running"
    document = latest(world, controller)
    (slow,) = document["stragglers"]
    assert slow["rank"] == 1 and slow["ratio"] > 1.9 and document["violations"] == []


def test_a_crash_that_the_agent_was_quicker_with_leaves_a_bundle(world):
    controller = world.controller()
    world.running(controller)
    words.write(world.files.words(1), words.Words("ValueError", "password=hunter2secret\nno such thing"))
    controller.step()
    op_id = world.failed("F1", step=2)
    world.begin()
    world.group(GroupPhase.STARTING)
    controller.step()
    assert world.incidents() == [f"incidents/g000001-{op_id}.json"]
    text = world.tier.get(world.incidents()[0]).decode()
    assert "no such thing" in text and "hunter2secret" not in text
    assert json.loads(text)["beats"]["0"]["step"] == 2


def test_a_crash_seen_while_it_is_handled_goes_through_the_states(world):
    controller = world.controller()
    world.running(controller)
    world.exits[1] = -9
    world.group(GroupPhase.STOPPING)
    controller.step()
    world.failed("F1", step=2)
    world.group(GroupPhase.BACKOFF)
    controller.step()
    assert world.states()[-3:] == ["fencing", "diagnosing", "backoff"]
    assert world.requests() == []
    world.begin()
    world.group()
    world.steps(1)
    controller.step()
    assert world.states()[-2:] == ["restoring", "probation"]


def test_a_planned_stop_is_no_failure(world):
    controller = world.controller()
    world.running(controller)
    world.group(GroupPhase.DRAINING, reason="SIGTERM")
    controller.step()
    assert world.states()[-1] == "draining"
    world.exits = {0: 75, 1: 75}
    world.group(GroupPhase.STOPPED)
    controller.step()
    assert world.states()[-3:] == ["draining", "fencing", "diagnosing"]
    assert world.requests() == [] and world.incidents() == []


def test_a_drain_that_does_not_end_is_ended(world):
    controller = world.controller()
    world.running(controller)
    world.group(GroupPhase.DRAINING)
    controller.step()
    for step in range(3, 60):
        world.clock.wall += 0.5
        world.steps(step)
        world.group(GroupPhase.DRAINING)
        controller.step()
    assert world.states()[-1] == "fencing"
    assert [(request.kind, request.failure) for request in world.requests()] == [("restart", "F4")]


def test_members_that_never_join_are_given_up(world):
    controller = world.controller()
    world.create()
    world.begin()
    world.opened()
    controller.step()
    world.beat(0, Phase.RESTORE)
    world.clock.wall += 31.0
    world.group(GroupPhase.STARTING)
    controller.step()
    assert world.states() == ["fencing"]
    restart = next(request for request in world.requests() if request.kind == "restart")
    assert restart.failure == "F18" and "1 of 2" in restart.reason


def test_a_cancelled_group_is_asked_to_stop_after_the_record(world):
    controller = world.controller()
    world.running(controller)
    world.cancel()
    controller.step()
    controller.step()
    (request,) = world.requests()
    assert (request.kind, request.failure) == ("restart", "F19")
    assert latest(world, controller)["state"] == "cancelled"
    assert world.records()[-1].kind is Kind.RUN_CANCELLED, "nothing is said after the end"


def test_success_is_the_end(world):
    controller = world.controller()
    world.running(controller)
    world.commit(9)
    world.succeed()
    controller.step()
    assert latest(world, controller)["state"] == "succeeded" and world.requests() == []


@pytest.mark.parametrize(("ended", "limit"), [(True, LIMITS.exit.hard_s), (False, AFTER_S)])
def test_who_does_not_end_after_the_success_is_ended(world, ended, limit):
    """A script that goes on may well evaluate, or export."""
    controller = world.controller()
    world.running(controller)
    if ended:
        world.files.ended(0).touch()
    world.commit(9)
    world.succeed()
    controller.step()
    world.clock.wall += limit - 1
    controller.step()
    assert world.requests() == []
    world.clock.wall += 2
    controller.step()
    controller.step()
    (request,) = world.requests()
    assert (request.kind, request.generation) == ("restart", 1) and "does not end" in request.reason


def test_a_second_controller_takes_over_and_the_first_stops(world):
    first, second = world.controller(), world.controller()
    world.running(first)
    second.step()
    with pytest.raises(Fenced):
        first.step()
    stall(world, second)
    assert world.states()[-1] == "suspect"
    assert world.records()[-1].epoch == second.office.epoch


def test_maintenance_by_others_costs_no_controller_its_office(world):
    from durable_core.commit import claim

    controller = world.controller()
    world.running(controller)
    world.commit(5)
    world.run(claim.mark_corrupt(world.state_view(), 0, launch_id="scrubber", reason="rot"))
    stall(world, controller)
    assert world.states()[-1] == "suspect"


def test_a_launch_that_was_superseded_keeps_no_controller(world):
    from durable_core.commit import claim

    controller = world.controller()
    world.running(controller)
    world.run(
        claim.claim_generation(world.state_view(), launch_id="other", members=("dp0", "dp1"), takeover=True)
    )
    with pytest.raises(Fenced):
        controller.step()


def test_trouble_with_the_store_is_told_and_looked_past(world, monkeypatch):
    controller = world.controller()
    world.running(controller)

    def broken(*_):
        raise TierUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(controller.office, "state", broken)
        stall(world, controller)
        assert controller.trouble == "no answer" and world.states()[-1] == "running"
    controller.step()
    assert controller.trouble == "" and world.states()[-1] == "suspect"


def test_quarantines_that_agents_decided_are_recorded_once(world):
    controller = world.controller()
    world.running(controller)
    world.failed("F5", quarantine=[{"unit": "node", "name": "host1"}, {"unit": "data", "name": "a.bin"}])
    controller.step()
    controller.step()
    found = [record.payload for record in world.records(Kind.QUARANTINE)]
    assert [(line["unit"], line["name"]) for line in found] == [("node", "host1"), ("data", "a.bin")]


def fail_in_probation(world, controller, failure):
    world.begin()
    world.group()
    for rank in (0, 1):
        world.beat(rank, Phase.RESTORE)
    controller.step()
    world.failed(failure, step=41)
    world.group(GroupPhase.BACKOFF)
    controller.step()


@pytest.mark.parametrize(("failure", "demoted"), [("F13", [1]), ("F12", [1]), ("F1", [])])
def test_a_restore_that_is_disproved_twice_costs_the_checkpoint_its_trust(world, failure, demoted):
    controller = world.controller()
    world.running(controller)
    world.commit(20)
    world.commit(40)
    fail_in_probation(world, controller, failure)
    assert world.state.checkpoints[1].usable, "once is chance"
    fail_in_probation(world, controller, failure)
    assert [c for c, info in world.state.checkpoints.items() if not info.usable] == demoted
    assert world.begin() and world.state.restore_point == (0 if demoted else 1)


def test_the_last_checkpoint_is_never_demoted(world):
    controller = world.controller()
    world.running(controller)
    world.commit(40)
    for _ in range(3):
        fail_in_probation(world, controller, "F13")
    assert world.state.checkpoints[0].usable


def test_a_mismatch_keeps_a_restore_on_probation(world):
    """VERIF-04: that the process is up proves nothing."""
    controller = world.controller()
    world.running(controller)
    world.begin()
    world.group()
    world.steps(0)
    controller.step()
    world.failed("F13", step=1)
    for step in range(1, 9):
        world.steps(step)
        controller.step()
    assert world.states()[-1] == "probation"
    assert latest(world, controller)["violations"][0]["invariant"] == "health"


def test_a_straggler_is_drained_once_if_declared(world):
    controller = world.controller(evict=True)
    world.running(controller)
    for step in range(3, 20):
        world.clock.wall += 0.5
        world.steps(step, own={0: 0.1, 1: 0.2})
        world.group()
        controller.step()
    (request,) = world.requests()
    assert (request.kind, request.failure) == ("drain", "F6")
    assert request.evidence["unfit"]["place"] == "host0" and request.evidence["unfit"]["rank"] == 1
    assert world.states()[-1] == "draining"


def latest(world, controller):
    """The report, once it is written."""
    controller.close()
    found = report.read(world.tier)
    assert found is not None
    return found.document


def test_a_group_may_take_as_long_to_join_as_one_member_may_to_build_or_restore(tmp_path):
    def join_s(*flags: str) -> float:
        return settings_of(parser().parse_args([str(tmp_path), "--launch-id", "l", *flags])).terms.join_s

    assert join_s() == Limits().restore.hard_s
    assert join_s("--init-limit", "7200") == 7200.0
    assert join_s("--init-limit", "5", "--restore-limit", "6", "--join", "9") == 9.0


def test_whoever_was_stopped_with_the_whole_group_takes_nothing_for_a_hang_at_its_first_look(world):
    controller = world.controller()
    world.running(controller)
    stall(world, controller, 3600.0)  # SIGSTOP to all, or a machine that slept
    assert world.states()[-1] == "running" and not world.requests()
    for _ in range(3):
        stall(world, controller)
    assert world.states()[-1] == "fencing", "it stands still indeed"
