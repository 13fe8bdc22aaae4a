"""Which deaths a cell of the matrix is to die, drawn from a seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.torture.history import History, Reference, refer, suffer
from tests.torture.lives import Strike
from tests.torture.subject import Cell

MATRIX = tuple(
    Cell(workers, accumulate, world) for world in (1, 2) for workers in (0, 2) for accumulate in (1, 4)
)
LONG_STEPS = 96  # of the one run per cell that dies up to twenty times
LONG_DEATHS = 20
PER_POINT = 2
HISTORIES_PER_KILL = 5  # a bound: strikes whose life ended first come again


@dataclass
class Tally:
    """What a campaign did and found."""

    kills: Counter[str] = field(default_factory=Counter)
    by_cell: Counter[str] = field(default_factory=Counter)
    cold: int = 0
    histories: int = 0
    most_kills_of_one_run: int = 0
    samples: int = 0
    repeated: int = 0
    skipped: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, history: History) -> None:
        self.histories += 1
        self.kills += history.kills
        self.by_cell[history.cell.name] += history.kills.total()
        self.cold += sum(strike.cold and death.struck for strike, death in history.deaths)
        self.most_kills_of_one_run = max(self.most_kills_of_one_run, history.kills.total())
        self.samples += history.audit.get("samples", 0)
        self.repeated += history.audit.get("repeated", 0)
        self.skipped += history.audit.get("skipped", 0)
        self.faults += [f"{history.cell.name} {history.root}: {fault}" for fault in history.faults]

    def merge(self, other: Tally) -> None:
        for name in ("kills", "by_cell"):
            getattr(self, name).update(getattr(other, name))
        for name in ("cold", "histories", "samples", "repeated", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.most_kills_of_one_run = max(self.most_kills_of_one_run, other.most_kills_of_one_run)
        self.faults += other.faults

    def to_json(self) -> dict[str, Any]:
        return {"kills_total": self.kills.total(), **vars(self)}


class Fates:
    """The strikes that a cell still has to suffer: each named point it passes, and random instants."""

    def __init__(self, reference: Reference, kills: int, cold: int, seed: int) -> None:
        self._chance = random.Random(seed)
        self._reference = reference
        ranks = range(reference.cell.world)
        points = [(name, rank) for rank in ranks for name in reference.arrivals(rank)] * PER_POINT
        self._chance.shuffle(points)
        strikes = [self._at_point(*point) for point in points[: kills * 2 // 3]]
        strikes += [self._at_random() for _ in range(kills - len(strikes))]
        self._chance.shuffle(strikes)
        self._pending = [replace(strike, cold=number < cold) for number, strike in enumerate(strikes)]

    def take(self, most: int = 6) -> list[Strike]:
        """The strikes for the next history, at least one; empty when all have fallen."""
        taken = self._chance.sample(self._pending, min(len(self._pending), self._chance.randint(1, most)))
        self._pending = [strike for strike in self._pending if all(strike is not other for other in taken)]
        return taken

    def give_back(self, strikes: list[Strike]) -> None:
        """Lives ended before these could fall: they come again, sooner."""
        for strike in strikes:
            again = replace(strike, point=f"{strike.label}:1") if strike.point else self._at_random()
            self._pending.append(replace(again, cold=strike.cold))

    def _at_point(self, name: str, rank: int) -> Strike:
        arrival = self._chance.randint(1, max(1, self._reference.arrivals(rank)[name] // 2))
        return Strike(point=f"{name}:{arrival}", rank=rank, lag_s=self._lag())

    def _at_random(self) -> Strike:
        rank = self._chance.choice([None, *range(self._reference.cell.world)])
        return Strike(at_s=self._chance.uniform(0.0, self._reference.seconds), rank=rank, lag_s=self._lag())

    def _lag(self) -> float:
        """How long the survivors go on without the dead; nothing to wait for when alone."""
        return self._chance.uniform(0.0, 0.3) if self._reference.cell.world > 1 else 0.0


def torment(cell: Cell, base: Path, *, kills: int, cold: int, seed: int, long: bool) -> Tally:
    """``kills`` SIGKILLs over histories of one cell, each compared with the uninterrupted run."""
    tally = Tally()
    if long:
        kills -= _long_history(cell, base, seed, tally)
    if kills <= 0 or tally.faults:
        return tally
    reference = refer(cell, base)
    fates = Fates(reference, kills, cold, seed)
    for number in range(HISTORIES_PER_KILL * kills):
        strikes = fates.take()
        if not strikes or tally.faults:
            break
        history = suffer(reference, base / f"{cell.name}-{number}", strikes)
        tally.add(history)
        fell = [death.struck for _, death in history.deaths] + [False] * len(strikes)
        fates.give_back([strike for strike, struck in zip(strikes, fell) if not struck])  # noqa: B905
    return tally


def _long_history(cell: Cell, base: Path, seed: int, tally: Tally) -> int:
    """One longer run that dies up to twenty times, every death early in a life."""
    reference = refer(replace(cell, steps=LONG_STEPS), base)
    chance = random.Random(seed)
    soon = reference.seconds / 4
    strikes = [
        Strike(at_s=chance.uniform(0.0, soon), rank=chance.choice([None, *range(cell.world)]))
        for _ in range(LONG_DEATHS)
    ]
    history = suffer(reference, base / f"{cell.name}-long", strikes)
    tally.add(history)
    return history.kills.total()
