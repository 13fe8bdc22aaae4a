"""L5. From the tiers as users declare them to what this process can write to and read from."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from durable_core.clock import SystemClock
from durable_core.engine import probe
from durable_core.engine.copies import Place, Source, Sources, TierSource
from durable_core.engine.sealing import PeerStore
from durable_core.errors import UsageError
from durable_core.session import goals
from durable_core.session.cadence import Cadence
from durable_core.session.places import Tiers
from durable_core.session.snapshots import Keeping
from durable_core.state.snapshots import SlotMemory
from durable_core.state.staging import SlotPool
from durable_core.tier.base import Tier
from durable_core.tier.limit import RateLimit, RateLimited
from durable_core.tier.peer.client import PeerTier
from durable_core.tier.peer.secret import find_secret
from durable_core.tier.peer.tls import find_client_context
from durable_core.tier.posix import PosixTier
from durable_core.types import Traits


@dataclass(frozen=True)
class Stores:
    """``home`` holds the journal and all documents; ``landing`` gets the shards first (it may be home).

    ``copy_every`` and ``copy_bytes_per_second``: how checkpoints get from there to home.
    """

    home: Place
    landing: Place
    copy_every: int
    copy_bytes_per_second: float | None
    memory: SlotMemory | None
    pool: SlotPool
    keeping: Keeping

    @property
    def places(self) -> tuple[Place, ...]:
        """Where checkpoints lie, fastest first."""
        return tuple(dict.fromkeys((self.landing, self.home)))

    def traits(self) -> dict[str, Traits]:
        """Every tier of this run, fastest first."""
        kept: dict[str, Traits] = {}
        if self.keeping.memory:
            kept["memory"] = goals.default_traits("memory")
        if self.keeping.peers:
            kept["peer"] = goals.default_traits("peer")
        return {**kept, **{place.name: place.traits for place in self.places}}

    def sources(self, faster: Iterable[Source] = ()) -> Sources:
        """For one restore: ``faster`` before the places."""
        return Sources([*faster, *map(TierSource, self.places)])

    def close(self, *, needed: bool) -> None:
        """``needed``: a snapshot in memory is newer than the newest checkpoint; else all are freed."""
        self.pool.close(remove=not needed)
        if self.memory is not None and not needed:
            self.memory.free()


def open_stores(
    home: Tier, tiers: Tiers, *, known_as: str, run_id: str, generation: int, role: str, slots: int
) -> Stores:  # fmt: skip
    """``known_as``: what the journal has called the root since the run began; ``""``: it begins now.

    Raises what the tiers raise when they cannot do what is asked of them; peers are not called here.
    """
    name = known_as or name_of(home, tiers)
    if name == "disk" and tiers.disk is not None:
        raise UsageError(
            f"the run at {home.location} began without a disk in front of its directory",
            hint="drop Tiers.disk, or begin another run",
        )
    root = Place(name, home, tiers.root or root_traits(home))
    landing = root
    if tiers.disk is not None:
        disk = PosixTier(Path(tiers.disk.path), reached=probe.reached)
        disk.probe()
        landing = Place("disk", disk, tiers.disk.traits or goals.default_traits("disk"))
    memory = None
    if tiers.memory is not None:
        memory = SlotMemory(run_id, directory=Path(tiers.memory.directory), role=role)
    keeping = Keeping(
        memory=memory is not None,
        memory_every=None if tiers.memory is None else tiers.memory.every_n_steps,
        peers=_peers(tiers, run_id, generation),
        peer_every=None if tiers.peer is None else tiers.peer.every_n_steps,
    )
    return Stores(
        home=root,
        landing=landing,
        copy_every=1 if tiers.disk is None else tiers.disk.every,
        copy_bytes_per_second=None if tiers.disk is None else tiers.disk.bytes_per_second,
        memory=memory,
        pool=SlotPool(max(slots, 1 + (memory is not None)) + keeping.extra_slots, memory=memory),
        keeping=keeping,
    )


def require_feasible(home: Tier, tiers: Tiers, cadence: Cadence) -> None:
    """``UsageError`` with the arithmetic when no tier can meet a declared goal. Nothing is measured yet:
    sizes and times count as nothing, so only what cannot work at all is refused; the rest is watched."""
    if not tiers.goals:
        return
    every = cadence.every_n_steps if isinstance(cadence.every_n_steps, int) else 1
    of_steps = {"memory": tiers.memory, "peer": tiers.peer}
    figures = goals.Figures(
        state_bytes=0,
        step_seconds=1e-6,
        every_steps=every,
        steps_of={name: it.every_n_steps for name, it in of_steps.items() if it and it.every_n_steps},
    )
    name = name_of(home, tiers)
    root = tiers.root or root_traits(home)
    declared = {each: goals.default_traits(each) for each, it in of_steps.items() if it}
    if tiers.disk is not None:
        declared["disk"] = tiers.disk.traits or goals.default_traits("disk")
        root = replace(root, every=tiers.disk.every)
    goals.feasible(tiers.goals, {**declared, name: root}, figures, home=name).require()


def name_of(home: Tier, tiers: Tiers) -> str:
    """What the journal calls the root: ``disk`` for a directory, and ``remote`` for everything else and for
    a directory with a disk in front of it."""
    return "disk" if isinstance(home, PosixTier) and tiers.disk is None else "remote"


def root_traits(home: Tier) -> Traits:
    """Of a root that is not declared: a directory is taken for this host's own disk."""
    return goals.default_traits("disk" if isinstance(home, PosixTier) else "remote")


def _peers(tiers: Tiers, run_id: str, generation: int) -> tuple[PeerStore, ...]:
    if tiers.peer is None:
        return ()
    secret, tls = find_secret(os.environ), find_client_context(os.environ)
    rate = tiers.peer.bytes_per_second
    limit = None if rate is None else RateLimit(rate, SystemClock())  # of all peers together
    stores: list[PeerStore] = []
    for address in tiers.peer.addresses:
        peer: Tier = PeerTier(address, run_id=run_id, generation=generation, secret=secret, tls=tls)
        stores.append(PeerStore(address, peer if limit is None else RateLimited(peer, limit)))
    return tuple(stores)
