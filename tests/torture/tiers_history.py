"""One history of many lives over tiers: each began where it should, each line is the uninterrupted run's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.history import Line, Reference, judge_the_end, read_log
from tests.torture.lives import Death, Strike, live, log_of, output_of
from tests.torture.tiers_places import KINDS, Cluster, Kind

RPO_STEPS = 1  # of memory, which takes a snapshot of every step

#: what died -> where a snapshot may be adopted from, and what may serve the bytes of a checkpoint. An
#: adopted snapshot has been copied to this host's memory by then.
ADOPTED_FROM: dict[Kind, str | None] = {"worker": "memory", "host": "peer", "cluster": None}
READ_FROM: dict[Kind, frozenset[str]] = {
    "worker": frozenset({"memory", "disk"}),
    "host": frozenset({"memory", "peer", "disk"}),
    "cluster": frozenset(),  # but the root
}


@dataclass(frozen=True)
class Fate:
    """How a life is to die, and what dies with it."""

    kind: Kind
    strike: Strike


@dataclass(frozen=True)
class Committed:
    """One commit as the journal tells it: step, parent, and the tiers that hold its shards."""

    step: int
    parent: int | None
    tiers: frozenset[str]


@dataclass(frozen=True)
class Lineage:
    """The head of a run and what it rests on, folded by hand from its records."""

    commits: Mapping[int, Committed]
    head: int | None
    generations: int = 0

    @staticmethod
    def of(records: Iterable[Line]) -> Lineage:
        commits: dict[int, Committed] = {}
        head: int | None = None
        generations = 0
        for record in records:
            kind, payload = record["kind"], record["payload"]
            if kind == "checkpoint.committed" and payload["parent"] == head:
                head = payload["c"]
                commits[head] = Committed(payload["step"], payload["parent"], frozenset(payload["tiers"]))
            elif kind == "generation.started":
                generations += 1
                head = head if payload["restore_point"] is None else payload["restore_point"]
            elif kind == "tier.added" and payload["c"] in commits:
                was = commits[payload["c"]]
                commits[payload["c"]] = Committed(was.step, was.parent, was.tiers | {payload["tier"]})
        return Lineage(commits, head, generations)

    @property
    def last(self) -> int:
        """The newest commit of all; -1 when there is none."""
        return max(self.commits, default=-1)

    def near(self, wiped: int) -> bool:
        """Whether the head was written to the disk, and the disk lost after none but ``wiped`` and older."""
        return self.head is not None and self.head > wiped and "disk" in self.commits[self.head].tiers

    def newest(self, tier: str | None = None) -> int | None:
        """Step of the newest commit on the lineage, or of the newest one that ``tier`` holds."""
        c = self.head
        while c is not None and tier is not None and tier not in self.commits[c].tiers:
            c = self.commits[c].parent
        return None if c is None else self.commits[c].step


@dataclass(frozen=True)
class Origin:
    """Where one rank of one life began: its first step, the tier it adopted a snapshot from and that
    snapshot's step, bytes read by tier."""

    step: int
    adopted: str | None = None
    adopted_step: int | None = None
    read: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(lines: list[Line], heard: list[Line]) -> Origin | None:
        """``None`` for a life that died before its training began."""
        start = next((line["step"] for line in lines if line["kind"] == "start"), None)
        if start is None:
            return None
        adoption = next((line for line in heard if line["event"] == "SnapshotAdopted"), {})
        restored = [line for line in heard if line["event"] == "RestoreDone"]
        read = dict(restored[-1]["sources"]) if restored else {}
        return Origin(start, adoption.get("place"), adoption.get("step"), read)

    @property
    def label(self) -> str:
        if self.adopted:
            return f"adopted from {self.adopted}"
        return "read from " + "+".join(sorted(self.read)) if self.read else "began anew"


def judge(
    kinds: Sequence[Kind], origins: list[Origin], before: Lineage, done: int | None, *, far: str = "remote",
    wiped: int = -1,
) -> list[str]:  # fmt: skip
    """What is wrong with how a life began.

    ``kinds``: the losses since a life last trained, for what one of them took nobody has made anew;
    ``before``: the journal as the dead left it; ``done``: the newest step that any of them had done, ``None``
    when what they did may be lost; ``far``: the tier that nothing takes away; ``wiped``: the newest commit
    when the disk was last lost.
    """
    faults = []
    kind = max(kinds, key=KINDS.index)
    adoptable = {None, *(ADOPTED_FROM[each] for each in kinds)}
    steps = {origin.step for origin in origins}
    if len(steps) > 1:
        faults.append(f"the ranks began at different steps {sorted(steps)}")
    for rank, origin in enumerate(origins):
        if origin.adopted not in adoptable:
            faults.append(f"rank {rank} adopted from {origin.adopted} after the loss of a {kind}")
        if origin.adopted_step not in (None, origin.step):
            faults.append(f"rank {rank} adopted step {origin.adopted_step} and began at {origin.step}")
        strange = _strange(origin.read, READ_FROM[kind], far, near=before.near(wiped))
        if strange:
            faults.append(f"rank {rank} read from {sorted(strange)} after the loss of a {kind}")
    step = min(steps)
    floor = before.newest(far if kind == "cluster" else None)
    if floor is not None and step < floor:
        faults.append(f"began at step {step}; step {floor} was committed where a lost {kind} leaves it")
    if kind == "worker" and done is not None and done - step > RPO_STEPS:
        faults.append(f"began at step {step} after {done} were done: {done - step} are lost")
    return faults


