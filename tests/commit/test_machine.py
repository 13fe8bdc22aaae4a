"""The tables of a save: every pair of phase and event, allowed or refused."""

from __future__ import annotations

import itertools

import pytest

from durable_core.commit.machine import COORDINATOR, FINAL, WRITER, Event, Phase, Walk
from durable_core.errors import UsageError

P, E = Phase, Event
WRITING = {
    (P.IDLE, E.ALLOCATE): P.ALLOCATED,
    (P.ALLOCATED, E.OFFER): P.OFFERED,
    (P.OFFERED, E.WRITE): P.WRITTEN,
    (P.WRITTEN, E.RECEIPT): P.RECEIPTED,
}
ALLOWED = {
    "coordinator": (
        COORDINATOR,
        {
            **WRITING,
            (P.ALLOCATED, E.WRITE): P.WRITTEN,
            (P.RECEIPTED, E.VERIFY): P.VERIFIED,
            (P.VERIFIED, E.PUBLISH): P.PUBLISHED,
            (P.PUBLISHED, E.COMMIT): P.COMMITTED,
            (P.PUBLISHED, E.LOSE_ACK): P.DOUBT,
            (P.DOUBT, E.COMMIT): P.COMMITTED,
        },
    ),
    "writer": (WRITER, {**WRITING, (P.RECEIPTED, E.COMMIT): P.COMMITTED}),
}
PAIRS = list(itertools.product(Phase, Event))


@pytest.mark.parametrize("part", ALLOWED)
@pytest.mark.parametrize(("phase", "event"), PAIRS, ids=lambda value: value.value)
def test_every_pair(part, phase, event):
    table, forward = ALLOWED[part]
    exits = {} if phase in FINAL else {E.ABORT: P.ABORTED, E.FENCE: P.FENCED}
    expected = forward.get((phase, event), exits.get(event))
    walk = Walk(table)
    walk.phase = phase
    if expected is None:
        with pytest.raises(UsageError, match=f"{phase.value} cannot {event.value}"):
            walk.on(event)
        assert walk.phase is phase
    else:
        walk.on(event)
        assert walk.phase is expected


def test_only_a_published_manifest_can_be_committed():
    before = {phase for (phase, event), after in COORDINATOR.items() if after is P.COMMITTED}
    assert before == {P.PUBLISHED, P.DOUBT}
