"""L6. The job, its machine and its way of saving, as values. Times in seconds, rates in bytes per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from durable_core.errors import UsageError

HOUR, DAY = 3600.0, 86400.0

#: Interruptions of a published run of 54 days on 16,384 cards by what they took with them (Llama 3, table
#: 5: counts; its percentages do not match them). Planned ones drain, and lose no work.
MIX: Mapping[str, Mapping[str, int]] = {
    "process": {"software bug": 54, "NCCL watchdog": 7, "dependency": 2},
    "host": {
        "faulty GPU": 148, "HBM3": 72, "GPU SRAM": 19, "GPU system processor": 17, "NIC": 7, "thermal": 6,
        "SSD": 3, "PSU": 3, "chassis": 2, "IO board": 2, "CPU": 2, "memory": 2, "host maintenance": 32,
    },
    "rack": {"network switch or cable": 35},
    "numbers": {"silent corruption": 6},
    "planned": {"planned": 47},
}  # fmt: skip
DOMAINS = tuple(MIX)


def shares(mix: Mapping[str, Mapping[str, int]] = MIX) -> dict[str, float]:
    """The part of all interruptions that each domain has."""
    total = sum(sum(causes.values()) for causes in mix.values())
    return {domain: sum(causes.values()) / total for domain, causes in mix.items()}


@dataclass(frozen=True)
class Machine:
    """``mtbf``: M of the whole job; ``shares``: of it by domain. ``detect``: until it is known;
    ``isolate``: fencing, stopping, diagnosis; ``rendezvous``: processes, communicators; ``verify``.
    ``replace``: until what is lost with a host or rack is replaced: with a standby, and without.
    ``downtime_fails``: interruptions happen during a recovery too, and begin it anew."""

    mtbf: float = 4.38 * HOUR
    shares: Mapping[str, float] = field(default_factory=shares)
    detect: float = 30.0
    isolate: float = 30.0
    rendezvous: float = 90.0
    verify: float = 30.0
    replace_standby: float = 0.0
    replace_cold: float = 1800.0
    downtime_fails: bool = True

    def __post_init__(self) -> None:
        if not self.mtbf > 0 or abs(sum(self.shares.values()) - 1) > 1e-9:
            raise UsageError(
                f"machine: mtbf={self.mtbf}, shares={dict(self.shares)}", hint="shares add up to 1"
            )

    def downtime(self, domain: str, *, standby: bool) -> float:
        """D + R without reading the state. A planned stop is known beforehand."""
        seen = 0.0 if domain == "planned" else self.detect
        lost = domain in ("host", "rack", "planned", "numbers")
        placed = (self.replace_standby if standby else self.replace_cold) if lost else 0.0
        return seen + self.isolate + placed + self.rendezvous + self.verify


@dataclass(frozen=True)
class Tier:
    """``survives``: the domains after which it still has what it had; ``cost``: C of putting one checkpoint
    into it (what the loop stands still for); ``lag``: from then until it can be read there; ``every``: T,
    seconds of useful compute; ``load``: to read it back.

    A tier writes one checkpoint at a time: what is due meanwhile is left out, and counted.
    """

    name: str
    survives: frozenset[str]
    every: float
    cost: float
    lag: float = 0.0
    load: float = 0.0

    def __post_init__(self) -> None:
        if not self.every > 0 or min(self.cost, self.lag, self.load) < 0:
            raise UsageError(f"tier {self}", hint="every positive, the rest not negative")


@dataclass(frozen=True)
class Job:
    """``tiers``: fastest to read first. ``standby``: spare hosts stand ready; ``spares``: as a part of the
    cluster: they are allocated too. ``onset``: silent corruption is found so long after it began."""

    machine: Machine
    tiers: tuple[Tier, ...]
    standby: bool = True
    spares: float = 0.0
    onset: float = 600.0

    def __post_init__(self) -> None:
        known = set().union(*(tier.survives for tier in self.tiers)) if self.tiers else set()
        if missing := {name for name, part in self.machine.shares.items() if part} - known:
            raise UsageError(f"no tier survives {', '.join(sorted(missing))}", hint="add one that does")

    def tier_of(self, domain: str) -> Tier:
        """The fastest that survives it."""
        return next(tier for tier in self.tiers if domain in tier.survives)