def _strange(read: Mapping[str, int], usual: frozenset[str], far: str, *, near: bool) -> set[str]:
    """The tiers that should not have served. What did not change since a checkpoint that is not on the disk
    (the first one never is) comes from afar also for a later one, and is the lesser part."""
    served = {tier: nbytes for tier, nbytes in read.items() if nbytes}
    distant = served.get(far, 0)
    excused = {far} if not usual or not near or 2 * distant < sum(served.values()) else set()
    return served.keys() - usual - excused


@dataclass
class TierHistory:
    """What became of one run: every death, every origin, every fault."""

    root: Path
    name: str
    fell: list[tuple[Fate, bool]] = field(default_factory=list)
    origins: Counter[str] = field(default_factory=Counter)  # "kind: label"
    lost_steps: dict[Kind, Counter[int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)

    def note(self, kind: Kind, origins: list[Origin], done: int | None) -> None:
        self.origins.update(f"{kind}: {origin.label}" for origin in origins)
        if done is not None:
            losses = self.lost_steps.setdefault(kind, Counter())
            losses[done - min(origin.step for origin in origins)] += 1


def endure(reference: Reference, cluster: Cluster, root: Path, fates: Iterable[Fate]) -> TierHistory:
    """Starts the run again after each loss until it finishes, and checks every life."""
    cell = reference.cell
    history = TierHistory(root, cell.name)
    places = cluster.places(root.name)
    losses: list[Kind] = []
    done: int | None = None
    wiped = -1
    for life, fate in enumerate([*fates, None]):
        before = Lineage.of(cluster.journal(places))
        strike = Strike() if fate is None else fate.strike
        death = live(cell, root, life, strike, places)
        lives = [read_log(log_of(root, rank, life)) for rank in range(cell.world)]
        origins = _check_lives(history, reference, lives, life)
        if origins and losses:
            faults = judge(losses, origins, before, done, far=places.far, wiped=wiped)
            history.faults += [f"life {life}: {fault}" for fault in faults]
            history.note(max(losses, key=KINDS.index), origins, done)
        if fate is not None:
            history.fell.append((fate, death.struck))
        if death.finished:
            break
        if death.hung or not death.struck or fate is None:
            history.faults.append(f"life {life} {_how(death)}\n{output_of(cell, root, life)}")
            break
        after = Lineage.of(cluster.journal(places))
        trained = [line["step"] for lines in lives for line in lines if line["kind"] == "step"]
        if trained:
            done, losses = max(trained), []
        elif after.generations > before.generations:
            done = None  # between a claim and the last copy of what it adopts only commits are safe
        losses.append(fate.kind)
        cluster.lose(fate.kind, places)
        if fate.kind == "cluster":
            wiped = after.last
    if not history.faults:
        faults, history.audit = judge_the_end(reference, root, life, home=places.home, env=places.env)
        history.faults += faults
        ended = Lineage.of(cluster.journal(places))
        if ended.newest(places.far) != cell.steps:
            history.faults.append(f"the root has step {ended.newest(places.far)} when the run has succeeded")
    if history.faults:  # the store may not outlive the campaign
        lines = [json.dumps(record) for record in cluster.journal(places)]
        Path(f"{root}.journal").write_text("\n".join(lines))
    cluster.forget(places)
    return history


def _how(death: Death) -> str:
    return "hung" if death.hung else f"ended with {death.statuses} unstruck"


def _check_lives(
    history: TierHistory, reference: Reference, lives: list[list[Line]], life: int
) -> list[Origin]:
    """Line by line against the uninterrupted run; the origins, if every rank has begun."""
    origins = []
    for rank, (told, lines) in enumerate(zip(reference.ranks, lives, strict=True)):
        heard = read_log(Path(f"{log_of(history.root, rank, life)}.events"))
        origin = Origin.of(lines, heard)
        if origin is not None:
            origins.append(origin)
            faults = told.faults(lines, origin.step)
            history.faults += [f"life {life} rank {rank}: {fault}" for fault in faults]
    return origins if len(origins) == len(lives) else []
