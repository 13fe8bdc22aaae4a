"""Every state with every event, against an expectation made from the requirement, not from the table."""

from __future__ import annotations

import itertools

import pytest

from durable_core.commit.state import Phase, RunState, Terminal
from durable_core.errors import IllegalMove
from durable_core.launch.machine import ACTIVE, OWNERS, TABLE, TERMINAL, Effect, Event, State, current, move

#: state, event -> state. ``active``, ``training`` and ``any`` stand for several; nothing else is legal.
EXPECTED = """
pending     start requested                -> preflight
preflight   checks passed                  -> queued
preflight   check failed                   -> failed
preflight   check failed, perhaps for now  -> backoff
queued      not admitted                   -> backoff
queued      admission exhausted            -> failed
starting    joined                         -> restoring
starting    join timed out                 -> fencing
restoring   restored                       -> probation
restoring   candidate refused              -> restoring
restoring   candidates exhausted           -> failed
probation   proven                         -> running
probation   disproven                      -> fencing
running     doubted                        -> suspect
suspect     cleared                        -> running
suspect     confirmed                      -> fencing
training    stop planned                   -> draining
draining    sealed                         -> fencing
draining    drain timed out                -> fencing
active      member failed                  -> fencing
active      hang confirmed                 -> fencing
active      numerics invalid               -> fencing
fencing     stopped                        -> diagnosing
diagnosing  retry allowed                  -> backoff
diagnosing  retry refused                  -> failed
backoff     replacing                      -> queued
any         claimed                        -> starting
any         completed                      -> succeeded
any         gave up                        -> failed
any         cancelled                      -> cancelled
"""
NOT_OVER = ["pending", "preflight", "queued", "starting", "restoring", "probation", "running", "suspect",
            "draining", "fencing", "diagnosing", "backoff"]  # fmt: skip
SETS = {"active": ["starting", "restoring", "probation", "running", "suspect", "draining"], "any": NOT_OVER}
SETS["training"] = [state for state in SETS["active"] if state != "draining"]


def expected():
    legal = {}
    for line in EXPECTED.strip().splitlines():
        left, target = line.split(" -> ")
        states, event = left.split(maxsplit=1)
        for state in SETS.get(states, [states]):
            legal[state, event.strip()] = target
    return legal


LEGAL = expected()


def test_there_are_fifteen_states_of_which_three_are_ends():
    assert {state.value for state in State} == {*NOT_OVER, "succeeded", "failed", "cancelled"}
    assert {state.value for state in TERMINAL} == {"succeeded", "failed", "cancelled"}
    assert {state.value for state in ACTIVE} == set(SETS["active"])


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)), ids=lambda it: it.value)
def test_every_state_with_every_event(state, event):
    target = LEGAL.get((state.value, event.value))
    if target is None:
        with pytest.raises(IllegalMove, match=state.value):
            move(state, event)
    else:
        assert move(state, event).target.value == target


def test_the_expectation_names_only_what_exists():
    assert {event for _, event in LEGAL} == {event.value for event in Event}
    assert len(LEGAL) == len(TABLE)


def test_nothing_leads_out_of_an_end():
    assert not [state for state, _ in TABLE if state in TERMINAL]


def test_every_state_can_be_reached_and_left():
    reached, front = set(), {State.PENDING}
    while front:
        reached |= front
        front = {row.target for (state, _), row in TABLE.items() if state in front} - reached
    assert reached == set(State)
    assert {state for state, _ in TABLE} == set(State) - TERMINAL


def test_a_suspicion_ends_nothing():
    effects = move(State.RUNNING, Event.DOUBTED).effects
    assert Effect.DIAGNOSE in effects and not {Effect.ASK_RESTART, Effect.STOP} & set(effects)


def test_every_effect_has_an_owner_and_a_move():
    assert set(OWNERS) == set(Effect) == {effect for row in TABLE.values() for effect in row.effects}


PHASE = Phase(9, 3, "ab" * 16, {"state": "suspect", "reason": "", "evidence": {}}, 5.0)


@pytest.mark.parametrize(
    ("run", "state"),
    [
        (RunState(), State.PENDING),
        (RunState(run_id="r"), State.PENDING),
        (RunState(run_id="r", generation=3, active=True), State.STARTING),
        (RunState(run_id="r", generation=3, active=True, phase=PHASE), State.SUSPECT),
        (RunState(run_id="r", generation=3, terminal=Terminal("cancelled", 9, None, {})), State.CANCELLED),
        (RunState(run_id="r", generation=3, active=False), State.PENDING),  # extended after its end
    ],
    ids=["nothing", "created", "started", "said", "ended", "extended"],
)  # fmt: skip
def test_the_journal_alone_says_where_a_run_stands(run, state):
    assert current(run) is state


def test_a_state_of_a_newer_version_is_found_again_from_what_is_seen():
    phase = Phase(9, 3, "ab" * 16, {"state": "levitating", "reason": "", "evidence": {}}, 5.0)
    assert current(RunState(run_id="r", generation=3, active=True, phase=phase)) is State.STARTING
