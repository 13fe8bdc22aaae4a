"""L3. What a journal says of its run: the values that the fold produces. Frozen, without behaviour
beyond look-ups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from durable_core.commit.vector import Vector
from durable_core.types import CheckpointState, Promise

#: JSON object as it stands in a record
Json = Mapping[str, Any]


@dataclass(frozen=True)
class CheckpointInfo:
    """One allocated number ``c`` and what became of it.

    ``nonce``: first 8 hex digits of the allocating record's op_id, part of every key. ``bytes`` is
    the logical size, ``bytes_written`` what was new. ``reuses``: the checkpoints in whose directories
    objects of this one lie. ``ledger``: key and digest of the ledger index. ``seq``: journal slot of
    the commit. ``time``: wall clock of the newest of allocate and commit, for people. ``adopted``: the
    generation whose sealed snapshots became this checkpoint. ``distrusted``: the run's, when it was
    allocated, so that all its writers go by the same.
    """

    c: int
    step: int
    generation: int
    parent: int | None
    nonce: str
    state: CheckpointState = CheckpointState.ALLOCATED
    manifest: str = ""
    manifest_digest: str = ""
    tiers: tuple[str, ...] = ()
    cursor_digest: str = ""
    bytes: int = 0
    bytes_written: int = 0
    reuses: tuple[int, ...] = ()
    ledger: tuple[str, str] | None = None
    pinned: bool = False
    known_good: bool = False
    evidence: Any = None
    note: str = ""
    corrupt_objects: tuple[str, ...] = ()
    adopted: int | None = None
    distrusted: frozenset[str] = frozenset()
    seq: int = -1
    time: float = 0.0

    @property
    def usable(self) -> bool:
        """Committed, and neither corrupt nor retired since."""
        return self.state is CheckpointState.COMMITTED

    @property
    def held(self) -> bool:
        """Committed, perhaps corrupt, and not retired: its objects are still there."""
        return self.state in (CheckpointState.COMMITTED, CheckpointState.CORRUPT)

    @property
    def was_committed(self) -> bool:
        return self.seq >= 0


class Checkpoints(Mapping[int, CheckpointInfo]):
    """Every allocated checkpoint by ``c``; immutable. Numbers are dense: they are positions."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Vector[CheckpointInfo] | None = None) -> None:
        self._rows: Vector[CheckpointInfo] = Vector() if rows is None else rows

    def added(self, info: CheckpointInfo) -> Checkpoints:
        return Checkpoints(self._rows.append(info))

    def updated(self, info: CheckpointInfo) -> Checkpoints:
        return Checkpoints(self._rows.replace(info.c, info))

    def newest_first(self) -> Iterator[CheckpointInfo]:
        return reversed(self._rows)

    def __getitem__(self, c: int) -> CheckpointInfo:
        if not isinstance(c, int) or not 0 <= c < len(self._rows):
            raise KeyError(c)
        return self._rows[c]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._rows)))

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoints) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)


@dataclass(frozen=True)
class Failure:
    """One line of the failure history (REC-06); ``payload`` holds class, signature, evidence, step."""

    seq: int
    generation: int
    op_id: str
    payload: Json
    time: float


@dataclass(frozen=True)
class Life:
    """One generation: when it ``began``, its ``members``, the checkpoint it was started from, the step of its
    planned stop, whether the run ended in it. ``asked``: the one before it went back to there by itself."""

    generation: int
    began: float
    drain_step: int | None = None
    ended: bool = False
    members: tuple[str, ...] = ()
    restore_point: int | None = None
    asked: bool = False


@dataclass(frozen=True)
class Phase:
    """Where the controller says that the run stands (``run.state``), since ``time``; ``launch.machine`` knows
    what a state means. ``payload``: state, reason, evidence."""

    seq: int
    generation: int
    op_id: str
    payload: Json
    time: float


@dataclass(frozen=True)
class Fork:
    """A change of spec: ``origin`` is the checkpoint it starts from, ``external`` a foreign one."""

    seq: int
    generation: int
    launch_id: str
    parent_spec: str
    spec: Json
    spec_digest: str
    diff: Any
    origin: int | None
    external: str | None


@dataclass(frozen=True)
class Terminal:
    """How the run ended: ``outcome`` is ``succeeded``, ``failed`` or ``cancelled``."""

    outcome: str
    seq: int
    c: int | None
    detail: Json


@dataclass(frozen=True)
class Summary:
    """Where the post-run manifest of the run's end lies (``run.summarized``), and its digest."""

    seq: int
    key: str
    digest: str


@dataclass(frozen=True)
class RunState:
    """The run as its journal tells it up to some slot.

    ``active``: the current generation may write (false before the first one and after the end; a new
    generation is needed after ``run.extended``). ``restore_point``: what the current generation
    started from. ``head``: the newest effective commit, or the restore point when a generation has
    just started; ``None`` before the first commit. ``distrusted``: keys of objects ever marked damaged, and
    prefixes of checkpoints marked as a whole; nothing of them is reused. ``reconciler``: epoch of
    the newest controller that keeps ``phase``; maintenance takes later epochs, and leaves it its office.
    ``phase``: ``None`` from the start of a generation, or the end of the run, until the next one is said.
    """

    run_id: str = ""
    spec: Json = field(default_factory=dict)
    spec_digest: str = ""
    seed: int = 0
    promise: Promise = Promise.BITWISE
    target: Any = None
    generation: int = 0
    launch_id: str = ""
    active: bool = False
    superseded: frozenset[str] = frozenset()
    members: tuple[str, ...] = ()
    topology: Any = None
    restore_point: int | None = None
    epoch: int = 0
    controller: str = ""
    reconciler: int = 0
    phase: Phase | None = None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    head: int | None = None
    commits: int = 0
    terminal: Terminal | None = None
    summary: Summary | None = None
    draining: Json | None = None
    pending_fork: Fork | None = None
    failures: Vector[Failure] = field(default_factory=Vector)
    lives: Vector[Life] = field(default_factory=Vector)
    quarantines: tuple[Json, ...] = ()
    forks: tuple[Fork, ...] = ()
    scrubs: int = 0
    distrusted: frozenset[str] = frozenset()

    @property
    def exists(self) -> bool:
        return bool(self.run_id)

    @property
    def next_c(self) -> int:
        return len(self.checkpoints)

    @property
    def head_step(self) -> int | None:
        return None if self.head is None else self.checkpoints[self.head].step

    def lineage(self) -> tuple[int, ...]:
        """Root-to-head path of checkpoint numbers; the head is last. O(length)."""
        path = []
        c = self.head
        while c is not None:
            path.append(c)
            c = self.checkpoints[c].parent
        return tuple(reversed(path))

    def status(self, c: int) -> CheckpointState:
        """As recorded, except that a committed one off the head's lineage is ABANDONED.

        ``KeyError`` when ``c`` was never allocated. For many, compare with one ``lineage()``.
        """
        info = self.checkpoints[c]
        if info.usable and c not in self.lineage():
            return CheckpointState.ABANDONED
        return info.state
