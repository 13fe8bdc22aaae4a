"""L1. Facts about a run, as they happened. Listeners (callback log, metrics, alarms) get these values.

A fact is never a journal record and never decides anything: it reports (COMMIT-16: no save fails in
silence). Times are wall-clock seconds since the epoch, given by the caller; durations are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from durable_core.types import Promise


@dataclass(frozen=True)
class Event:
    """Base of every fact. ``time``: wall clock, for people."""

    time: float

    def to_json(self) -> dict[str, Any]:
        """``{"event": <class name>, ...fields}``: plain JSON."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {"event": type(self).__name__, **{name: _plain(value) for name, value in values.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


# --- saving --------------------------------------------------------------------------------


@dataclass(frozen=True)
class SaveStarted(Event):
    """Staged at a boundary. ``stall``: seconds the training thread was held up."""

    step: int
    stall: float
    nbytes: int


@dataclass(frozen=True)
class SaveCommitted(Event):
    """Durable. ``bytes_written`` leaves out what was reused; ``seconds`` from staging to the commit."""

    c: int
    step: int
    nbytes: int
    bytes_written: int
    seconds: float


@dataclass(frozen=True)
class SaveFailed(Event):
    """Given up; training goes on and the checkpoint before is intact. ``error``: class and message."""

    step: int
    error: str
    committed_step: int | None


@dataclass(frozen=True)
class SaveSkipped(Event):
    """The backlog was full and the declared policy skips; ``skipped`` counts them since the start."""

    step: int
    reason: str
    skipped: int


@dataclass(frozen=True)
class SnapshotVoided(Event):
    """The state of ``step`` changed while it was being copied, so that snapshot is thrown away; from now
    on everything is copied at the boundary."""

    step: int
    reason: str


@dataclass(frozen=True)
class SnapshotFailed(Event):
    """The snapshot of ``step`` could not be kept in tier ``place``; the newest one there is older."""

    step: int
    place: str
    error: str


@dataclass(frozen=True)
class CopyAdded(Event):
    """Tier ``place`` holds a verified copy of checkpoint ``c``; ``nbytes`` were missing there before."""

    c: int
    step: int
    place: str
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class CopyFailed(Event):
    """Checkpoint ``c`` could not be copied to tier ``place`` this time; the next one is tried."""

    c: int
    place: str
    error: str


@dataclass(frozen=True)
class CollectionFailed(Event):
    """Retention could not be carried out this time; nothing is lost, space is freed later."""

    error: str


@dataclass(frozen=True)
class RpoBreached(Event):
    """The newest commit is older than the declared goal. ``action``: continue, pause or abort."""

    step: int
    committed_step: int | None
    rpo_steps: int
    action: str


@dataclass(frozen=True)
class CadenceChanged(Event):
    """Announced at boundary ``step``: from ``start`` on a save every ``every`` steps. ``warnings``, on the
    coordinator: assumptions that do not hold, and bounds that cannot be kept."""

    step: int
    start: int
    every: int
    reason: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class GoalBreached(Event):
    """Were ``domain`` lost now, training would go back to ``step``: further than a declared goal allows. Told
    when it begins, and again only after the goal was met in between."""

    domain: str
    step: int
    gap_steps: int
    gap_seconds: float


# --- data ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputStarved(Event):
    """Over a window of steps that ends with ``step``, the data did not keep up at the tail of its fetches.

    ``required`` and ``supplied`` (at that tail): tokens a second, or samples; ``waited``: the share of the
    window that the loop spent waiting for batches; ``bottleneck``: I/O, decode, memory or parallelism, None
    if not known; ``windows``: how many were so until now.
    """

    step: int
    required: float
    supplied: float
    waited: float
    bottleneck: str | None
    reason: str
    windows: int


@dataclass(frozen=True)
class MixtureDrifted(Event):
    """A source of the mixture had more or less than it may: of ``window`` (first and end of all draws),
    ``target`` units were due to it and ``actual`` came. By quotas that is a fault; by independent draws it is
    hardly chance."""

    step: int
    source: str
    target: float
    actual: int
    window: tuple[int, int]
    reason: str


@dataclass(frozen=True)
class SourceRanOut(Event):
    """A source of the mixture had no more after ``draws`` draws; by policy the others go on without it."""

    step: int
    source: str
    draws: int


# --- restoring -----------------------------------------------------------------------------


@dataclass(frozen=True)
class RestoreDone(Event):
    """Every writer has verified the same checkpoint. ``generation`` is the one that starts with it."""

    c: int
    step: int
    generation: int
    nbytes: int
    seconds: float
    sources: Mapping[str, int] = field(default_factory=dict)  # tier -> bytes read from it


@dataclass(frozen=True)
class SnapshotAdopted(Event):
    """What generation ``replaced`` had sealed in memory at ``step`` became checkpoint ``c``; ``place`` says
    where this writer's part came from."""

    c: int
    step: int
    replaced: int
    place: str


@dataclass(frozen=True)
class CopyDamaged(Event):
    """An object in tier ``place`` is damaged or missing there; another copy served."""

    place: str
    key: str
    reason: str


@dataclass(frozen=True)
class CopyRepaired(Event):
    """The damaged object is whole again in tier ``place`` (``done``), or ``reason`` says why not now."""

    place: str
    key: str
    done: bool
    reason: str


@dataclass(frozen=True)
class SteppedDown(Event):
    """Checkpoint ``c`` failed verification; ``to`` is the next candidate (``None``: there is none)."""

    c: int
    to: int | None
    key: str
    reason: str


@dataclass(frozen=True)
class RolesChanged(Event):
    """Checkpoint ``c`` was saved by the roles ``was`` and is restored by ``now``. ``dropped``: state that
    differed between the replicas and is the first one's from here on."""

    c: int
    was: tuple[str, ...]
    now: tuple[str, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class ReplayMismatched(Event):
    """A step done again after a restore gave other numbers than before the failure (VERIF-01): under a
    bitwise promise that is non-determinism or silent corruption."""

    step: int
    reason: str


# --- numbers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumericFaultFound(Event):
    """``detector`` found at ``step`` that nothing from ``onset`` on is to be trusted; ``failure``: F12 or
    F13. ``action``: continue or stop. ``suspects``: roles that it points to, if that can be told."""

    step: int
    onset: int
    failure: str
    detector: str
    reason: str
    action: str
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownGoodMarked(Event):
    """The steps after checkpoint ``c`` were judged by ``detectors``, and nothing was found."""

    c: int
    step: int
    detectors: tuple[str, ...]


# --- standing ------------------------------------------------------------------------------


@dataclass(frozen=True)
class WasFenced(Event):
    """A newer owner exists: this writer has stopped. ``found`` is the generation now in the journal."""

    generation: int
    found: int
    error: str


@dataclass(frozen=True)
class PromiseLowered(Event):
    was: Promise
    now: Promise
    reason: str


@dataclass(frozen=True)
class Draining(Event):
    """A planned stop was agreed for this step."""

    step: int
    reason: str


@dataclass(frozen=True)
class RunSucceeded(Event):
    c: int | None
    step: int


Listener = Callable[[Event], None]
