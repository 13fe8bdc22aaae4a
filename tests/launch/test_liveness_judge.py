"""Alive, and getting on? And who holds a group up that does not?"""

from __future__ import annotations

import pytest

from durable_core.engine.beats import Beat, Phase
from durable_core.errors import UsageError
from durable_core.launch.liveness import Health, Limit, Limits, Pace, culprit, judge

LIMITS = Limits(
    init=Limit(20, 40), restore=Limit(20, 40), step=Limit(2, 6), eval=Limit(30, 60), save=Limit(10, 20),
    exit=Limit(5, 10), first_step=Limit(15, 30), soft_m=5, hard_m=20,
)  # fmt: skip
STEADY = Pace((0.1,) * 8)


def at(time: float, step: int = 5, phase: Phase = Phase.STEP, generation: int = 1) -> Beat:
    return Beat(100, phase, generation, step, 1, -1, time, time)


# --- judge -----------------------------------------------------------------------------------


def test_a_group_that_beats_is_good() -> None:
    standing = judge({0: at(99.5), 1: at(99.0, 4)}, 100.0, LIMITS, since=0.0, pace=STEADY)
    assert (standing.health, standing.violated, standing.step, standing.since) == (Health.GOOD, (), 4, None)


def test_who_lives_and_stands_still_breaks_progress_and_not_membership() -> None:
    standing = judge({0: at(97.0), 1: at(90.0)}, 100.0, LIMITS, since=0.0, pace=STEADY)
    assert standing.health is Health.HANGING
    assert [(v.invariant, v.rank, v.hard, v.since, v.limit_s) for v in standing.violated] == [
        ("progress", 1, True, 90.0, 6),
        ("progress", 0, False, 97.0, 2),
    ]
    assert standing.since == 90.0
    assert standing.reason == "rank 1 stands in STEP after step 5: 10.0 s, over 6.0 s"


def test_who_is_gone_breaks_membership_and_is_not_said_to_stand_still() -> None:
    standing = judge({0: at(99.5), 1: at(0.0)}, 100.0, LIMITS, since=0.0, pace=STEADY, gone={1: "SIGKILL"})
    assert standing.health is Health.BROKEN
    assert [(v.invariant, v.rank) for v in standing.violated] == [("membership", 1)]
    assert "SIGKILL" in standing.reason


@pytest.mark.parametrize("phase", list(Phase))
def test_each_phase_has_its_own_soft_and_hard_limit(phase: Phase) -> None:
    limit = LIMITS.of(phase, STEADY)
    for age, health in ((limit.soft_s, Health.GOOD), (limit.soft_s + 0.1, Health.SUSPECT),
                        (limit.hard_s, Health.SUSPECT), (limit.hard_s + 0.1, Health.HANGING)):  # fmt: skip
        standing = judge({0: at(1000 - age, phase=phase)}, 1000.0, LIMITS, since=0.0, pace=STEADY)
        assert standing.health is health, (phase, age)


def test_before_its_first_beat_a_rank_is_in_init_since_the_start() -> None:
    assert judge({0: None}, 59.0, LIMITS, since=40.0).health is Health.GOOD
    standing = judge({0: None}, 81.0, LIMITS, since=40.0)
    assert standing.health is Health.HANGING and "has not beaten yet" in standing.reason


def test_a_beat_from_before_the_start_counts_from_the_start() -> None:
    assert judge({0: at(1.0)}, 101.0, LIMITS, since=100.0, pace=STEADY).health is Health.GOOD


def test_who_waits_for_one_that_evaluates_is_not_suspected() -> None:
    beats = {0: at(90.0, phase=Phase.EVAL), 1: at(90.0), 2: at(90.0)}
    assert judge(beats, 100.0, LIMITS, since=0.0, pace=STEADY).health is Health.GOOD
    late = judge(beats, 90.0 + 60.1, LIMITS, since=0.0, pace=STEADY)
    assert late.health is Health.HANGING and {v.rank for v in late.violated} == {0, 1, 2}


def test_what_no_hook_tells_of_may_take_ten_minutes() -> None:
    assert Limits().of(Phase.STEP, Pace((0.1,) * 16)).hard_s >= 600


def test_the_limit_of_a_step_grows_with_the_steps() -> None:
    assert LIMITS.of(Phase.STEP, STEADY) == Limit(2, 6)
    assert LIMITS.of(Phase.STEP, Pace((1.0,) * 20)) == Limit(5, 20)
    assert LIMITS.of(Phase.STEP, Pace((1.0,) * 7)) == Limit(15, 30), "the first steps may compile"


def test_the_pace_is_measured_from_look_to_look() -> None:
    pace = Pace()
    for i in range(1, 10):
        pace = pace.seen({0: at(3.0 * i, 2 * i), 1: None})
    assert pace.times == (1.5,) * 8 and pace.p99 == 1.5
    again = pace.seen({0: at(27.0, 18)})
    assert again.times == pace.times, "no step more, no time more"


def test_the_pace_leaves_out_what_is_not_a_step() -> None:
    pace = Pace().seen({0: at(1.0, 1)}).seen({0: at(2.0, 1, Phase.EVAL)}).seen({0: at(90.0, 2)})
    assert pace.times == ()
    assert pace.seen({0: at(91.0, 1, generation=2)}).times == ()


def test_p99_is_no_mean() -> None:
    assert Pace((*(0.1,) * 98, 9.0, 9.0)).p99 == 9.0
    assert Pace((*(0.1,) * 99, 9.0)).p99 == 0.1


@pytest.mark.parametrize("values", [(0, 1), (2, 1), (-1, 1)])
def test_limits_that_are_none_are_refused(values: tuple[float, float]) -> None:
    with pytest.raises(UsageError):
        Limit(*values)


