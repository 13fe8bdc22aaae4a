"""L3. What a save is asked to do and what came of it: frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from durable_core.commit.journal import View
from durable_core.commit.state import CheckpointInfo
from durable_core.errors import CommitAborted, UsageError
from durable_core.format.manifest import Manifest
from durable_core.types import Promise, SliceKey, Token


@dataclass(frozen=True)
class Deadlines:
    """Longest waits, in seconds: writers for the allocation, all for each other's offers, the
    coordinator for receipts, writers for the commit. A dead peer costs one save, never the run."""

    allocation_seconds: float = 120.0
    offers_seconds: float = 120.0
    receipts_seconds: float = 600.0
    commit_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise UsageError(f"deadlines.{name} must be positive")


@dataclass(frozen=True)
class LedgerRows:
    """The bytes of one ledger segment object and the number of sample ids in it."""

    data: bytes
    samples: int


#: The rows after the given step (``None``: from the start) up to the step being saved. It is asked
#: once the journal has said which checkpoint is the parent, so segments neither overlap nor leave a gap.
LedgerSource = Callable[["int | None"], LedgerRows]


@dataclass(frozen=True)
class Known:
    """A committed manifest that this process has in hand, and the sha256 of its bytes."""

    digest: str
    manifest: Manifest = field(repr=False)


@dataclass(frozen=True)
class SaveRequest:
    """One writer's part of one save.

    ``roles``: every writer, the coordinator first. ``documents``: typed JSON by name (``state``,
    ``role``, …). ``slices``: what is staged; ``None`` asks by ``Describe``. ``known``: a manifest in hand; it
    saves reading that of the parent when it is the same. ``twins``: whether what never changes is stored
    twice, which is for runs with one durable place; the same for every role. ``held``: tensors of groups that
    are not due (``groups``), with their group, the same for every role too. ``ledger``: ``None`` when the
    data does not come through the ledger. The rest goes into the manifest as it is, from the
    coordinator's request. ``adopted``: what is saved is a sealed snapshot of that generation,
    the one this token's replaced (``commit.adopt``). ``given_up``: why it will come to nothing, heard
    beside the journal (which may be what failed); ``""`` while nothing was.
    """

    role: str
    roles: tuple[str, ...]
    token: Token
    run_id: str
    step: int
    documents: Mapping[str, Any]
    cursor: Any
    spec_digest: str
    promise: Promise
    slices: tuple[SliceKey, ...] | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    metrics: tuple[Any, ...] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    topology: Mapping[str, Any] = field(default_factory=dict)
    dataset: Any = None
    ledger: LedgerSource | None = None
    tiers: tuple[str, ...] = ("disk",)
    deadlines: Deadlines = field(default_factory=Deadlines)
    known: Known | None = None
    twins: bool = True
    held: Mapping[str, str] = field(default_factory=dict)
    consistent: bool = True
    adopted: int | None = None
    given_up: Callable[[], str] = str

    def __post_init__(self) -> None:
        if self.role not in self.roles or len(set(self.roles)) != len(self.roles):
            raise UsageError(f"role {self.role!r} is not one of the distinct roles {self.roles!r}")
        if self.step < 0:
            raise UsageError(f"step {self.step} is negative")
        if (self.held or not self.consistent) and self.promise is not Promise.DISTRIBUTION:
            raise UsageError(f"a checkpoint of several steps cannot keep the promise {self.promise.value!r}")

    @property
    def coordinates(self) -> bool:
        return self.role == self.roles[0]


@dataclass(frozen=True)
class SaveOutcome:
    """A committed checkpoint. ``view`` ends at or after the commit record. ``known``: its manifest, where
    this process made it; for the next request."""

    c: int
    step: int
    generation: int
    manifest_key: str
    manifest_digest: str
    bytes: int
    bytes_written: int
    view: View = field(repr=False)
    known: Known | None = field(default=None, repr=False)

    @classmethod
    def of(cls, info: CheckpointInfo, view: View) -> SaveOutcome:
        """The outcome as the journal tells it of a committed checkpoint."""
        return cls(
            c=info.c,
            step=info.step,
            generation=info.generation,
            manifest_key=info.manifest,
            manifest_digest=info.manifest_digest,
            bytes=info.bytes,
            bytes_written=info.bytes_written,
            view=view,
        )


class SaveAborted(CommitAborted):
    """The save was given up; ``__cause__`` says why when another error did it. Training goes on.

    ``view`` is the journal as last seen, with ``view.doubt`` when the record of the abort is in doubt;
    ``c`` the number that was allocated, if it came to that.
    """

    def __init__(self, message: str, view: View, c: int | None = None) -> None:
        super().__init__(message, hint="the next save starts afresh")
        self.view = view
        self.c = c
