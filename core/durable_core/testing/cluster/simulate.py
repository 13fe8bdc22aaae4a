"""L6. One run, event by event: saves, copies that land, interruptions, recoveries. Seeded."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from durable_core.testing.cluster.model import Job, Tier

#: After so many seconds of wall time for one of useful compute, the run is given up: it gets nowhere.
HOPELESS = 1000.0


@dataclass(frozen=True)
class Outcome:
    """Where the wall time went, in seconds: every instant in exactly one of the first five. ``worst``: the
    most that one interruption lost. ``skipped``: copies left out because the one before was still being
    written."""

    useful: float
    saving: float
    lost: float
    down: float
    idle: float
    interruptions: int
    worst: float
    skipped: int
    by_tier: dict[str, int]

    @property
    def wall(self) -> float:
        return self.useful + self.saving + self.lost + self.down + self.idle

    @property
    def ettr(self) -> float:
        return self.useful / self.wall

    @property
    def waste(self) -> float:
        """What saving and recovering cost: 1 - ETTR without the spares."""
        return 1.0 - self.useful / (self.wall - self.idle)


@dataclass
class _Copies:
    """What one tier holds, and what is on its way into it: positions in useful seconds."""

    tier: Tier
    due: float = 0.0  # the position of the next copy
    newest: float = 0.0
    landing: tuple[float, float] | None = None  # wall time, position

    def settle(self, now: float) -> None:
        """What has landed by ``now`` is there."""
        if self.landing is not None and self.landing[0] <= now:
            self.newest, self.landing = self.landing[1], None

    def lose(self, now: float, domain: str, clean: float) -> None:
        """Of older copies those are left that are whole intervals before the newest, up to ``clean``."""
        self.settle(now)
        self.landing = None
        if domain not in self.tier.survives:
            self.newest = 0.0
        elif self.newest > clean:
            back = math.ceil((self.newest - clean) / self.tier.every)
            self.newest = max(0.0, self.newest - back * self.tier.every)


@dataclass
class _Run:
    job: Job
    chance: random.Random
    now: float = 0.0  # wall
    at: float = 0.0  # useful seconds since the start, on the accepted history
    saving: float = 0.0
    lost: float = 0.0
    down: float = 0.0
    interruptions: int = 0
    worst: float = 0.0
    skipped: int = 0
    by_tier: dict[str, int] = field(default_factory=dict)
    next_failure: float = 0.0

    def __post_init__(self) -> None:
        self.copies = [_Copies(tier, due=tier.every) for tier in self.job.tiers]
        self.domains = list(self.job.machine.shares)
        self.weights = list(self.job.machine.shares.values())
        self.draw()

    def draw(self) -> None:
        self.next_failure = self.now + self.chance.expovariate(1.0 / self.job.machine.mtbf)

    # --- while nothing fails -----------------------------------------------------------------

    def train(self, until: float) -> None:
        """Up to the next copy that is due, or the end, or the failure: then the recovery."""
        target = min(until, *(copies.due for copies in self.copies))
        reach = self.now + (target - self.at)
        if self.next_failure < reach:
            self.at += self.next_failure - self.now
            self.now = self.next_failure
            self.fail()
            return
        self.now, self.at = reach, target
        for copies in self.copies:
            if copies.due <= self.at and not self.save(copies):
                return

    def save(self, copies: _Copies) -> bool:
        """Whether it was made; an interruption during it is one of this position."""
        copies.settle(self.now)
        if copies.landing is not None:
            self.skipped += 1
            copies.due = self.at + copies.tier.every
            return True
        end = self.now + copies.tier.cost
        if self.next_failure < end:
            self.saving += self.next_failure - self.now
            self.now = self.next_failure
            self.fail()
            return False
        self.saving += copies.tier.cost
        self.now = end
        copies.due = self.at + copies.tier.every
        copies.landing = (self.now + copies.tier.lag, self.at)
        return True

    # --- when something fails ----------------------------------------------------------------

    def fail(self) -> None:
        """Recover; interruptions meanwhile begin it anew, from what is left then."""
        job, machine = self.job, self.job.machine
        before = self.at
        while True:
            domain = self.chance.choices(self.domains, self.weights)[0]
            self.interruptions += 1
            self.at, reading = self.restore(domain)
            back = self.now + machine.downtime(domain, standby=job.standby) + reading
            if machine.downtime_fails:
                self.draw()
                if self.next_failure < back:
                    self.down += self.next_failure - self.now
                    self.now = self.next_failure
                    continue
            self.down += back - self.now
            self.now = back
            break
        self.lost += before - self.at
        self.worst = max(self.worst, before - self.at)
        if not machine.downtime_fails:
            self.draw()
        for copies in self.copies:
            copies.due = self.at + copies.tier.every

    def restore(self, domain: str) -> tuple[float, float]:
        """From where it goes on, and how long reading takes: the newest that is left, then the fastest to
        read.

        What is on its way is lost, and what a tier that does not survive had.
        """
        clean = self.at - self.job.onset if domain == "numbers" else self.at
        best, source = 0.0, None
        for copies in self.copies:
            copies.lose(self.now, domain, clean)
            if copies.newest > best:
                best, source = copies.newest, copies.tier
        if domain == "planned":
            return self.drain()
        name = "the start" if source is None else source.name
        self.by_tier[name] = self.by_tier.get(name, 0) + 1
        return best, 0.0 if source is None else source.load

    def drain(self) -> tuple[float, float]:
        """A planned stop waits until the last step is where it outlives the stop, and loses nothing."""
        tier = self.job.tier_of("planned")
        for copies in self.copies:
            if copies.tier is tier:
                copies.newest = self.at
        self.by_tier[tier.name] = self.by_tier.get(tier.name, 0) + 1
        return self.at, tier.cost + tier.lag + tier.load


def run(job: Job, useful: float, seed: int) -> Outcome:
    """``useful`` seconds of compute, from the start to the end, whatever that takes."""
    state = _Run(job, random.Random(seed))
    while state.at < useful and state.now < HOPELESS * useful:
        state.train(useful)
    wall = state.at + state.saving + state.lost + state.down
    return Outcome(
        state.at, state.saving, state.lost, state.down, wall * job.spares, state.interruptions, state.worst,
        state.skipped, state.by_tier,
    )  # fmt: skip
