"""Reconciliation is level-triggered: observations lost, repeated or out of order end in the same state; and a
controller that is killed between any two writes leaves nothing done twice and nothing undone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from controller_world import DIGEST, TERMS, World

from durable_core.commit.fold import apply
from durable_core.commit.state import RunState
from durable_core.engine.beats import Beat, Phase
from durable_core.engine.words import Facts, Member
from durable_core.format.record import Kind, Record
from durable_core.launch.classes import F
from durable_core.launch.controller import asking
from durable_core.launch.controller.office import Office
from durable_core.launch.invariants import Invariant, Observation, Violation
from durable_core.launch.machine import GroupPhase, State, current, move
from durable_core.launch.reconcile import due, operation
from durable_core.tier.memory import MemoryTier

# --- observations, lost and repeated and out of order ------------------------------------------


@dataclass
class Paper:
    """A journal in memory, with one controller that says where the run stands."""

    run: RunState = field(default_factory=RunState)
    seq: int = 0

    def write(self, kind: Kind, payload: dict, op_id: str = "ab" * 16) -> None:
        g = self.run.generation + (kind is Kind.GENERATION_STARTED)
        record = Record(self.seq, g, 1, "L", op_id, kind, payload, DIGEST, 5.0)
        self.run, verdict = apply(self.run, record)
        assert verdict.effective, verdict
        self.seq += 1

    def look(self, seen: Observation) -> None:
        for _ in State:
            found = due(replace(seen, run=self.run), TERMS)
            if found is None:
                return
            target = move(current(self.run), found.event).target
            payload = {"state": target.value, "reason": found.reason, "evidence": {}}
            self.write(Kind.RUN_STATE, payload, operation(self.run, found.event))
            seen = replace(seen, in_state_s=0.0)


CREATED = {"run_id": "r", "spec": {}, "spec_digest": DIGEST, "seed": 1, "promise": "bitwise"}
STARTED = {"restore_point": None, "manifest_digest": None, "members": ["dp0", "dp1"], "takeover": False}
FAILED = {"class": "F1", "signature": "s", "evidence": None, "step": 3}


def facts(phase: GroupPhase, g: int | None, exits: dict[int, int] | None = None) -> Observation:
    members = tuple(Member(rank, 10 + rank, "h", 0, (exits or {}).get(rank)) for rank in (0, 1))
    group = Facts("L", 0, phase.value, 0.0, 0.0, g, 2, members)
    return Observation(RunState(), {0: group})


def at(phase: Phase, step: int, g: int = 1, of: GroupPhase = GroupPhase.UP) -> Observation:
    rows = {rank: Beat(0, phase, g, step, step + 2, -1, 0.0, 0.0) for rank in (0, 1)}
    return replace(facts(of, g), beats=rows)


HUNG = Violation(Invariant.PROGRESS, "rank 1 stands", 1, 99.0, True, F.F5)
UP = [at(Phase.INIT, -1), at(Phase.RESTORE, -1), at(Phase.STEP, 0), at(Phase.STEP, 1), at(Phase.STEP, 5)]
AGAIN = [at(Phase.INIT, -1, 2), at(Phase.RESTORE, -1, 2), at(Phase.STEP, 1, 2), at(Phase.STEP, 9, 2)]
DOWN = [
    facts(GroupPhase.STOPPING, 1, {1: -9}), facts(GroupPhase.STOPPED, 1, {0: -15, 1: -9}),
    facts(GroupPhase.BACKOFF, 1, {0: -15, 1: -9}),
]  # fmt: skip

#: (before: records; observations: while they are the newest): a history, in its windows, and where it ends.
HISTORIES: dict[str, tuple[list[tuple[tuple, list[Observation]]], State]] = {
    "comes up": ([((Kind.GENERATION_STARTED, STARTED), UP)], State.RUNNING),
    "crashes": (
        [((Kind.GENERATION_STARTED, STARTED), UP), ((Kind.FAILURE, FAILED), DOWN)],
        State.BACKOFF,
    ),
    "crashes and comes up again": (
        [
            ((Kind.GENERATION_STARTED, STARTED), UP),
            ((Kind.FAILURE, FAILED), DOWN),
            ((Kind.GENERATION_STARTED, STARTED), AGAIN),
        ],
        State.RUNNING,
    ),
    "hangs": (
        [((Kind.GENERATION_STARTED, STARTED), [*UP, replace(UP[-1], found=(HUNG,))])],
        State.FENCING,
    ),
    "drains": (
        [
            ((Kind.GENERATION_STARTED, STARTED), UP),
            (
                (Kind.RUN_DRAINING, {"reason": "SIGTERM", "step": 5}),
                [at(Phase.SAVE, 5, of=GroupPhase.DRAINING), facts(GroupPhase.STOPPED, 1, {0: 75, 1: 75})],
            ),
        ],
        State.DIAGNOSING,
    ),
    "is cancelled": (
        [
            ((Kind.GENERATION_STARTED, STARTED), UP),
            ((Kind.RUN_CANCELLED, {"principal": "operator", "reason": ""}), DOWN),
        ],
        State.CANCELLED,
    ),
}


def ends(windows: list, spoil: Callable[[list[Observation]], list[Observation]]) -> State:
    """Where a history ends whose observations are spoilt; as the world is in the end it is seen."""
    paper = Paper()
    paper.write(Kind.RUN_CREATED, CREATED)
    paper.write(Kind.CONTROLLER_CLAIMED, {"reconciles": True})
    for record, observations in windows:
        paper.write(*record)
        for seen in spoil(observations):
            paper.look(replace(seen, in_state_s=2.0))
    for _ in range(4):  # the world stays as it is, and is looked at
        paper.look(replace(windows[-1][1][-1], in_state_s=2.0))
    return current(paper.run)


@pytest.mark.parametrize("name", HISTORIES)
def test_every_observation_is_seen(name):
    windows, end = HISTORIES[name]
    assert ends(windows, list) is end


@pytest.mark.parametrize("name", HISTORIES)
def test_lost_repeated_and_reordered_observations_end_in_the_same_state(name):
    windows, end = HISTORIES[name]
    for seed in range(200):
        dice = random.Random(seed)

        def spoil(seen: list[Observation], dice: random.Random = dice) -> list[Observation]:
            kept = [one for one in seen if dice.random() < 0.6] * dice.randint(1, 3)
            dice.shuffle(kept)
            # beats of one process only rise, and a decision to end a group is not taken back
            return [one for one in kept if not one.found]

        assert ends(windows, spoil) is end, seed


def test_nothing_due_stays_undone_when_looked_at_twice():
    """A look after a look without news does nothing: the journal does not grow by itself."""
    for windows, _ in HISTORIES.values():
        paper = Paper()
        paper.write(Kind.RUN_CREATED, CREATED)
        paper.write(Kind.CONTROLLER_CLAIMED, {"reconciles": True})
        for record, observations in windows:
            paper.write(*record)
            for seen in observations:
                paper.look(seen)
                length = paper.seq
                paper.look(seen)
                assert paper.seq == length


# --- killed between any two writes ---------------------------------------------------------------


class Killed(BaseException):
    pass


@dataclass
class Fate:
    """Kills at the ``at``-th instant; instants are before and after every effect."""

    at: int
    count: int = 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


class Mortal(Office):
    fate: Fate

    def take(self):
        return self._around(super().take)

    def enter(self, *args, **kwargs):
        return self._around(lambda: super(Mortal, self).enter(*args, **kwargs))

    def store(self, put):
        return self._around(lambda: super(Mortal, self).store(put))

    def maintain(self, kind, payload):
        return self._around(lambda: super(Mortal, self).maintain(kind, payload))

    def _around(self, effect):
        self.fate()
        done = effect()
        self.fate()
        return done


@dataclass
class Life:
    """One history under controllers that are killed once, each followed by another."""

    world: World
    fate: Fate
    killed: int = 0

    def controller(self):
        made = self.world.controller()

        def office(root: str) -> Office:
            found = self.world.office(root, Mortal)
            found.fate = self.fate
            return found

        made._open_office = office
        return made

    def looks(self, count: int, before: Callable[[], object], *, every_s: float = 0.5) -> None:
        for _ in range(count):
            self.world.clock.wall += every_s
            before()
            try:
                self.now.step()
            except Killed:
                self.killed += 1
                self.now = self.controller()

    def live(self) -> None:
        world = self.world
        self.now = self.controller()
        world.create()
        world.begin()
        world.opened()
        world.group()
        for step in range(4):
            self.looks(2, lambda step=step: (world.steps(step), world.group()))
        self.looks(9, world.group, every_s=1.5)  # they stand still: suspected, and ended
        world.exits = {0: -15, 1: -9}
        self.looks(3, lambda: world.group(GroupPhase.STOPPED))
        world.failed("F5", step=3, quarantine=[{"unit": "node", "name": "host0"}])
        self.looks(3, lambda: world.group(GroupPhase.BACKOFF))
        world.begin()
        for step in range(4):
            self.looks(2, lambda step=step: (world.steps(step), world.group()))

    def journal(self) -> list[tuple]:
        """Without epochs, and without what a clock wrote."""
        kept = [record for record in self.world.records() if record.kind is not Kind.CONTROLLER_CLAIMED]
        return [
            (record.kind, record.generation, record.op_id if record.kind is Kind.RUN_STATE else "",
             record.payload.get("state"), record.payload.get("event"), record.payload.get("name"))
            for record in kept
        ]  # fmt: skip

    def effects(self) -> tuple[list, list]:
        asked = sorted((one.op_id, one.kind, one.generation, one.failure) for one in self.world.requests())
        return asked, [name.partition("-")[0] for name in self.world.incidents()]


@pytest.fixture
def lives(tmp_path: Path, monkeypatch) -> Iterator[Callable[[int], Life]]:
    made: list[Life] = []
    write = asking.words.write

    def live(at: int) -> Life:
        life = Life(World(tmp_path, tmp_path / f"dir{at}", kept=MemoryTier()), Fate(at))

        def mortal_write(path, document):
            asks = path.parent.name == "requests"
            if asks:
                life.fate()
            write(path, document)
            if asks:
                life.fate()

        made.append(life)
        with monkeypatch.context() as patched:
            patched.setattr(asking.words, "write", mortal_write)
            life.live()
        return life

    yield live
    for life in made:
        life.world.stack.close()


def test_killed_between_any_two_writes_the_next_controller_does_the_rest(lives):
    whole = lives(0)
    assert whole.killed == 0 and whole.world.states() == [
        "restoring", "probation", "running", "suspect", "fencing", "diagnosing", "backoff",
        "restoring", "probation", "running",
    ]  # fmt: skip
    asked, bundles = whole.effects()
    assert sorted(kind for _, kind, _, _ in asked) == ["dump", "restart"] and len(bundles) == 2
    assert whole.fate.count > 20
    for instant in range(1, whole.fate.count + 1):
        life = lives(instant)
        assert life.killed == 1
        assert life.journal() == whole.journal(), instant
        assert life.effects() == whole.effects(), instant


def test_a_beat_is_that_of_the_attempt_and_not_of_a_process() -> None:
    """A worker may run in a session of its own, or where numbers of processes are others."""
    seen = at(Phase.STEP, 5)
    member = seen.facts[0].members[0]
    assert seen.beat(replace(member, pid=4711)) == seen.beats[0]
    before = replace(seen, beats={0: replace(seen.beats[0], attempt=7)})
    assert before.beat(member) is None
