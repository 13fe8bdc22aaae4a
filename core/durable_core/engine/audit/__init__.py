"""L4. The audit: which samples did every committed step consume? Read from the ledger of the lineage.

The ledger outlives retired checkpoints, so the whole history of a checkpoint is audited, not only what
can still be restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from durable_core.commit.state import CheckpointInfo
from durable_core.data.cursor import BESIDE, Cursor
from durable_core.data.sequence import Sequence as DataSequence
from durable_core.engine.audit.consumption import Consumption, consume
from durable_core.engine.audit.due import Plan
from durable_core.engine.audit.segments import Segment
from durable_core.engine.inspect import Reader
from durable_core.errors import CorruptError, DigestMismatchError, ObjectNotFoundError
from durable_core.format import digests
from durable_core.format.ledger import LedgerIndex, Row, decode_index, decode_segment
from durable_core.types import CheckpointState


@dataclass(frozen=True)
class Audit:
    """``steps``: those of ``head``, the checkpoint audited. ``proven``: every step left a ledger.
    ``unverified``: the dataset's identity is a claim, not a digest. ``notes``: what limits the proof."""

    run_id: str
    head: int | None
    steps: int
    lineage: tuple[int, ...]
    by_source: Mapping[str, int]
    consumption: Consumption
    proven: bool
    unverified: bool
    notes: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Every due sample exactly once, in its order, and provably so."""
        return self.proven and self.consumption.sound

    def to_json(self) -> dict[str, Any]:
        found = self.consumption
        return {
            "run": self.run_id,
            "ok": self.sound,
            "steps": self.steps,
            "samples": found.samples,
            "repeated": found.repeated,
            "skipped": found.skipped,
            "by_source": dict(self.by_source),
            "abandoned": sum(epoch.abandoned for epoch in found.epochs),
            "left_out": sum(epoch.left_out for epoch in found.epochs),
            "ids_checked": found.ids_checked,
            "unverified": self.unverified,
            "head": self.head,
            "lineage": list(self.lineage),
            "epochs": [asdict(epoch) for epoch in found.epochs],
            "sources": [asdict(source) for source in found.sources],
            "findings": [asdict(finding) for finding in found.findings],
            "notes": list(self.notes),
        }


def audit(reader: Reader, c: int | None = None, *, sequence: DataSequence | None = None) -> Audit:
    """Audit what led to checkpoint ``c``: to the head, by default.

    ``sequence``: the run's own (``loader.sequence``). Packed documents need it for a comparison id by id,
    for their lengths are not part of a checkpoint.

    Raises ``CheckpointNotFoundError``; ``DigestMismatchError``, ``FormatError`` or ``ObjectNotFoundError``
    naming a ledger object that is damaged or gone: then nothing is proven.
    """
    infos = lineage_of(reader, c)
    notes: list[str] = []
    segments = [
        Segment(info.c, after, info.step, rows, *position_of(reader, info, notes), rows.global_batch)
        for info, after in zip(infos, [-1, *(info.step for info in infos)], strict=False)
        for rows in [LazyRows(reader, info)]
    ]
    found = consume(segments, sequence=sequence)
    notes += [f"steps {max(s.after, 0) + 1} to {s.through} (c{s.c}) left no ledger" for s in found.silent]
    if not found.ids_checked and found.samples:
        notes.append("the order is not one that can be computed here: checked batch by batch, not id by id")
    name = segments[-1].cursor.dataset_id if segments and segments[-1].cursor else "unknown"
    # Loaders name a dataset that tells no identity of its own "unverified:<class>:<length>".
    ids = [source.dataset_id for source in found.sources] or [name]
    claims = any(i.startswith(("unverified:", "unknown")) for i in ids)
    whole = {name: found.samples} if found.samples else {}
    return Audit(
        run_id=reader.state.run_id,
        head=infos[-1].c if infos else None,
        steps=infos[-1].step if infos else 0,
        lineage=tuple(info.c for info in infos),
        by_source={source.name: source.draws for source in found.sources} or whole,
        consumption=found,
        proven=not found.silent,
        unverified=claims and not (reader.state.spec.get("data") or {}).get("verified", False),
        notes=(*notes, *found.notes),
    )


def lineage_of(reader: Reader, c: int | None) -> list[CheckpointInfo]:
    """The checkpoints that led to committed checkpoint ``c`` (the head, by default), oldest first; a branch
    that was left counts from where it began. Raises ``CheckpointNotFoundError``."""
    state = reader.state
    at = state.head if c is None else reader.checkpoint(c).c
    path: list[CheckpointInfo] = []
    while at is not None:
        path.append(state.checkpoints[at])
        at = path[-1].parent
    return path[::-1]


class LazyRows(Mapping[str, Sequence[Row]]):
    """The rows of a checkpoint by role, read when they are asked for: a long history need not fit memory.

    ``global_batch``: what their batches are counted in, where the ledger tells."""

    def __init__(self, reader: Reader, info: CheckpointInfo) -> None:
        index = _index(reader, info)
        self._reader = reader
        self._segments = {} if index is None else index.segments
        size = None if index is None or index.cursor is None else index.cursor.get("global_batch")
        self.global_batch: int | None = size if type(size) is int and size > 0 else None

    def __getitem__(self, role: str) -> Sequence[Row]:
        segment = self._segments[role]
        return decode_segment(_checked(self._reader, segment.key, segment.digest), key=segment.key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)


def _index(reader: Reader, info: CheckpointInfo) -> LedgerIndex | None:
    """What each role consumed on the way to this checkpoint."""
    if info.ledger is None:
        return None
    key, digest = info.ledger
    index = decode_index(_checked(reader, key, digest), key=key)
    if (index.c, index.step, index.parent) != (info.c, info.step, info.parent):
        raise CorruptError(
            key, f"speaks of c{index.c} at step {index.step}, not of c{info.c} at step {info.step}"
        )
    return index


def _checked(reader: Reader, key: str, digest: str) -> bytes:
    data = reader.tier.get(key)
    if digests.sha256(data) != digest:
        raise DigestMismatchError(
            key, f"its sha256 is not {digest}", hint="durable verify lists all the damage"
        )
    return data


class Position(NamedTuple):
    """What a checkpoint says of the data: the cursor, the description of its sequence, and its state."""

    cursor: Cursor | None
    plan: Plan | None
    state: Any


UNKNOWN = Position(None, None, None)


def position_of(reader: Reader, info: CheckpointInfo, notes: list[str]) -> Position:
    """What was committed with a checkpoint; ``UNKNOWN`` where its manifest is gone or has nothing."""
    if info.state is CheckpointState.RETIRED:
        return UNKNOWN
    try:
        found = tuple(positions(reader.manifest(info).cursor))
    except (CorruptError, ObjectNotFoundError) as error:
        notes.append(f"the cursor of c{info.c} is not known: {error.message}")
        return UNKNOWN
    if len(found) > 1:
        notes.append(f"c{info.c} has {len(found)} cursors; only the first is checked")
    return found[0] if found else UNKNOWN


def positions(value: Any) -> Iterator[Position]:
    """Every position inside the manifest's cursor value: one, or one a loader."""
    if not isinstance(value, Mapping):
        return
    if "dataset_id" in value and "epoch" in value:
        plan = value.get("plan")
        if isinstance(plan, Mapping) and value.get("updates"):
            plan = {**plan, "updates": value["updates"]}
        cursor = Cursor.from_dict({name: item for name, item in value.items() if name not in BESIDE})
        source = value.get("source")
        state = source.get("state") if isinstance(source, Mapping) else None
        yield Position(cursor, plan if isinstance(plan, Mapping) else None, state)
        return
    for inner in value.values():
        yield from positions(inner)