# --- culprit ---------------------------------------------------------------------------------

TORCH = "/x/site-packages/torch"


def stack(*frames: tuple[str, str], thread: str = "Current thread") -> str:
    """As faulthandler writes it; ``frames`` innermost first."""
    outermost = (
        ("/u/train.py", "<module>")
        if thread.startswith("Current")
        else ("/usr/lib/threading.py", "_bootstrap")
    )
    lines = [f'  File "{file}", line 7 in {function}' for file, function in (*frames, outermost)]
    return "\n".join([f"{thread} 0x00007f8a1c2d (most recent call first):", *lines, ""])


WAITS = stack((f"{TORCH}/distributed/distributed_c10d.py", "all_reduce"), ("/u/train.py", "step"))
BACKWARD = stack((f"{TORCH}/autograd/graph.py", "_engine_run_backward"), ("/u/train.py", "step"))
SLEEPS = stack(("/u/train.py", "fetch"), ("/u/train.py", "step"))


def test_counters_come_first() -> None:
    found = culprit({0: at(9.0, 5), 1: at(99.0, 4), 2: at(3.0, 5)}, {1: WAITS, 0: SLEEPS, 2: SLEEPS})
    assert found.rank == 1, "although it beat last, and waits in a collective of the step that it is at"
    assert "step 4" in found.reason and found.frames[-1] == "distributed_c10d.py:all_reduce"


def test_who_is_behind_is_named_before_who_is_in_another_phase() -> None:
    assert culprit({0: at(9.0, 4), 1: at(9.0, 5, Phase.SAVE), 2: at(9.0, 5)}, {}).rank == 0


def test_who_never_beat_is_behind() -> None:
    assert culprit({0: at(9.0, -1, Phase.INIT), 1: None}, {}).rank == 1


def test_then_phases() -> None:
    found = culprit({0: at(9.0), 1: at(9.0, phase=Phase.SAVE), 2: at(9.0)}, {0: SLEEPS, 1: WAITS, 2: WAITS})
    assert (found.rank, found.reason) == (1, "rank 1 is in SAVE, the others wait in STEP")


def test_who_has_left_the_loop_is_not_told_by_its_phase() -> None:
    beats = {0: at(9.0), 1: at(9.0, phase=Phase.EXIT)}
    assert culprit(beats, {0: WAITS, 1: SLEEPS}).rank == 1
    assert culprit(beats, {0: SLEEPS, 1: WAITS}).rank == 0


def test_then_stacks() -> None:
    beats = {0: at(9.0), 1: at(99.0), 2: at(5.0)}
    found = culprit(beats, {0: WAITS, 1: BACKWARD, 2: SLEEPS})
    assert (found.rank, found.frames) == (2, ("train.py:<module>", "train.py:step", "train.py:fetch"))
    assert "rank 0 waits in distributed_c10d.py:all_reduce" in found.reason


@pytest.mark.parametrize(
    ("stacks", "why"),
    [
        ({0: WAITS, 1: BACKWARD}, "every rank waits"),
        ({0: SLEEPS, 1: SLEEPS}, "nothing tells them apart"),
        ({0: SLEEPS}, "no stack of ranks 1"),
        ({0: SLEEPS, 1: "Fatal Python error"}, "no stack of ranks 1"),
        ({}, "no stack of ranks 0, 1"),
    ],
)
def test_nobody_is_named_when_it_cannot_be_told(stacks: dict[int, str], why: str) -> None:
    found = culprit({0: at(9.0), 1: at(1.0)}, stacks)
    assert found.rank is None and why in found.reason and found.candidates == (0, 1)


def test_several_behind_are_told_apart_by_their_stacks() -> None:
    beats = {0: at(9.0, 6), 1: at(9.0, 5), 2: at(9.0, 5)}
    assert culprit(beats, {0: SLEEPS, 1: WAITS, 2: SLEEPS}).rank == 2


def test_the_main_thread_counts_and_the_newest_dump() -> None:
    other = stack(("/usr/lib/threading.py", "wait"), thread="Thread")
    old = SLEEPS
    dump = old + "\n" + other + "\n" + WAITS
    assert culprit({0: at(9.0), 1: at(9.0)}, {0: dump, 1: other + SLEEPS}).rank == 1


def test_a_dump_that_is_still_being_written_does_not_count() -> None:
    other = stack(("/usr/lib/threading.py", "wait"), thread="Thread")
    for end in range(len(SLEEPS)):
        found = culprit({0: at(9.0), 1: at(9.0)}, {0: WAITS, 1: other + SLEEPS[:end]})
        assert found.rank in (None, 1) and (found.rank is None or found.frames[-1] == "train.py:fetch")
        assert culprit({0: at(9.0), 1: at(9.0)}, {0: WAITS, 1: WAITS + other + SLEEPS[:end]}).rank in (
            None,
            1,
        )


def test_a_stack_that_is_too_deep_to_be_shown_counts() -> None:
    deep = SLEEPS.replace('  File "/u/train.py", line 7 in <module>', "  ...")
    assert culprit({0: at(9.0), 1: at(9.0)}, {0: WAITS, 1: deep}).rank == 1


def test_one_alone_holds_itself_up() -> None:
    assert culprit({3: at(9.0)}, {3: SLEEPS}).frames[-1] == "train.py:fetch"
    assert culprit({}, {}).rank is None


def test_many_are_not_all_listed() -> None:
    found = culprit({rank: at(9.0) for rank in range(40)}, {})
    assert "and 32 more" in found.reason and len(found.candidates) == 40
