"""L5. A simulated cluster: an ``AllocationProvider`` whose domains can be fragmented, lost and quarantined.

Spares are a policy of cost, not of correctness (SCHED-13): without any, what is lost is replaced from what is
free, or the run asks for admission again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from durable_core.errors import UsageError
from durable_core.launch.admission import Admission, Device, Refused, Request, Why, choose, fits


@dataclass(frozen=True)
class Spares:
    """Hosts that are held back for replacements: how many; ``of`` has the usual share."""

    hosts: int = 0

    @staticmethod
    def of(hosts: int, share: float = 0.01) -> Spares:
        """One or two in a hundred hosts is what large clusters hold; at least one when any is asked for."""
        if not 0 <= share < 1:
            raise UsageError(f"share={share}", hint="a part of the hosts, 0 or more and below 1")
        return Spares(0 if share == 0 else max(1, round(hosts * share)))


class Cluster:
    """Not for several threads. ``admit`` holds the whole gang or nothing; everything is idempotent."""

    def __init__(self, devices: Iterable[Device], spares: Spares | None = None) -> None:
        self._devices = {device.name: device for device in devices}
        hosts = sorted({device.host for device in self._devices.values()})
        kept = (spares or Spares()).hosts
        self._spares = set(hosts[len(hosts) - kept :] if kept else ())
        self._lost: set[str] = set()
        self._quarantined: set[str] = set()
        self._held: dict[str, Admission] = {}
        self._requests: dict[str, Request] = {}
        self._answers: dict[str, str] = {}  # op_id -> admission
        self._numbers = 0

    @staticmethod
    def of(racks: int, hosts: int, devices: int, spares: Spares | None = None) -> Cluster:
        """``racks`` of ``hosts`` each, with ``devices`` each."""
        return Cluster(
            (
                Device(f"r{rack}h{host}d{device}", f"r{rack}h{host}", f"r{rack}", "c0")
                for rack in range(racks)
                for host in range(hosts)
                for device in range(devices)
            ),
            spares,
        )

    # --- the provider ------------------------------------------------------------------------

    def admit(self, request: Request, op_id: str) -> Admission | Refused:
        held = self._held.get(self._answers.get(op_id, ""))
        if held is not None:
            return held
        chosen = choose(request, self._free(spares=False), frozenset(self._quarantined))
        return chosen if isinstance(chosen, Refused) else self._hold(request, chosen, op_id)

    def release(self, admission: str) -> None:
        self._held.pop(admission, None)

    def replace(self, admission: str, op_id: str) -> Admission | Refused:
        """The same admission with what it lost, or what was quarantined, replaced host by host: by a spare,
        else by a free host. When there is none for all of it, nothing changes: release, and ask again."""
        held = self._held[admission]
        if self._answers.get(op_id) == admission:
            return held
        bad = frozenset(self._lost | self._quarantined)
        devices = list(held.devices)
        for host in dict.fromkeys(device.host for device in devices if device.within(bad)):
            places = [place for place, device in enumerate(devices) if device.host == host]
            taken = {device.name for device in devices}
            free = [device for device in self._free(spares=True) if device.name not in taken]
            spare = [device for device in free if device.host in self._spares]
            request = Request(len(places), group=len(places), within="host")
            found = choose(request, spare, bad)
            if isinstance(found, Refused):
                found = choose(request, free, bad)
            if isinstance(found, Refused):
                return found
            for place, device in zip(places, found, strict=True):
                devices[place] = device
        if not fits(self._requests[admission], devices):
            return Refused(Why.NO_PLACEMENT, "what is free does not lie where its group is")
        self._spares -= {device.host for device in devices}
        self._held[admission] = replace(held, devices=tuple(devices))
        self._answers[op_id] = admission
        return self._held[admission]

    # --- what happens to it ------------------------------------------------------------------

    def lose(self, name: str) -> None:
        """A device, host, rack or cluster is gone."""
        self._lost.add(name)

    def restore(self, name: str) -> None:
        self._lost.discard(name)
        self._quarantined.discard(name)

    def quarantine(self, name: str) -> None:
        self._quarantined.add(name)

    def occupy(self, names: Iterable[str]) -> None:
        """Somebody else's: how a cluster gets fragmented."""
        taken = tuple(self._devices[name] for name in names)
        self._hold(Request(len(taken)), taken, f"other:{self._numbers}")

    @property
    def free(self) -> tuple[Device, ...]:
        return self._free(spares=False)

    @property
    def held(self) -> tuple[Device, ...]:
        return tuple(device for admission in self._held.values() for device in admission.devices)

    @property
    def spares(self) -> tuple[str, ...]:
        return tuple(sorted(self._spares))

    def _hold(self, request: Request, devices: tuple[Device, ...], op_id: str) -> Admission:
        self._numbers += 1
        admission = Admission(f"a{self._numbers}", devices)
        self._requests[admission.id] = request
        self._held[admission.id] = admission
        self._answers[op_id] = admission.id
        return admission

    def _free(self, *, spares: bool) -> tuple[Device, ...]:
        held = {device.name for device in self.held}
        lost = frozenset(self._lost)
        return tuple(
            device
            for device in self._devices.values()
            if device.name not in held
            and not device.within(lost)
            and (spares or device.host not in self._spares)
        )
