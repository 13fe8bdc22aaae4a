"""L5. How often a run is started again, and how quickly: what those who decide are held to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from durable_core.errors import UsageError
from durable_core.launch.classes import TABLE, UNITS, F, Unit
from durable_core.launch.classify import DOMAIN_LOSSES
from durable_core.spec import FailurePolicy

_SPEC = FailurePolicy()  # what a run file that says nothing declares: one source for both


@dataclass(frozen=True)
class Policy:
    """How often and how quickly. ``UsageError`` for values that are none.

    ``restarts``: charged failures that may stand unforgiven, over all classes; ``budgets``: the same for
    single classes, instead of the table's. Spent, they end the run; what nobody ``declared`` ends the launch
    alone. ``launch_restarts``: what the command
    line of one launch allows of ``restarts``, ``None``: nothing was said; spent, it ends that launch alone,
    whatever else is due. ``backoff_s``: before the second restart without progress,
    doubled for each more up to ``backoff_max_s``; ``jitter``: ``equal`` (between half of it and all),
    ``full`` (between nothing and all: most spread, AWS's "full jitter") or ``none``. ``repeats``: equal
    failures of the program on one placement that prove it deterministic; ``repeats_elsewhere``: placements
    that do. ``domain_losses`` nodes of one domain within ``domain_window_s`` are one loss of the domain.
    ``limits``: of what ``spent`` measures (``wall_s``, ``lost_steps``, ``device_hours``, ``cost``, ...);
    reached, the run is given up. ``quarantine``: what may be left out without asking. ``image``: that the
    workers of this launch run in, ``""`` where nobody says.
    """

    restarts: int = 10
    budgets: Mapping[F, int] = field(default_factory=dict)
    backoff_s: float = _SPEC.backoff_seconds
    backoff_max_s: float = _SPEC.backoff_max_seconds
    jitter: str = "equal"
    repeats: int = 3
    repeats_elsewhere: int = _SPEC.repeat_threshold
    domain_losses: int = DOMAIN_LOSSES
    domain_window_s: float = 600.0
    limits: Mapping[str, float] = field(default_factory=dict)
    launch_restarts: int | None = None
    declared: bool = True
    quarantine: frozenset[Unit] = UNITS
    image: str = ""

    def __post_init__(self) -> None:
        named = {"restarts": self.restarts, "one launch": self.launch_restarts or 0}
        for name, value in {
            **named,
            **{failure.value: each for failure, each in self.budgets.items()},
        }.items():
            if value < 0:
                raise UsageError(f"failure policy: budget of {name}: {value}", hint="0 or more restarts")
        if not (math.isfinite(self.backoff_s) and 0 <= self.backoff_s <= self.backoff_max_s):
            raise UsageError(
                f"failure policy: backoff_s={self.backoff_s}, backoff_max_s={self.backoff_max_s}",
                hint="0 <= backoff_s <= backoff_max_s",
            )
        if self.jitter not in ("equal", "full", "none"):
            raise UsageError(f"failure policy: jitter={self.jitter!r}", hint="equal, full or none")
        for name in ("repeats", "repeats_elsewhere", "domain_losses"):
            if getattr(self, name) < 2:
                raise UsageError(f"failure policy: {name}={getattr(self, name)}", hint="at least 2")

    def budget(self, failure: F) -> int | None:
        """Restarts for this class alone; ``None``: the run's budget is all that bounds it."""
        return self.budgets.get(failure, TABLE[failure].budget)
