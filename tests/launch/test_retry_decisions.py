"""What is done about a failure: budgets, repetition, backoff, and that a loop always ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_core.commit.state import CheckpointInfo, Failure, Life, RunState
from durable_core.errors import UsageError
from durable_core.launch.causes import Origin
from durable_core.launch.classes import TABLE, F, Unit
from durable_core.launch.classify import Verdict
from durable_core.launch.evidence import Numeric
from durable_core.launch.past import finding, past
from durable_core.launch.quarantine import unrecorded
from durable_core.launch.retry import AGAIN, Action, Decision, Policy, Quarantine, decide, record, suspects
from durable_core.types import CheckpointState

FAST = Policy(restarts=5, backoff_s=1.0, backoff_max_s=8.0, jitter="none")


class Story:
    """A run in the making: what its journal would hold."""

    def __init__(self, policy: Policy = FAST) -> None:
        self.policy = policy
        self.now = 0.0
        self.state = RunState(run_id="r", generation=1, launch_id="l", active=True)
        self.state = replace(self.state, lives=self.state.lives.append(Life(1, 0.0)))

    def commit(self, step: int) -> None:
        state = self.state
        info = CheckpointInfo(
            state.next_c, step, state.generation, state.head, "0" * 8, CheckpointState.COMMITTED, seq=1
        )
        self.state = replace(state, checkpoints=state.checkpoints.added(info), head=info.c)

    def decide(self, verdict: Verdict, jitter: float = 0.0, **spent: float) -> Decision:
        return decide(self.state, verdict, self.policy, jitter=jitter, now=self.now, spent=spent)

    def record(self, verdict: Verdict, by: str = "") -> Decision:
        decision = decide(self.state, verdict, self.policy, jitter=0.0, now=self.now, by=by)
        fields = record(self.state, verdict, decision, by)
        payload = {
            **fields["further"], "class": fields["failure"], "signature": fields["signature"],
            "evidence": fields["evidence"], "step": fields["step"], "action": fields["action"],
            "charged": fields["charged"], "placement": fields["placement"], "onset": fields["onset"],
        }  # fmt: skip
        line = Failure(len(self.state.failures), self.state.generation, "0" * 32, payload, self.now)
        self.state = replace(self.state, failures=self.state.failures.append(line))
        return decision

    def fail(self, verdict: Verdict, by: str = "") -> Decision:
        """Decided, recorded, and a new generation started if that is the decision."""
        decision = self.record(verdict, by)
        if decision.again:
            self.next_generation()
        return decision

    def next_generation(self) -> None:
        g = self.state.generation + 1
        self.state = replace(self.state, generation=g, lives=self.state.lives.append(Life(g, self.now)))


def of(failure: F, step: int | None = 5, place: str = "a", sign: str = "", origin: Origin = Origin.OUTSIDE,
       domain: str = "", **more: str) -> Verdict:  # fmt: skip
    return Verdict(
        failure, sign or f"{failure.value}@{step}", step, 0, "it broke", (), origin, place, domain, **more
    )


# --- what each class leads to ----------------------------------------------------------------

FIRST = [
    (F.F1, Action.RESTART, True), (F.F2, Action.REPLACE, True), (F.F3, Action.REQUEUE, True),
    (F.F4, Action.REQUEUE, False), (F.F5, Action.RESTART, True), (F.F6, Action.REPLACE, False),
    (F.F7, Action.FAIL, False), (F.F8, Action.RESTART, True), (F.F9, Action.RESTART, True),
    (F.F10, Action.RESTART, True), (F.F11, Action.RESTART, True), (F.F12, Action.REPLACE, True),
    (F.F13, Action.REPLACE, True), (F.F14, Action.STOP, False), (F.F15, Action.CONTINUE, False),
    (F.F16, Action.STOP, False), (F.F17, Action.RESTART, True), (F.F18, Action.REQUEUE, True),
    (F.F19, Action.STOP, False), (F.F20, Action.CONTINUE, False),
]  # fmt: skip


@pytest.mark.parametrize(("failure", "action", "charged"), FIRST, ids=[row[0].value for row in FIRST])
def test_the_first_failure_of_each_class(failure: F, action: Action, charged: bool) -> None:
    decision = Story().decide(of(failure))
    assert (decision.action, decision.charged, decision.failure) == (action, charged, failure)
    assert decision.reason == "it broke"
    assert decision.exit_code == (0 if action is Action.CONTINUE else TABLE[failure].exit_code)


def test_the_first_restart_in_place_does_not_wait_and_one_elsewhere_does() -> None:
    assert Story().decide(of(F.F1)).delay_s == 0
    assert Story().decide(of(F.F18)).delay_s == 1.0


def test_a_failure_that_leaves_nothing_to_restore_stops_and_leaves_the_run_to_a_person() -> None:
    decision = Story().decide(of(F.F11, hopeless="every candidate failed"))
    assert (decision.action, decision.exit_code) == (Action.STOP, 5)
    assert "every candidate failed" in decision.reason


# --- backoff ---------------------------------------------------------------------------------


def test_it_waits_twice_as_long_each_time_up_to_a_limit() -> None:
    story = Story(replace(FAST, restarts=20))
    assert [story.fail(of(F.F1, sign=str(i))).delay_s for i in range(7)] == [0, 1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(
    ("jitter", "least", "most"), [("equal", 2.0, 4.0), ("full", 0.0, 4.0), ("none", 4.0, 4.0)]
)
def test_jitter(jitter: str, least: float, most: float) -> None:
    story = Story(replace(FAST, jitter=jitter))
    for i in range(3):
        story.fail(of(F.F1, sign=str(i)))
    delays = [story.decide(of(F.F1, sign="x"), jitter=u / 16).delay_s for u in range(16)]
    assert delays == sorted(delays)
    assert delays[0] == least and (most * 15 / 16 <= delays[-1] <= most)


def test_very_many_failures_do_not_overflow() -> None:
    story = Story(replace(FAST, restarts=3000))
    story.fail(of(F.F1, sign="0"))
    (line,) = story.state.failures
    for i in range(1, 1500):  # as if decided one by one, which takes long
        again = replace(line, generation=i + 1, payload={**line.payload, "signature": str(i)})
        story.state = replace(story.state, failures=story.state.failures.append(again))
        story.next_generation()
    assert story.decide(of(F.F1, sign="x")).delay_s == 8.0


# --- the budget ------------------------------------------------------------------------------


def test_a_loop_without_progress_ends_at_the_budget_by_its_name() -> None:
    story = Story()
    decisions = [story.fail(of(F.F1, sign=str(i))) for i in range(6)]
    assert [d.action for d in decisions] == [Action.RESTART] * 5 + [Action.FAIL]
    assert decisions[-1].reason.startswith("budget_exceeded:restarts (5 of 5")


def test_a_budget_that_nobody_declared_ends_the_launch_and_not_the_run() -> None:
    story = Story(replace(Story().policy, declared=False))
    decisions = [story.fail(of(F.F1, sign=str(i))) for i in range(6)]
    assert decisions[-1].action is Action.STOP and decisions[-1].exit_code == 1


def test_progress_beyond_the_failure_forgives_it_and_less_does_not() -> None:
    story = Story()
    story.fail(of(F.F1, step=5))
    story.commit(5)
    assert not past(story.state)[0].forgiven
    story.commit(6)
    assert past(story.state)[0].forgiven
    assert story.decide(of(F.F1, step=9)).delay_s == 0


def test_what_the_failed_generation_had_committed_itself_forgives_nothing() -> None:
    story = Story()
    story.commit(9)
    story.fail(of(F.F1, step=5))
    assert not past(story.state)[0].forgiven


def test_a_failure_at_no_known_step_is_forgiven_beyond_the_head_of_then() -> None:
    story = Story()
    story.commit(4)
    story.fail(of(F.F1, step=None))
    assert [one.beyond for one in past(story.state)] == [4]
    story.commit(5)
    assert past(story.state)[0].forgiven


@pytest.mark.parametrize("failure", [F.F4, F.F6])
def test_what_is_planned_runs_out_only_without_progress(failure: F) -> None:
    story = Story(replace(FAST, restarts=0))
    for step in range(40):
        assert story.fail(of(failure, step=step)).again
        story.commit(step + 1)
    decisions = [story.fail(of(failure, step=50)) for _ in range(11)]
    assert all(decision.again and not decision.charged for decision in decisions[:10])
    assert (decisions[10].action, decisions[10].exit_code) == (Action.STOP, 1), "the run can be started again"
    assert decisions[10].reason.startswith(f"budget_exceeded:{failure.value} (10 of 10")


def test_what_a_launch_may_restart_ends_it_before_the_run_is_lost() -> None:
    story = Story(replace(FAST, launch_restarts=1))
    same = of(F.F1, sign="s", origin=Origin.UNKNOWN)
    assert story.fail(same).again
    last = story.fail(same)
    assert (last.action, last.failure, last.exit_code) == (Action.STOP, F.F1, 1), (
        "the same twice is F7, later"
    )
    assert last.reason.startswith("--max-restarts 1: 1 used")
    assert story.decide(of(F.F6)).again, "what is charged to nobody is not counted here either"
    story.policy = FAST
    assert story.decide(same).failure is F.F7, "without the flag the run's own rules hold"


def test_a_class_s_own_budget() -> None:
    story = Story(replace(FAST, budgets={F.F5: 1}))
    assert story.fail(of(F.F5, sign="x")).again
    last = story.fail(of(F.F5, sign="y"))
    assert last.action is Action.FAIL and last.reason.startswith("budget_exceeded:F5 (1 of 1")
    assert story.decide(of(F.F1)).again


def test_what_has_been_spent() -> None:
    story = Story(replace(FAST, limits={"wall_s": 100.0, "lost_steps": 50}))
    assert story.decide(of(F.F1), wall_s=99.0, lost_steps=49).again
    for name, value in (("wall_s", 100.0), ("lost_steps", 50)):
        decision = story.decide(of(F.F1), **{name: value})
        assert decision.action is Action.FAIL and decision.reason.startswith(f"budget_exceeded:{name} (")
    assert story.decide(of(F.F14), wall_s=1e9).action is Action.STOP, "a fenced launcher judges nothing"


def test_what_workers_record_of_themselves_is_not_counted() -> None:
    story = Story()
    payload = {"class": "F10", "signature": "s", "evidence": {}, "step": 3, "action": "stop"}
    story.state = replace(
        story.state, failures=story.state.failures.append(Failure(0, 1, "0" * 32, payload, 0.0))
    )
    assert past(story.state) == ()


# --- repetition ------------------------------------------------------------------------------


def test_the_same_on_two_placements_is_not_tried_a_third_time() -> None:
    story = Story()
    assert story.fail(of(F.F1, sign="s", origin=Origin.INSIDE, place="a")).again
    last = story.fail(of(F.F1, sign="s", origin=Origin.INSIDE, place="b"))
    assert (last.action, last.failure, last.charged) == (Action.FAIL, F.F7, False)
    assert "2 placements (a, b)" in last.reason


def test_the_same_three_times_where_there_is_no_other_placement() -> None:
    story = Story()
    decisions = [story.fail(of(F.F1, sign="s", origin=Origin.INSIDE)) for _ in range(3)]
    assert [d.failure for d in decisions] == [F.F1, F.F1, F.F7]


def test_another_step_is_another_failure() -> None:
    story = Story()
    for step in range(4):
        assert story.fail(of(F.F1, step=step, origin=Origin.INSIDE, place=str(step))).again


def test_progress_forgets_repetitions() -> None:
    story = Story()
    story.fail(of(F.F1, sign="s", origin=Origin.INSIDE, place="a"))
    story.commit(6)
    assert story.decide(of(F.F1, sign="s", origin=Origin.INSIDE, place="b")).again


def test_kills_by_others_and_echoes_prove_nothing() -> None:
    for origin in (Origin.OUTSIDE, Origin.SECONDARY):
        story = Story()
        assert all(story.fail(of(F.F1, sign="s", origin=origin, place=str(i))).again for i in range(5))


@pytest.mark.parametrize("failure", [F.F9, F.F11, F.F12, F.F13])
def test_what_objects_and_machines_repeat_does_not_prove_the_program_wrong(failure: F) -> None:
    story = Story()
    found = [story.fail(of(failure, sign="s", origin=Origin.INSIDE, place=str(i))).failure for i in range(4)]
    assert F.F7 not in found


def test_the_unknown_is_tried_again_once() -> None:
    story = Story()
    assert story.fail(of(F.F1, sign="s", origin=Origin.UNKNOWN)).again
    last = story.fail(of(F.F1, sign="s", origin=Origin.UNKNOWN))
    assert (last.action, last.failure) == (Action.STOP, F.F7), "a doubt ends no run"


def test_memory_that_runs_out_again_is_the_program_s() -> None:
    story = Story()
    assert story.fail(of(F.F8, sign="x")).action is Action.RESTART
    last = story.fail(of(F.F8, sign="y"))
    assert (last.action, last.failure) == (Action.FAIL, F.F7)


def test_hangs_that_are_equal_end_the_launch_and_not_the_run() -> None:
    """A loop that validates without a hook stands still too, and is healthy."""
    story = Story()
    decisions = [story.fail(of(F.F5, sign="s", origin=Origin.INSIDE)) for _ in range(3)]
    assert [decision.action for decision in decisions] == [Action.RESTART, Action.RESTART, Action.STOP]
    assert decisions[-1].exit_code == 1


def test_a_hang_is_nobody_s_until_it_comes_back_to_the_same_place() -> None:
    story = Story()
    assert story.fail(of(F.F5, step=1)).quarantine == ()
    assert story.fail(of(F.F5, step=2, place="b")).quarantine == ()
    assert story.fail(of(F.F5, step=3)).quarantine == (Quarantine(Unit.NODE, "a"),)


def test_a_data_object_is_fetched_again_twice_and_is_then_left_out() -> None:
    story = Story()
    decisions = [story.fail(of(F.F9, object="s/1.tar")) for _ in range(3)]
    assert [d.action for d in decisions] == [Action.RESTART, Action.RESTART, Action.FAIL]
    assert decisions[-1].quarantine == (Quarantine(Unit.DATA, "s/1.tar"),)


def test_the_image_is_left_out_of_a_program_that_fails_everywhere() -> None:
    story = Story(replace(FAST, image="img"))
    decisions = [story.fail(of(F.F5, place=place, sign="hang", origin=Origin.INSIDE)) for place in ("a", "b")]
    assert (decisions[-1].action, decisions[-1].quarantine) == (Action.STOP, (Quarantine(Unit.IMAGE, "img"),))
    assert decisions[-1].told.endswith("in quarantine from now on: image img")


def test_what_the_run_file_does_not_name_is_not_left_out() -> None:
    story = Story(replace(FAST, quarantine=frozenset(Unit) - {Unit.NODE}))
    decision = story.fail(of(F.F2, place="a"))
    assert decision.quarantine == () and "failure.quarantine does not name" in decision.reason
    story.fail(of(F.F12, step=7, place="a"))
    story.commit(8)
    assert suspects(story.state) and not list(unrecorded(story.state, story.policy.quarantine))
    assert story.fail(of(F.F9, object="s/1.tar")).quarantine == (Quarantine(Unit.DATA, "s/1.tar"),)


# --- numeric ---------------------------------------------------------------------------------


def test_a_fault_that_its_replay_reproduces_is_the_data_s() -> None:
    story = Story()
    once = story.fail(of(F.F12, step=7, sign="nan"))
    assert (once.action, once.onset) == (Action.REPLACE, 7)
    twice = story.fail(of(F.F12, step=7, sign="nan", place="b"))
    assert (twice.action, twice.failure) == (Action.FAIL, F.F12)
    assert "reproduced" in twice.reason and twice.quarantine == ()


def test_a_fault_that_its_replay_does_not_reproduce_is_the_machine_s() -> None:
    story = Story()
    story.fail(of(F.F12, step=7, place="a"))
    assert suspects(story.state) == ()
    later = story.fail(of(F.F12, step=9, place="b"))
    assert (later.failure, later.onset) == (F.F13, 7)
    assert later.quarantine == (Quarantine(Unit.NODE, "a"), Quarantine(Unit.NODE, "b"))


def test_a_replay_that_came_past_the_step_points_to_the_node_of_then() -> None:
    story = Story()
    story.fail(of(F.F12, step=7, place="a"))
    story.commit(7)
    assert suspects(story.state) == ()
    story.commit(8)
    assert [(one.unit, one.name) for one in suspects(story.state)] == [(Unit.NODE, "a")]


def test_what_workers_found_and_ended_for_is_read_from_the_journal() -> None:
    story = Story()

    def found(failure: str, step: int | None, action: str, generation: int = 1) -> None:
        payload = {"class": failure, "signature": "sig", "evidence": {"action": action}, "step": step}
        line = Failure(0, generation, "0" * 32, payload, 0.0)
        story.state = replace(story.state, failures=story.state.failures.append(line))

    found("F12", 9, "record")
    found("F12", 2, "stop", generation=0)
    found("F10", 2, "stop")
    assert finding(story.state) is None
    found("F12", 9, "stop")
    found("F13", 8, "stop")
    assert finding(story.state) == Numeric("sig", 8, proof=True)
    story.policy = replace(FAST, restarts=0)  # so that the generation stays the same
    story.fail(of(F.F12, step=8))
    assert finding(story.state) is None, (
        "a launcher that failed to start anew must not take it for reproduced"
    )


# --- domains ---------------------------------------------------------------------------------


def test_many_hosts_of_one_domain_are_one_incident_and_charged_once() -> None:
    story = Story()
    decisions = [story.fail(of(F.F2, place=f"n{i}", domain="rack1")) for i in range(9)]
    assert [d.failure for d in decisions] == [F.F2] * 2 + [F.F3] * 7
    assert [d.charged for d in decisions] == [True] + [False] * 8
    assert decisions[-1].quarantine == (Quarantine(Unit.DOMAIN, "rack1"),)


def test_hosts_of_other_domains_and_of_other_times_are_incidents_of_their_own() -> None:
    story = Story()
    for i in range(3):
        assert story.fail(of(F.F2, place=f"n{i}", domain=f"rack{i}")).charged
    story.now = 601.0
    assert story.fail(of(F.F2, place="n9", domain="rack0")).charged


def test_the_same_host_again_is_charged() -> None:
    story = Story()
    story.fail(of(F.F2, place="a", domain="rack1"))
    assert story.fail(of(F.F2, place="a", domain="rack1")).charged


# --- properties ------------------------------------------------------------------------------

VERDICTS = st.builds(
    of,
    st.sampled_from(list(F)),
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from(["a", "b", ""]),
    st.sampled_from(["s", "t", "u"]),
    st.sampled_from(list(Origin)),
    st.sampled_from(["", "rack1"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(VERDICTS, min_size=60, max_size=60), st.integers(0, 5))
def test_a_crash_loop_without_progress_always_ends_within_the_budget(
    verdicts: list[Verdict], budget: int
) -> None:
    story = Story(replace(FAST, restarts=budget))
    charged = 0
    for verdict in verdicts:
        story.now += 1000.0
        decision = story.fail(verdict)
        charged += decision.charged
        if decision.action in (Action.STOP, Action.FAIL):
            break
    assert charged <= budget


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(VERDICTS, st.sampled_from(["", "before", "after"])), min_size=1, max_size=10))
def test_what_a_second_node_sees_of_an_incident_changes_nothing(seen: list[tuple[Verdict, str]]) -> None:
    alone, both = Story(), Story()
    for cause, other in seen:
        verdict = replace(cause, origin=Origin.INSIDE)
        echo = of(F.F17, verdict.step, "", "a peer is gone", Origin.SECONDARY)
        if other == "before":
            both.record(echo, by="second")
        assert alone.record(verdict, "first") == both.record(verdict, "first")
        if other == "after":
            both.record(echo, by="second")
        for story in (alone, both):
            story.next_generation()
    charges = [sum(one.charged for one in past(story.state)) for story in (alone, both)]
    assert charges[0] == charges[1]


def test_the_same_error_on_two_nodes_at_once_is_one_and_a_meeting_that_fails_twice_is_two() -> None:
    story, verdict = Story(), of(F.F1, sign="s", origin=Origin.UNKNOWN)
    assert story.record(verdict, by="first").again
    assert story.record(replace(verdict, place="b"), by="second").again, "not the same on two placements"
    assert [one.charged for one in past(story.state)] == [True, False]
    for _ in range(2):
        story.record(of(F.F18, sign="w"), by="first")
    assert [one.charged for one in past(story.state)] == [True, False, True, True]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.sampled_from([f for f, row in TABLE.items() if row.charged]))
def test_a_run_that_progresses_is_never_given_up_for_its_age(times: int, failure: F) -> None:
    story = Story(replace(FAST, restarts=1))
    for i in range(times):
        story.commit(2 * i)
        story.now += 1000.0
        assert story.fail(of(failure, step=2 * i + 1, sign="s", origin=Origin.INSIDE, domain="rack1")).again


@settings(max_examples=200, deadline=None)
@given(st.lists(VERDICTS, max_size=8), VERDICTS, VERDICTS, st.floats(0, 0.99))
def test_deterministic_and_never_more_lenient_after_one_failure_more(
    before: list[Verdict], extra: Verdict, now: Verdict, jitter: float
) -> None:
    story = Story()
    for verdict in before:
        story.fail(verdict)
    first = story.decide(now, jitter)
    assert first == story.decide(now, jitter)
    story.fail(extra)
    second = story.decide(now, jitter)
    assert first.action in AGAIN or second.action not in AGAIN
    if first.again and second.again and first.failure is second.failure:
        assert second.delay_s >= first.delay_s


@pytest.mark.parametrize(
    "change",
    [{"restarts": -1}, {"launch_restarts": -1}, {"budgets": {F.F5: -1}}, {"backoff_s": -1.0},
     {"backoff_s": 9.0, "backoff_max_s": 1.0},
     {"jitter": "some"}, {"repeats": 1}, {"repeats_elsewhere": 1}, {"domain_losses": 1}],
)  # fmt: skip
def test_a_policy_that_is_none_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        replace(FAST, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("jitter", [-0.1, 1.0])
def test_chance_is_a_number_below_one(jitter: float) -> None:
    with pytest.raises(UsageError):
        Story().decide(of(F.F1), jitter)
