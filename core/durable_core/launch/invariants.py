"""L5. What holds of a run that is well (REC-05), and what of it is violated by what is seen now. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from durable_core.commit.state import Failure, RunState
from durable_core.engine.beats import Beat
from durable_core.engine.words import Facts, Member
from durable_core.launch.classes import DRAINED, UNITS, F, Unit
from durable_core.launch.evidence import Unfit
from durable_core.launch.machine import State, current


class Invariant(str, enum.Enum):
    """What holds of a run that is RUNNING (REC-05)."""

    MEMBERSHIP = "membership"  # exactly the members of this generation, all heard of
    HEALTH = "health"  # no confirmed probe failure, numbers finite
    PROGRESS = "progress"  # no member stands still
    DURABILITY = "durability"  # no more is unrecoverable than declared


@dataclass(frozen=True)
class Violation:
    """``for_s``: for how long; ``confirmed``: beyond its hard limit, for which a group may be ended."""

    invariant: Invariant
    reason: str
    rank: int | None = None
    for_s: float = 0.0
    confirmed: bool = False
    failure: F | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Terms:
    """``join_s``: for all members to join, no less than one of them may build and restore; ``drain_s``: for a
    planned stop; ``diagnosis_s``: between a suspicion and the end of a group, so that stacks can be written;
    ``silence_s``: several missed reports of an agent; ``probation_steps``: verified steps after a restore;
    ``rpo_steps``, ``rpo_s``: training that may be unrecoverable, if that is declared; ``quarantine``: what
    may be left out without asking."""

    join_s: float = 600.0
    drain_s: float = 300.0
    diagnosis_s: float = 2.0
    silence_s: float = 5.0
    probation_steps: int = 2
    rpo_steps: int | None = None
    rpo_s: float | None = None
    quarantine: frozenset[Unit] = UNITS


@dataclass(frozen=True)
class Observation:
    """``facts`` by node, ``beats`` by rank; ``time``: wall clock, as in facts; ``in_state_s``: for how long
    this controller has seen the run in its state; ``found``: violations that take more than this to see
    (``controller.watching``); ``evict``: the node that is to be left at the next boundary, if any; ``mute``:
    ranks that have no room for beats, of whom nothing follows from that they do not beat."""

    run: RunState
    facts: Mapping[int, Facts] = field(default_factory=dict)
    beats: Mapping[int, Beat] = field(default_factory=dict)
    time: float = 0.0
    in_state_s: float = 0.0
    found: tuple[Violation, ...] = ()
    evict: Unfit | None = None
    mute: frozenset[int] = frozenset()

    @property
    def groups(self) -> tuple[Facts, ...]:
        """What agents say of the live generation; what one still says of the group before is left out."""
        return tuple(
            facts for _, facts in sorted(self.facts.items())
            if facts.generation in (None, self.run.generation)
        )  # fmt: skip

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(member for group in self.groups for member in group.members)

    def beat(self, member: Member) -> Beat | None:
        """What that member tells; a file may still be of the attempt before."""
        beat, facts = self.beats.get(member.rank), self.facts.get(member.node)
        return beat if beat is not None and facts is not None and beat.attempt == facts.attempt else None

    @property
    def expected(self) -> int:
        return max((group.expected for group in self.groups), default=0)

    @property
    def live_beats(self) -> Mapping[int, Beat]:
        """Those of the live generation."""
        return {rank: beat for rank, beat in self.beats.items() if beat.generation == self.run.generation}


#: Classes of failure that are found in numbers.
NUMERIC = (F.F12, F.F13)


def violations(seen: Observation, terms: Terms) -> tuple[Violation, ...]:
    """All that is, worst first: confirmed ones, then in the order of ``Invariant``. Members are missed only
    of a group that was complete once."""
    order = list(Invariant)
    complete = current(seen.run) in (State.RUNNING, State.SUSPECT)
    members = _membership(seen, terms) if complete else ()
    every = (*members, *wrong_numbers(seen), *_durability(seen, terms), *seen.found)
    return tuple(sorted(every, key=lambda one: (not one.confirmed, order.index(one.invariant), -one.for_s)))


def _membership(seen: Observation, terms: Terms) -> Iterator[Violation]:
    """Doubts, all of them: a member that is not heard of is not dead for that (FENCE-05)."""
    if not seen.groups:
        yield Violation(Invariant.MEMBERSHIP, f"no agent has a group of generation {seen.run.generation}")
        return
    for node, facts in sorted(seen.facts.items()):
        age = seen.time - facts.time
        if facts in seen.groups and age > terms.silence_s:
            yield Violation(
                Invariant.MEMBERSHIP, f"the agent of node {node} has not reported for {age:.0f} s", for_s=age,
                evidence={"node": node},
            )  # fmt: skip
    present = {member.rank for member in seen.members}
    for rank in sorted(set(range(seen.expected)) - present):
        yield Violation(Invariant.MEMBERSHIP, f"rank {rank} is not there", rank)
    for member in seen.members:
        if member.exit in (0, DRAINED):
            yield Violation(
                Invariant.MEMBERSHIP, f"rank {member.rank} ended with {member.exit}, and the run has no end",
                member.rank,
            )  # fmt: skip
        beat = seen.beat(member)
        if beat is not None and beat.generation < seen.run.generation:
            yield Violation(
                Invariant.MEMBERSHIP,
                f"rank {member.rank} is of generation {beat.generation}, not {seen.run.generation}",
                member.rank,
                evidence={"pid": member.pid, "host": member.host},
            )


def wrong_numbers(seen: Observation) -> Iterator[Violation]:
    """Numbers that were found wrong, while the group trains on because its policy says so."""
    for failure in failures(seen.run):
        kind = class_of(failure)
        if kind in NUMERIC:
            yield Violation(
                Invariant.HEALTH, f"{kind.value} ({kind.title}) was recorded",
                rank=noted(failure, "culprit"), for_s=max(0.0, seen.time - failure.time), failure=kind,
                evidence={"seq": failure.seq, "step": failure.payload.get("step")},
            )  # fmt: skip


def _durability(seen: Observation, terms: Terms) -> Iterator[Violation]:
    """What would be lost now is more than declared. What is done about it is declared to the workers."""
    beats = seen.live_beats
    if not beats:
        return
    life = next(reversed(seen.run.lives), None)
    head, begun = seen.run.head_step, seen.time if life is None else life.began
    newest = max(-1 if head is None else head, min(beat.durable for beat in beats.values()))
    steps = min(beat.step for beat in beats.values()) - max(newest, 0)
    if terms.rpo_steps is not None and steps > terms.rpo_steps:
        what = f"{steps} steps are not durable, and {terms.rpo_steps} may be"
        yield Violation(Invariant.DURABILITY, what, evidence={"durable_step": newest}, failure=F.F10)
    committed = seen.run.checkpoints[seen.run.head].time if seen.run.head is not None else begun
    age = seen.time - max(committed, begun)
    if terms.rpo_s is not None and steps > 0 and age > terms.rpo_s:
        what = f"nothing became durable for {age:.0f} s, and {terms.rpo_s:g} s may be lost"
        yield Violation(
            Invariant.DURABILITY, what, for_s=age - terms.rpo_s, failure=F.F10,
            evidence={"durable_step": newest},
        )  # fmt: skip


def failures(run: RunState) -> Iterator[Failure]:
    """Those recorded in the live generation, newest first."""
    for failure in reversed(run.failures):
        if failure.generation != run.generation:
            return
        yield failure


def noted(failure: Failure, name: str) -> Any:
    """What its evidence says of ``name`` (``retry.record``); ``None``: nothing."""
    evidence = failure.payload["evidence"]
    return evidence.get(name) if isinstance(evidence, Mapping) else None


def class_of(failure: Failure) -> F:
    """``F1``, the unknown one, for a class that this version does not know."""
    known: Mapping[str, F] = {each.value: each for each in F}
    return known.get(failure.payload["class"], F.F1)
