"""L5. Which tiers a run keeps copies in, as users write it. Frozen, checked on construction.

The root is the home of the run: its journal and documents lie there and every checkpoint ends up there.
Everything here is beside it: faster to come back from, or surviving something else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from durable_core.errors import UsageError
from durable_core.spec.goals import Goal
from durable_core.types import Traits


@dataclass(frozen=True)
class Memory:
    """Sealed snapshots in this host's shared memory: they survive the worker, not the host.

    ``every_n_steps``: a snapshot every so many optimizer steps besides the checkpoints, so that a crash of
    the worker costs at most that many; ``None``: one with each checkpoint. ``directory``: a tmpfs, with
    room for four times this host's part of the state. There is none by default: the slots of a run that is
    killed and never started again stay in memory until ``durable gc --memory``.
    """

    every_n_steps: int | None = None
    directory: str | os.PathLike[str] = "/dev/shm"

    def __post_init__(self) -> None:
        _positive("Memory.every_n_steps", self.every_n_steps)


@dataclass(frozen=True)
class Peer:
    """Snapshots in the memory of other hosts, kept by their ``durable agent``: they survive this host.

    ``addresses``: ``host:port`` of the agents that hold this writer's copies. The secret comes from
    ``DURABLE_PEER_SECRET`` or ``DURABLE_PEER_SECRET_FILE``; with ``DURABLE_PEER_TLS_CA`` the agents must
    show a certificate of that authority. ``every_n_steps`` as for ``Memory``. Peers keep a run until they
    are told to forget it (``durable gc --memory ROOT --peer``).
    """

    addresses: tuple[str, ...]
    every_n_steps: int | None = None
    bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.addresses, str) or not self.addresses:
            raise UsageError(f"Peer.addresses={self.addresses!r}", hint='a tuple such as ("host:7946",)')
        _positive("Peer.every_n_steps", self.every_n_steps)
        _positive("Peer.bytes_per_second", self.bytes_per_second)


@dataclass(frozen=True)
class Disk:
    """A directory that checkpoints are written to first, in front of a remote root: commits take as long as
    this disk, and the root receives its copy in the background.

    ``bytes_per_second`` bounds that copying; ``every``: every so many checkpoints are copied to the root.
    ``traits``: what the directory survives (default: the process and the reboot of the host).
    """

    path: str | os.PathLike[str]
    every: int = 1
    bytes_per_second: float | None = None
    traits: Traits | None = None

    def __post_init__(self) -> None:
        _positive("Disk.every", self.every)
        _positive("Disk.bytes_per_second", self.bytes_per_second)


@dataclass(frozen=True)
class Tiers:
    """``Tiers(memory=Memory(every_n_steps=1), peer=Peer(("host-b:7946",)), disk=Disk("/nvme/exp1"))``.

    ``goals``: what must be recoverable after which failure; a combination that cannot meet them is refused
    when the run is opened, with the arithmetic, and watched while it runs. ``root``: what the root
    survives, where the default for its kind is not true (a directory is a disk, a URL remote).
    """

    memory: Memory | None = None
    peer: Peer | None = None
    disk: Disk | None = None
    goals: tuple[Goal, ...] = ()
    root: Traits | None = None


def _positive(name: str, value: float | None) -> None:
    if value is not None and (isinstance(value, bool) or not value > 0):
        raise UsageError(f"{name}={value!r}", hint="a positive number, or None")
