"""L3. What a run is checked for, and what is done about what is found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from durable_core.detect.base import About
from durable_core.detect.finite import NonFinite
from durable_core.detect.recompute import Recompute
from durable_core.detect.replay import Replay
from durable_core.detect.replicas import Replicas
from durable_core.detect.spike import Spike, Spikes
from durable_core.errors import UsageError

OnNumeric = Literal["continue", "stop"]

#: Said with every list of detectors (SDC-01, SDC-07).
LIMITS = (
    "No alert means that the detectors that are on did not fire, and no more. Checksums prove that bytes are "
    "those that were written, not that the values were right."
)


@dataclass(frozen=True)
class Integrity:
    """Which detectors are on, and ``on_numeric``: whether training goes on after a finding, or ends with
    ``NumericFault``, so that it can be taken up again before the onset. ``DURABLE_ON_NUMERIC`` overrides
    that.

    ``replicas_every``: steps between two comparisons of the replicas' parameters; each reads them once.
    ``recompute_every``: one step in so many is computed twice (``DurableSession.recompute``). ``None``: off,
    as for ``spikes``. Replayed steps are always compared. Raises ``UsageError`` for other values.
    """

    on_numeric: OnNumeric = "continue"
    non_finite: bool = True
    spikes: Spikes | None = field(default_factory=Spikes)
    replicas_every: int | None = None
    recompute_every: int | None = None

    def __post_init__(self) -> None:
        if self.on_numeric not in ("continue", "stop"):
            raise UsageError(f"on_numeric={self.on_numeric!r}", hint="'continue' or 'stop'")
        for name in ("replicas_every", "recompute_every"):
            every = getattr(self, name)
            if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
                raise UsageError(f"{name}={every!r}", hint="a number of steps, or None for never")

    def decided(self, environ: Mapping[str, str] = os.environ) -> OnNumeric:
        """``on_numeric``, unless the launcher says otherwise. ``UsageError`` for what is neither."""
        said = environ.get("DURABLE_ON_NUMERIC", "")
        if said not in ("", "continue", "stop"):
            raise UsageError(f"DURABLE_ON_NUMERIC={said!r}", hint="'continue' or 'stop'")
        return self.on_numeric if not said else "stop" if said == "stop" else "continue"


@dataclass(frozen=True)
class Row:
    """One detector as it is shown. ``period`` and ``window`` in steps."""

    detector: str
    version: int
    on: bool
    period: int
    window: int
    covers: str
    misses: str


def coverage(settings: Integrity, replicas: int = 1) -> tuple[Row, ...]:
    """Every detector there is: whether it is on, what it covers and what it does not. ``LIMITS`` goes with
    it."""
    spikes = settings.spikes or Spikes()
    return (
        _row(NonFinite.about, settings.non_finite),
        _row(Spike("loss", spikes).about, settings.spikes is not None),
        _row(Spike("grad_norm", spikes).about, settings.spikes is not None),
        _row(Replay.about, True),
        _row(
            Replicas(settings.replicas_every or 1, 0).about,
            settings.replicas_every is not None and replicas > 1,
        ),
        _row(Recompute(settings.recompute_every or 1, 0).about, settings.recompute_every is not None),
    )


def _row(about: About, on: bool) -> Row:
    return Row(about.name, about.version, on, about.period, about.window, about.covers, about.misses)
