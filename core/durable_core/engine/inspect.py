"""L4. A run, read and never written: nothing here creates, syncs or locks anything, so it is safe
beside a live run. What is read is consistent by construction: journal slots and the objects that a
committed manifest names never change; a checkpoint that is retired meanwhile shows as not found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from durable_core.clock import Clock, SystemClock
from durable_core.commit.journal import View, replay, replay_whole
from durable_core.commit.state import CheckpointInfo, RunState
from durable_core.engine.performer import Performer
from durable_core.errors import (
    CheckpointNotFoundError,
    RunNotFoundError,
    UnsupportedError,
)
from durable_core.format import layout, manifest
from durable_core.format.manifest import Manifest
from durable_core.format.record import Record, decode
from durable_core.tier.base import Tier
from durable_core.tier.posix import PosixTier
from durable_core.tier.remote import is_remote, open_remote
from durable_core.types import CheckpointState

_WHAT_ROOT = (
    "ROOT is the directory or URL given to DurableCheckpoint or DurableSession.open; under Accelerate, what "
    "ACCELERATE_DURABLE_ROOT, --root or durable_config: names, else `durable` below the project directory"
)
#: Runs that a directory holds, at most as many are named to somebody who gave it for a root.
_NAMED = 3


@dataclass(frozen=True)
class Entry:
    """One journal slot: the record, and why it is void (``""``: it took effect)."""

    record: Record
    void: str


@dataclass(frozen=True)
class Reader:
    """A run as it stood when it was opened."""

    tier: Tier
    view: View

    @property
    def state(self) -> RunState:
        return self.view.state

    @property
    def home(self) -> str:
        """What the journal calls the tier of the root: ``disk`` for a directory, else ``remote``, and so it
        does for a directory behind a disk: the origin of the run, which lies in the root, says so."""
        origin = next(iter(self.committed()), None)
        behind = origin is not None and "remote" in origin.tiers
        return "disk" if isinstance(self.tier, PosixTier) and not behind else "remote"

    def is_elsewhere(self, info: CheckpointInfo) -> bool:
        """The journal names other tiers only: that objects are not in the root (yet) is no damage."""
        return info.was_committed and self.home not in info.tiers

    def committed(self) -> tuple[CheckpointInfo, ...]:
        """Every checkpoint that was ever committed, oldest first."""
        return tuple(info for info in self.state.checkpoints.values() if info.was_committed)

    def retained(self) -> tuple[CheckpointInfo, ...]:
        """Committed ones whose bytes must still be there, oldest first; abandoned ones too."""
        return tuple(info for info in self.committed() if info.state is not CheckpointState.RETIRED)

    def usable(self) -> Iterator[CheckpointInfo]:
        """On the head's lineage, newest first: what the journal knows neither corrupt nor retired."""
        for c in reversed(self.state.lineage()):
            if self.state.checkpoints[c].usable:
                yield self.state.checkpoints[c]

    def newest_usable(self) -> CheckpointInfo:
        """The first of them; ``CheckpointNotFoundError``."""
        for info in self.usable():
            return info
        raise CheckpointNotFoundError(
            f"{self.tier.location}: the run has no usable checkpoint",
            hint="durable ls shows what became of each",
        )

    def checkpoint(self, c: int | None) -> CheckpointInfo:
        """Checkpoint ``c``, or the newest usable one; ``CheckpointNotFoundError``."""
        if c is None:
            return self.newest_usable()
        info = self.state.checkpoints.get(c)
        if info is None or not info.was_committed:
            why = "was never allocated" if info is None else f"was {info.state.value}, never committed"
            raise CheckpointNotFoundError(
                f"{self.tier.location}: checkpoint {c} {why}", hint="durable ls lists the committed ones"
            )
        return info

    def manifest(self, info: CheckpointInfo) -> Manifest:
        """The manifest that the journal committed, checked against its digest there.

        Raises ``ObjectNotFoundError``, ``DigestMismatchError``, ``FormatError``.
        """
        data = self.tier.get(info.manifest, limit=manifest.MAX_BYTES)
        manifest.check_digest(data, info.manifest_digest, key=info.manifest)
        return manifest.decode(data, key=info.manifest)

    def entries(self) -> Iterator[Entry]:
        """The journal, slot by slot, up to where this reader saw its end."""
        voids = {void.seq: void.reason for void in self.view.voids}
        for seq in range(self.view.next_seq):
            key = layout.journal_key(seq)
            yield Entry(decode(self.tier.get(key), key=key), voids.get(seq, ""))


def local_path(root: str | Path) -> Path:
    """The directory of a root given as a path or a ``file://`` URL; ``UnsupportedError`` otherwise."""
    text = str(root)
    if "://" not in text:
        return Path(text).expanduser()
    url = urlsplit(text)
    if url.scheme != "file" or url.netloc not in ("", "localhost"):
        raise UnsupportedError(
            f"{url.scheme}:// roots cannot be opened",
            hint="give a path, or a file://, s3://, gs:// or az:// URL",
        )
    return Path(unquote(url.path))


def holds_run(path: Path) -> bool:
    """Whether a directory has a journal."""
    return (path / layout.JOURNAL).is_dir()


def _runs_below(path: Path) -> str:
    """The way out for somebody who names a directory that holds roots; empty: it holds none."""
    found = sorted({str(each.parent) for kind in ("*", "durable/*") for each in path.glob(f"{kind}/journal")})
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"runs are in {', '.join(found[:_NAMED])}{more}"


def open_run(root: str | Path, *, clock: Clock | None = None, with_holes: bool = False) -> Reader:
    """Read the journal at ``root`` (a path, a ``file://`` URL or an object store's).

    Raises ``RunNotFoundError`` where there is no journal, ``UnsupportedError`` for other URLs,
    ``FormatError`` / ``JournalBrokenError`` naming the record when the journal cannot be believed.
    ``with_holes`` reads up to a missing record all the same, for whoever reports what is damaged.
    """
    if is_remote(root):
        return open_tier(open_remote(str(root)), clock=clock, with_holes=with_holes)
    path = local_path(root)
    if not path.is_dir():
        raise RunNotFoundError(f"{path}: no such directory", hint=_WHAT_ROOT)
    return open_tier(PosixTier(path), clock=clock, with_holes=with_holes)


def open_tier(tier: Tier, *, clock: Clock | None = None, with_holes: bool = False) -> Reader:
    """As ``open_run``, for a tier already at hand."""
    performer = Performer(tier, clock or SystemClock(), read_only=True)
    view = performer.run(replay() if with_holes else replay_whole())
    if view.next_seq == 0:
        performer.run(replay_whole())  # the first record itself may be the one that is lost
        below = _runs_below(tier.root) if isinstance(tier, PosixTier) else ""
        raise RunNotFoundError(f"{tier.location}: no run here: it has no journal", hint=below or _WHAT_ROOT)
    if not view.state.exists:
        raise RunNotFoundError(f"{tier.location}: its journal names no run")
    return Reader(tier, view)
