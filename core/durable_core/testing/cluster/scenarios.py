"""L6. The figure of the sources and their reference incident: ten thousand cards, 9.8 TB of state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any

from durable_core.session.cadence import model as cadence
from durable_core.testing.cluster.model import DAY, HOUR, Job, Machine, Tier
from durable_core.testing.cluster.simulate import run

ALL = frozenset({"process", "host", "rack", "numbers", "planned"})
#: The run that is simulated: 14 days of useful compute.
USEFUL = 14 * DAY


@dataclass(frozen=True)
class Plant:
    """Assumptions, all printed with the results. ``remote``: durable writes of the cluster together;
    ``remote_read``; ``staging``, ``nic``, ``disk``: of one host, memory, network, local disk. ``exposed``:
    what a save stands still for beside the copy (barrier, allocation)."""

    cards: int = 10_000
    per_host: int = 8
    state: float = 9.8e12
    remote: float = 20e9
    remote_read: float = 100e9
    staging: float = 20e9
    nic: float = 25e9
    disk: float = 3e9
    exposed: float = 0.3
    interference: float = 0.0

    @property
    def hosts(self) -> int:
        return self.cards // self.per_host

    @property
    def part(self) -> float:
        """Bytes of one host."""
        return self.state / self.hosts

    @property
    def copy(self) -> float:
        """Seconds that the loop stands still for a copy in memory."""
        return self.part / self.staging + self.exposed


@dataclass(frozen=True)
class Policy:
    name: str
    make: Callable[[Plant, Machine], Job]


def sync(plant: Plant, machine: Machine) -> Job:
    """Everything to the remote store while the loop stands still."""
    cost = plant.state / plant.remote
    every = cadence.exact(cost, machine.mtbf)
    return Job(machine, (Tier("remote", ALL, every, cost, 0.0, plant.state / plant.remote_read),))


def asynchronous(plant: Plant, machine: Machine) -> Job:
    """A copy in memory, and from there to the remote store, one after the other: no more often than that
    drains."""
    lag = plant.state / plant.remote
    cost = plant.copy + plant.interference * lag
    every = max(cadence.exact(cost, machine.mtbf), lag)
    return Job(machine, (Tier("remote", ALL, every, cost, lag, plant.state / plant.remote_read),))


def tiered(plant: Plant, machine: Machine) -> Job:
    """Memory, its copies on peers in other racks, local disks and the remote store.

    One copy serves all: only the fastest makes the loop stand still, the others interfere. The parts of a
    lost host come from its peer; after corruption the disks have older steps than memory.
    """
    peer, disk, remote = plant.part / plant.nic, plant.part / plant.disk, plant.state / plant.remote
    load = cadence.Load(plant.copy + plant.interference * peer, 1.0 / machine.mtbf)
    every = max(cadence.tier_interval(load, "exact"), peer)

    def multiple(lag: float) -> float:
        """The shortest interval that a tier of this lag keeps up with."""
        return every * max(1, math.ceil(lag / every))

    def tier(name: str, survives: frozenset[str], lag: float, load: float) -> Tier:
        return Tier(name, survives, multiple(lag), plant.interference * lag, lag, load)

    memory = Tier("memory", frozenset({"process"}), every, plant.copy, 0.0, plant.part / plant.staging)
    others = (
        tier("peer", frozenset({"process", "host", "rack", "planned"}), peer, peer),
        tier("disk", frozenset({"process", "numbers"}), disk, disk),
        tier("remote", ALL, remote, plant.state / plant.remote_read),
    )
    return Job(machine, (memory, *others))


def _cold(make: Callable[[Plant, Machine], Job]) -> Callable[[Plant, Machine], Job]:
    return lambda plant, machine: replace(make(plant, machine), standby=False)


def _spared(make: Callable[[Plant, Machine], Job]) -> Callable[[Plant, Machine], Job]:
    """1 % of the hosts stand by, and are paid for."""
    return lambda plant, machine: replace(make(plant, machine), standby=True, spares=0.01)


POLICIES = (
    Policy("sync, no standby", _cold(sync)),
    Policy("sync, standby", _spared(sync)),
    Policy("async, no standby", _cold(asynchronous)),
    Policy("async, standby", _spared(asynchronous)),
    Policy("tiers, no standby", _cold(tiered)),
    Policy("tiers, standby", _spared(tiered)),
)


# --- ETTR by policy --------------------------------------------------------------------------


def measure(job: Job, seeds: int, useful: float = USEFUL) -> dict[str, Any]:
    """Means over as many runs; ``error``: the standard error of ``ettr``. ``first_order``: W of the model."""
    found = [run(job, useful, seed) for seed in range(seeds)]
    ettrs = [one.ettr for one in found]
    return {
        "ettr": fmean(ettrs),
        "error": stdev(ettrs) / math.sqrt(seeds) if seeds > 1 else 0.0,
        "waste": fmean(one.waste for one in found),
        "predicted_waste": predicted(job),
        "saving": fmean(one.saving / one.wall for one in found),
        "lost": fmean(one.lost / one.wall for one in found),
        "down": fmean(one.down / one.wall for one in found),
        "idle": fmean(one.idle / one.wall for one in found),
        "interruptions": fmean(one.interruptions for one in found),
        "worst_lost_s": max(one.worst for one in found),
        "skipped": fmean(one.skipped for one in found),
        "every_s": {tier.name: tier.every for tier in job.tiers},
    }


def predicted(job: Job) -> float:
    """W to first order: ``sum C_i/T_i + sum over domains of rate (T/2 + L + R + D)`` of the tier that
    serves it; of the time that is not useful, as a part of all."""
    machine = job.machine
    saving = sum(tier.cost / tier.every for tier in job.tiers)
    broken = 0.0
    for domain, share in machine.shares.items():
        tier = job.tier_of(domain)
        down = machine.downtime(domain, standby=job.standby) + tier.load
        if domain == "planned":
            down += tier.cost + tier.lag
        else:
            down += tier.every / 2 + tier.lag + (job.onset if domain == "numbers" else 0.0)
        broken += share * down / machine.mtbf
    # saving is a part of useful time, what breaks a part of wall time: useful (1 + saving) / (1 - broken) =
    # wall
    return 1.0 - (1.0 - min(broken, 1.0)) / (1.0 + saving)


def by_policy(seeds: int, plant: Plant | None = None, machine: Machine | None = None) -> list[dict[str, Any]]:
    plant, machine = plant or Plant(), machine or Machine()
    return [{"policy": each.name, **measure(each.make(plant, machine), seeds)} for each in POLICIES]


# --- sensitivity -----------------------------------------------------------------------------

Change = Callable[[Plant, Machine, float], tuple[Plant, Machine]]

#: By what a factor changes: what is measured is the effect on the tiered policy with standbys.
KNOBS: Mapping[str, Change] = {
    "C, exposed cost": lambda p, m, f: (replace(p, exposed=p.exposed * f, staging=p.staging / f), m),
    "D, detection and isolation": lambda p, m, f: (p, replace(m, detect=m.detect * f, isolate=m.isolate * f)),
    "R, rendezvous and verification": lambda p, m, f: (
        p,
        replace(m, rendezvous=m.rendezvous * f, verify=m.verify * f),
    ),
    "M, time between interruptions": lambda p, m, f: (p, replace(m, mtbf=m.mtbf * f)),
    "state": lambda p, m, f: (replace(p, state=p.state * f), m),
    "network of a host": lambda p, m, f: (replace(p, nic=p.nic * f), m),
    "remote store": lambda p, m, f: (replace(p, remote=p.remote * f, remote_read=p.remote_read * f), m),
}
FACTORS = (0.25, 0.5, 2.0, 4.0)
INTERFERENCE = (0.001, 0.005, 0.01, 0.05)


def sensitivity(seeds: int) -> list[dict[str, Any]]:
    """ETTR of the tiered policy with standbys when one thing is other than assumed."""
    rows = []
    for name, change in KNOBS.items():
        row: dict[str, Any] = {"what": name}
        for factor in FACTORS:
            plant, machine = change(Plant(), Machine(), factor)
            row[f"x{factor:g}"] = measure(_spared(tiered)(plant, machine), seeds)["ettr"]
        rows.append(row)
    return rows


def interference(seeds: int) -> list[dict[str, Any]]:
    """ETTR when the writes in the background slow the steps by so much, by policy with standbys."""
    rows = []
    for slower in INTERFERENCE:
        plant = Plant(interference=slower)
        row: dict[str, Any] = {"slower": slower}
        for name, make in (("async", asynchronous), ("tiers", tiered)):
            row[name] = measure(_spared(make)(plant, Machine()), seeds)["ettr"]
        rows.append(row)
    return rows


def needed(target: float, make: Callable[[Plant, Machine], Job] = tiered) -> list[dict[str, Any]]:
    """By which factor each thing alone would have to change for ``1 - W`` to reach ``target``; ``None``: no
    factor from 1/1000 to 1000 does."""

    def reached(change: Change) -> Callable[[float], float]:
        return lambda factor: 1.0 - predicted(make(*change(Plant(), Machine(), factor)))

    return [{"what": name, "factor": _factor(reached(change), target)} for name, change in KNOBS.items()]


def _factor(value: Callable[[float], float], target: float) -> float | None:
    """The factor nearest to 1 at which the monotone ``value`` comes to ``target``."""
    if value(1.0) >= target:
        return 1.0
    far = next((far for far in (1000.0, 0.001) if value(far) >= target), None)
    if far is None:
        return None
    low, high = 0.0, math.log(far)  # too little, enough
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if value(math.exp(middle)) >= target else (middle, high)
    return math.exp(high)


# --- the reference incident ------------------------------------------------------------------

#: Fourteen days; half an hour to find the cause, two hours to restore, three periods of saving lost.
LOCATE, RESTORE, PERIODS = 0.5 * HOUR, 2 * HOUR, 3


def incident(seeds: int, *, period: float = HOUR) -> dict[str, Any]:
    """The incident replayed (RECOV-10): a host is lost at random instants of 14 days.

    As it went: found by hand, hours of reading, the newest copies useless. Then with verified copies in
    tiers that are saved once in the same ``period``, and with the copies of the tier that serves damaged
    too, so that another has to: the worst of all seeds.
    """
    machine = Machine(mtbf=USEFUL / 3, shares={"host": 1.0})
    job = tiered(Plant(), machine)
    ours = replace(job, tiers=tuple(replace(tier, every=period) for tier in job.tiers))
    served = ours.tier_of("host")
    damaged = replace(ours, tiers=tuple(tier for tier in ours.tiers if tier is not served))
    rows = [_replayed(name, each, seeds) for name, each in (("ours", ours), ("its copies damaged", damaged))]
    return {
        "as_it_was": {"lost_s": PERIODS * period, "rto_s": LOCATE + RESTORE, "periods": PERIODS},
        "period_s": period,
        "replays": rows,
        "at_most_one_interval": all(row["worst_lost_s"] <= row["one_interval_s"] + 1e-6 for row in rows),
        "rto_kept": all(row["mean_rto_s"] < LOCATE + RESTORE for row in rows),
    }


def _replayed(name: str, job: Job, seeds: int) -> dict[str, Any]:
    """``one_interval_s``: with the lag until a copy can be read."""
    tier = job.tier_of("host")
    found = [run(job, USEFUL, seed) for seed in range(seeds)]
    count = sum(one.interruptions for one in found)
    return {
        "how": name,
        "tier": tier.name,
        "incidents": count,
        "worst_lost_s": max(one.worst for one in found),
        "one_interval_s": tier.every + tier.lag,
        "mean_rto_s": sum(one.down for one in found) / max(count, 1),
    }


def assumptions() -> dict[str, Any]:
    plant = Plant()
    return {
        "plant": {**asdict(plant), "hosts": plant.hosts, "copy_s": plant.copy},
        "machine": asdict(Machine()),
    }
