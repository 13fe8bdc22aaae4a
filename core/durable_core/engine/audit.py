"""L4. The audit: which samples did every committed step consume? Read from the ledger of the lineage.

The ledger outlives retired checkpoints, so the whole history of the head is audited, not only what
can still be restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from durable_core.commit.state import CheckpointInfo
from durable_core.data.cursor import Cursor
from durable_core.engine.consumption import Consumption, Segment, consume
from durable_core.engine.inspect import Reader
from durable_core.errors import CorruptError, DigestMismatchError, ObjectNotFoundError
from durable_core.format import digests
from durable_core.format.ledger import Row, decode_index, decode_segment
from durable_core.types import CheckpointState


@dataclass(frozen=True)
class Audit:
    """``steps``: the head's step. ``proven``: there was a ledger to prove anything from.
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
            "ids_checked": found.ids_checked,
            "unverified": self.unverified,
            "head": self.head,
            "lineage": list(self.lineage),
            "epochs": [asdict(epoch) for epoch in found.epochs],
            "findings": [asdict(finding) for finding in found.findings],
            "notes": list(self.notes),
        }


def audit(reader: Reader) -> Audit:
    """Audit the lineage of the head.

    Raises ``DigestMismatchError``, ``FormatError`` or ``ObjectNotFoundError`` naming a ledger object that
    is damaged or gone: then nothing is proven.
    """
    state = reader.state
    infos = [state.checkpoints[c] for c in state.lineage()]
    notes: list[str] = []
    segments: list[Segment] = []
    after, silent = -1, False
    for info in infos:
        rows = dict(_rows(reader, info))
        segments.append(Segment(info.c, after, info.step, rows, _cursor(reader, info, notes)))
        if not any(rows.values()) and info.step > max(after, 0):
            silent = True
            notes.append(f"steps {max(after, 0) + 1} to {info.step} (c{info.c}) left no ledger")
        after = info.step
    consumption = consume(segments)
    data = state.spec.get("data") or {}
    if not consumption.ids_checked and consumption.samples:
        notes.append("the order is not one this version can compute: checked batch by batch, not id by id")
    source = segments[-1].cursor.dataset_id if segments and segments[-1].cursor else "unknown"
    # Loaders name a dataset that tells no identity of its own "unverified:<class>:<length>".
    verified = data.get("verified", False) or not source.startswith(("unverified:", "unknown"))
    return Audit(
        run_id=state.run_id,
        head=state.head,
        steps=state.head_step or 0,
        lineage=state.lineage(),
        by_source={source: consumption.samples} if consumption.samples else {},
        consumption=consumption,
        proven=not silent,
        unverified=not verified,
        notes=tuple(notes),
    )


def _rows(reader: Reader, info: CheckpointInfo) -> Iterator[tuple[str, tuple[Row, ...]]]:
    if info.ledger is None:
        return
    key, digest = info.ledger
    index = decode_index(_checked(reader, key, digest), key=key)
    if (index.c, index.step, index.parent) != (info.c, info.step, info.parent):
        raise CorruptError(
            key, f"speaks of c{index.c} at step {index.step}, not of c{info.c} at step {info.step}"
        )
    for role, segment in index.segments.items():
        yield role, decode_segment(_checked(reader, segment.key, segment.digest), key=segment.key)


def _checked(reader: Reader, key: str, digest: str) -> bytes:
    data = reader.tier.get(key)
    if digests.sha256(data) != digest:
        raise DigestMismatchError(
            key, f"its sha256 is not {digest}", hint="durable verify lists all the damage"
        )
    return data


def _cursor(reader: Reader, info: CheckpointInfo, notes: list[str]) -> Cursor | None:
    """The position committed with a checkpoint; ``None`` where its manifest is gone or has none."""
    if info.state is CheckpointState.RETIRED:
        return None
    try:
        found = tuple(_cursors(reader.manifest(info).cursor))
    except (CorruptError, ObjectNotFoundError) as error:
        notes.append(f"the cursor of c{info.c} is not known: {error.message}")
        return None
    if len(found) > 1:
        notes.append(f"c{info.c} has {len(found)} cursors; only the first is checked")
    return found[0] if found else None


def _cursors(value: Any) -> Iterator[Cursor]:
    """Every cursor inside the manifest's cursor value: one, or one a loader by name."""
    if isinstance(value, Mapping):
        if "dataset_id" in value and "epoch" in value:
            # beside the cursor's own fields: the state of a source that has one
            yield Cursor.from_dict({name: item for name, item in value.items() if name != "source"})
            return
        for inner in value.values():
            yield from _cursors(inner)
