"""L5. Being let in, and taking part: two contracts (SCHED-01).

An ``Admission`` is between a run and a scheduler: these devices are yours until you give them back. A
``Members`` is between the workers of one generation: who is who in this group. An admission outlives many
generations; a generation may end with its admission untouched. Neither stands for the other.

Admission is of the whole gang or of nothing (SCHED-02), and says why not. Real schedulers stand behind
``AllocationProvider``; ``cluster`` is a simulated one.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from durable_core.errors import UsageError
from durable_core.spec import RunSpec

LEVELS = ("host", "rack", "cluster")


@dataclass(frozen=True)
class Device:
    """One accelerator (or process slot) and the domains that it is lost with."""

    name: str
    host: str
    rack: str = ""
    cluster: str = ""

    def domain(self, level: str) -> str:
        return str(getattr(self, level))

    def within(self, names: frozenset[str]) -> bool:
        """Whether it, or a domain that it lies in, is among ``names``."""
        return not names.isdisjoint((self.name, self.host, self.rack, self.cluster))


@dataclass(frozen=True)
class Request:
    """``devices`` in gangs of ``group`` that must each lie in one domain of the level ``within``; none in a
    domain named in ``avoid``. ``device_hours``: what it is expected to use, at most ``budget`` (``None``: no
    limit); a retry asks with what is left of the budget."""

    devices: int
    group: int = 1
    within: str = "host"
    avoid: frozenset[str] = frozenset()
    device_hours: float = 0.0
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.devices < 1 or self.group < 1 or self.devices % self.group:
            raise UsageError(f"devices={self.devices}, group={self.group}", hint="whole groups, at least one")
        if self.within not in LEVELS:
            raise UsageError(f"within={self.within!r}", hint="one of " + ", ".join(LEVELS))

    @staticmethod
    def of(spec: RunSpec, workers: int, *, used_device_hours: float = 0.0, hours: float = 0.0) -> Request:
        """For ``workers`` of a spec that has used so much already and will run for ``hours`` more."""
        placement = None if spec.parallel is None else spec.parallel.placement
        return Request(
            workers,
            group=1 if placement is None else placement.group,
            within="host" if placement is None else placement.within,
            avoid=frozenset() if placement is None else frozenset(placement.avoid),
            device_hours=used_device_hours + workers * hours,
            budget=spec.budgets.device_hours,
        )


class Why(str, enum.Enum):
    """Why a gang is not admitted."""

    OVER_BUDGET = "over budget"
    NOT_ENOUGH = "not enough devices"
    QUARANTINED = "quarantined node"
    NO_PLACEMENT = "no valid placement"


@dataclass(frozen=True)
class Refused:
    why: Why
    detail: str

    def __str__(self) -> str:
        return f"{self.why.value}: {self.detail}"


@dataclass(frozen=True)
class Admission:
    """The contract with the scheduler: these devices, in the order of the groups, until ``release(id)``."""

    id: str
    devices: tuple[Device, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(device.host for device in self.devices))


@dataclass(frozen=True)
class Members:
    """The contract among the workers of one generation: which logical role each device plays. Ranks are none
    of its business: they are handed out anew at each rendezvous."""

    generation: int
    admission: str
    roles: Mapping[str, Device]

    @staticmethod
    def of(admission: Admission, generation: int, roles: Sequence[str]) -> Members:
        """``UsageError`` when the roles do not fit the admitted devices exactly."""
        if len(roles) != len(admission.devices) or len(set(roles)) != len(roles):
            raise UsageError(
                f"{len(roles)} roles for {len(admission.devices)} admitted devices",
                hint="one device for each role",
            )
        return Members(generation, admission.id, dict(zip(roles, admission.devices, strict=True)))


class AllocationProvider(Protocol):
    """What a scheduler has to do for a launcher."""

    def admit(self, request: Request, op_id: str) -> Admission | Refused:
        """All of it, or nothing held. The same ``op_id`` again: the same answer, and nothing taken twice."""

    def release(self, admission: str) -> None:
        """Give everything back. Again: nothing happens."""


def choose(
    request: Request, free: Iterable[Device], quarantined: frozenset[str] = frozenset()
) -> tuple[Device, ...] | Refused:
    """Devices for the whole gang, or why there are none. Pure; equal questions, equal answers.

    A gang that fits in one domain goes into the smallest that holds it; otherwise the fullest domains are
    taken first, so that as few as possible are broken up.
    """
    if request.budget is not None and request.device_hours > request.budget:
        return Refused(Why.OVER_BUDGET, f"{request.device_hours:g} of {request.budget:g} device-hours")
    usable = [device for device in free if not device.within(request.avoid)]
    if len(usable) < request.devices:
        return Refused(Why.NOT_ENOUGH, f"{len(usable)} of {request.devices} are free")
    healthy = [device for device in usable if not device.within(quarantined)]
    chosen = _place(request, healthy)
    if chosen is not None:
        return chosen
    if _place(request, usable) is not None:
        bad = sorted({device.host for device in usable} - {device.host for device in healthy})
        return Refused(Why.QUARANTINED, f"it would fit with {', '.join(bad)}")
    per = Counter(device.domain(request.within) for device in healthy)
    largest = max(per.values(), default=0)
    return Refused(
        Why.NO_PLACEMENT,
        f"{len(healthy)} devices are free, at most {largest} in one {request.within}, and "
        f"{request.devices // request.group} groups of {request.group} are needed",
    )


def fits(request: Request, devices: Sequence[Device]) -> bool:
    """Whether each group of consecutive ``devices`` lies in one domain, and none where it must not."""
    groups = [devices[at : at + request.group] for at in range(0, len(devices), request.group)]
    together = all(len({device.domain(request.within) for device in group}) == 1 for group in groups)
    return together and not any(device.within(request.avoid) for device in devices)


def _place(request: Request, free: Sequence[Device]) -> tuple[Device, ...] | None:
    domains: defaultdict[str, list[Device]] = defaultdict(list)
    for device in sorted(free, key=lambda device: device.name):
        domains[device.domain(request.within)].append(device)
    sizes = {name: len(devices) // request.group * request.group for name, devices in domains.items()}
    if sum(sizes.values()) < request.devices:
        return None
    whole = [name for name, size in sizes.items() if size >= request.devices]
    smallest = sorted(whole, key=lambda name: (sizes[name], name))[:1]
    order = smallest or sorted(sizes, key=lambda name: (-sizes[name], name))
    chosen: list[Device] = []
    for name in order:
        chosen += domains[name][: min(sizes[name], request.devices - len(chosen))]
    return tuple(chosen)
