"""Which losses a run over tiers suffers, drawn from a seed, and what came of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.torture.campaign import HISTORIES_PER_KILL, Fates
from tests.torture.history import Reference, refer
from tests.torture.lives import Strike
from tests.torture.subject import Cell
from tests.torture.tiers_history import Fate, TierHistory, endure
from tests.torture.tiers_places import Kind, cluster

#: A snapshot of every step, a checkpoint of every fourth: what is adopted is mostly newer than the head.
MATRIX = (Cell(0, 1, 1, steps=48, every=4), Cell(0, 1, 2, steps=48, every=4))
LOSSES_OF_A_KIND = 2  # at most, in one history


@dataclass
class TierTally:
    """What a campaign did and found. ``origins``: where lives after each kind of loss began from;
    ``lost_steps``: how many steps each cost."""

    kills: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    lost_steps: dict[str, Counter[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, history: TierHistory) -> None:
        for fate, fell in history.fell:
            if fell:
                self.kills[f"{history.name} {fate.kind}"] += 1
                self.points[fate.strike.label] += 1
        self.origins += history.origins
        for kind, losses in history.lost_steps.items():
            mine = self.lost_steps.setdefault(kind, Counter())
            mine.update({str(steps): times for steps, times in losses.items()})
        self.counts["histories"] += 1
        self.counts.update({name: history.audit.get(name, 0) for name in ("samples", "repeated", "skipped")})
        self.faults += [f"{history.name} {history.root}: {fault}" for fault in history.faults]

    def merge(self, document: Mapping[str, Any]) -> None:
        """What ``vars`` of another one became as JSON."""
        for name in ("kills", "points", "origins", "counts"):
            getattr(self, name).update(document[name])
        for kind, losses in document["lost_steps"].items():
            self.lost_steps.setdefault(kind, Counter()).update(losses)
        self.faults += document["faults"]


class Losses:
    """The fates that one cell still has to suffer, so many of each kind."""

    def __init__(self, reference: Reference, kills: Mapping[Kind, int], seed: int) -> None:
        self._chance = random.Random(seed)
        self._fates = {
            kind: Fates(reference, number, 0, seed + place)
            for place, (kind, number) in enumerate(kills.items())
        }

    def take(self) -> list[Fate]:
        """For the next history; empty when all have fallen."""
        taken = [
            Fate(kind, _whole(kind, strike))
            for kind, fates in self._fates.items()
            for strike in fates.take(LOSSES_OF_A_KIND)
        ]
        self._chance.shuffle(taken)
        return taken

    def give_back(self, fates: list[Fate]) -> None:
        for fate in fates:
            self._fates[fate.kind].give_back([fate.strike])


def _whole(kind: Kind, strike: Strike) -> Strike:
    """A host takes all its processes along at once; of a worker the others may outlive it for a moment."""
    if kind == "worker":
        return strike
    return replace(strike, rank=strike.rank if strike.point else None, lag_s=0.0)


def torment(cell: Cell, base: Path, kills: Mapping[Kind, int], *, seed: int, remote: bool) -> TierTally:
    """So many losses of each kind over histories of one cell, each compared with the uninterrupted run.

    ``remote``: the root is a bucket of a real S3 server, else a directory.
    """
    tally = TierTally()
    with cluster(base, remote=remote) as places:
        untouched = places.places("reference")
        reference = refer(cell, base, untouched)
        places.forget(untouched)
        losses = Losses(reference, kills, seed)
        for number in range(HISTORIES_PER_KILL * sum(kills.values())):
            fates = losses.take()
            if not fates or tally.faults:
                break
            history = endure(reference, places, base / f"{cell.name}-{number}", fates)
            tally.add(history)
            fell = [struck for _, struck in history.fell] + [False] * len(fates)
            losses.give_back([fate for fate, struck in zip(fates, fell) if not struck])  # noqa: B905
    return tally
