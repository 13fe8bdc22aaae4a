"""L5. How a session behaves. Frozen, checked on construction; units are in the names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from durable_core.commit.retention import Retention
from durable_core.detect.policy import Integrity
from durable_core.errors import UsageError
from durable_core.session.cadence import Cadence
from durable_core.session.places import Tiers
from durable_core.spec import DataSpec
from durable_core.types import Promise

Resume = Literal["auto", "never", "must", "fork"]
Backlog = Literal["skip", "delay"]
OnBreach = Literal["continue", "pause", "abort"]


@dataclass(frozen=True)
class Settings:
    """``rpo_steps`` / ``rpo_seconds``: the most training that may be unrecoverable; ``None``: undeclared.

    ``backlog``: what a save does when all ``slots`` staging buffers are busy: ``skip`` this snapshot
    (counted) or ``delay`` the loop until one is free. ``commit_deadline_s`` bounds the wait for
    another writer; ``metrics_window`` is how many metric rows a checkpoint carries.
    ``tiers``: where copies are kept beside the root.
    ``supply_window``: steps over which the supply of data is judged, and told of when it does not keep up; 0:
    never.
    ``integrity``: what the numbers are checked for, and what is done about what is found.
    ``from_first``: shell patterns of names in the state (``model/bn.running_*``): what may differ between the
    replicas, and is the first one's when a checkpoint is restored by another number of them.
    ``data``: what a run file says of it (``None``: whatever the script reads), in steps of ``accumulation``
    batches where the loader does not say.
    ``insist``: the promise is kept or the start refused; otherwise changed software lowers it, and
    the journal says so. ``accept_distribution``: why the weakest promise is enough for what is concluded
    from the run; it is refused without.
    """

    resume: Resume = "auto"
    takeover: bool = False
    promise: Promise = Promise.BITWISE
    insist: bool = False
    accept_distribution: str = ""
    cadence: Cadence = field(default_factory=Cadence)
    retention: Retention = field(default_factory=Retention)
    backlog: Backlog = "skip"
    on_rpo_breach: OnBreach = "continue"
    rpo_steps: int | None = None
    rpo_seconds: float | None = None
    slots: int = 2
    commit_deadline_s: float = 300.0
    metrics_window: int = 50
    supply_window: int = 200
    tiers: Tiers = field(default_factory=Tiers)
    integrity: Integrity = field(default_factory=Integrity)
    from_first: tuple[str, ...] = ()
    data: DataSpec | None = None
    accumulation: int = 1

    @property
    def asked(self) -> Promise | None:
        """The promise that is insisted on."""
        return self.promise if self.insist else None

    def __post_init__(self) -> None:
        _one_of("resume", self.resume, ("auto", "never", "must", "fork"))
        _one_of("backlog", self.backlog, ("skip", "delay"))
        _one_of("on_rpo_breach", self.on_rpo_breach, ("continue", "pause", "abort"))
        if self.slots < 1:
            raise UsageError(f"slots={self.slots}", hint="at least one staging buffer")
        if self.rpo_steps is not None and self.rpo_steps < 1:
            raise UsageError(f"rpo_steps={self.rpo_steps}", hint="at least one step, or None")
        if self.rpo_seconds is not None and not self.rpo_seconds > 0:
            raise UsageError(f"rpo_seconds={self.rpo_seconds}", hint="a positive time, or None")
        if self.supply_window < 0:
            raise UsageError(f"supply_window={self.supply_window}", hint="steps, or 0 for none")
        if not self.commit_deadline_s > 0:
            raise UsageError(f"commit_deadline_s={self.commit_deadline_s}", hint="a positive time")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name}={value!r}", hint="one of " + ", ".join(repr(a) for a in allowed))


def takeover_requested(environ: Mapping[str, str] = os.environ) -> bool:
    return environ.get("DURABLE_TAKEOVER", "") not in ("", "0", "false")
