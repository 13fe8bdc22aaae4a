"""L5. What is to be checked: a root, and what is known of the run that will start there."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from durable_core.clock import Clock, SystemClock
from durable_core.engine.inspect import Reader, open_tier
from durable_core.errors import NotFoundError
from durable_core.launch.preflight.lab import Lab
from durable_core.spec import RunSpec
from durable_core.tier.base import Tier

#: What must be the same on all nodes besides the interpreter: distributions, as they are installed.
PACKAGES = (
    "durable-training", "torch", "numpy", "safetensors", "lightning", "accelerate", "transformers", "triton",
)  # fmt: skip
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Node:
    """What a node knows of itself. ``clock_offset_s``: of its wall clock from that of node 0, as an exchange
    between the two measured it."""

    versions: Mapping[str, str]
    clock_offset_s: float = 0.0

    @staticmethod
    def here() -> Node:
        """Of this node; nothing is imported for it."""
        return Node(dict(_versions()))

    def to_json(self) -> dict[str, Any]:
        return {"versions": dict(self.versions), "clock_offset_s": self.clock_offset_s}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Node:
        versions = {str(name): str(value) for name, value in document["versions"].items()}
        return Node(versions, float(document["clock_offset_s"]))


def _versions() -> list[tuple[str, str]]:
    found = [("python", platform.python_version()), ("machine", platform.machine())]
    for name in PACKAGES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue  # only what is installed can differ; a node that lacks it differs from one that has it
    if _DRIVER.exists():
        found.append(("nvidia-driver", _DRIVER.read_text(errors="replace").partition("\n")[0].strip()))
    return found


@dataclass(frozen=True)
class Target:
    """``tier``: the root's. ``workers``: on all nodes; ``local``: on this one. ``nodes``: what each node of
    the group knows of itself, this one among them. ``device``: the kind that is wanted (``cuda``, ``cpu``;
    ``""``: accelerators where there are any). ``data``: a dataset's manifest, ``data_root``: where its
    objects are (``""``: as the manifest says); ``cache``: of data objects on this host. ``state_bytes``: of
    one complete checkpoint (``None``: as the newest one was). ``peer_copies``: of other hosts' state that
    this one holds in memory. ``generation``: that the workers will be told (``None``: they claim).
    ``standbys``: asked for and ready. ``link_bytes_per_second``: that collectives must reach. ``sample``:
    data objects and cache entries to read."""

    tier: Tier
    spec: RunSpec = field(default_factory=RunSpec)
    workers: int = 1
    local: int = 1
    nodes: Mapping[str, Node] = field(default_factory=dict)
    device: str = ""
    data: str = ""
    data_root: str = ""
    cache: str = ""
    state_bytes: int | None = None
    peer_copies: int = 0
    shared_memory: str = "/dev/shm"
    generation: int | None = None
    standbys: tuple[int, int] = (0, 0)
    link_bytes_per_second: float | None = None
    sample: int = 4
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    clock: Clock = field(default_factory=SystemClock)
    lab: Lab = field(default_factory=Lab)
    _read: list[Reader | None] = field(default_factory=list, compare=False, repr=False)

    @property
    def run(self) -> Reader | None:
        """The run at the root, read once; ``None``: there is none yet. ``CorruptError``, ``TierError``."""
        if not self._read:
            try:
                self._read.append(open_tier(self.tier, clock=self.clock))
            except NotFoundError:
                self._read.append(None)
        return self._read[0]

    @property
    def size(self) -> int | None:
        """Bytes of one complete checkpoint; ``None``: nobody knows yet."""
        if self.state_bytes is not None or self.run is None:
            return self.state_bytes
        try:
            return self.run.newest_usable().bytes
        except NotFoundError:
            return None
