"""L1. What must be recoverable after which failure, as it is declared.

A **failure domain** is lost with everything in it: ``process`` (one worker), ``host`` (its memory *and* its
own disks), ``rack``, ``cluster`` (every host), ``region``. A **shared fate** is something a tier depends on:
when the credentials are revoked, every tier that shares them is out of reach, wherever it stands.
"""

from __future__ import annotations

from dataclasses import dataclass

from durable_core.errors import UsageError

DOMAINS = ("process", "host", "rack", "cluster", "region")
FATES = ("credentials", "metadata_service", "control_plane", "storage_system")


@dataclass(frozen=True)
class Goal:
    """When ``domain`` is lost, at most ``rpo_steps`` / ``rpo_seconds`` of training are lost with it, and
    within ``rto_seconds`` restored and verified progress is made. ``None``: not a goal."""

    domain: str
    rpo_steps: int | None = None
    rpo_seconds: float | None = None
    rto_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.domain not in DOMAINS + FATES:
            raise UsageError(f"Goal.domain={self.domain!r}", hint="one of " + ", ".join(DOMAINS + FATES))
        if self.rpo_steps is not None and self.rpo_steps < 1:
            raise UsageError(f"Goal.rpo_steps={self.rpo_steps}", hint="at least one step, or None")
        for name in ("rpo_seconds", "rto_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"Goal.{name}={value!r}", hint="a positive time, or None")
        if self.rpo_steps is None and self.rpo_seconds is None and self.rto_seconds is None:
            raise UsageError(f"a goal for {self.domain} that asks for nothing")
