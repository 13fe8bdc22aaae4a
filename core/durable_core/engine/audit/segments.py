"""L4. A lineage cut at its checkpoints, and how its data is described in each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from durable_core.data.cursor import Cursor
from durable_core.engine.audit.due import Plan
from durable_core.format.ledger import Row


@dataclass(frozen=True)
class Segment:
    """What was consumed on the way to checkpoint ``c``: by steps in ``(after, through]``.

    ``rows``: role -> its rows, oldest first; gone through once. ``cursor``: the position committed with
    ``c``; ``plan`` the description of its sequence, if it has one, and ``state`` that one's state. ``None``
    when the manifest that holds them is retired; ``global_batch`` is then what batches were counted in.
    """

    c: int
    after: int
    through: int
    rows: Mapping[str, Sequence[Row]]
    cursor: Cursor | None
    plan: Plan | None = None
    state: Any = None
    global_batch: int | None = None


def described(segments: Sequence[Segment]) -> list[tuple[Cursor, Plan | None]]:
    """Cursor and plan to read each segment with: its own, or those of the next one that has them, but for
    the size of its batches, where that is known.

    Weights given during the run begin after the step that gave them, so the last list of them holds for all.
    """
    found: list[tuple[Cursor, Plan | None]] = []
    for segment in reversed(segments):
        if segment.cursor is not None:
            found.append((segment.cursor, segment.plan))
        else:
            cursor, plan = found[-1] if found else (_after(segments), None)
            size = cursor.global_batch if segment.global_batch is None else segment.global_batch
            found.append((replace(cursor, global_batch=size), plan))
    last = found[0][1] if found else None
    given = {} if last is None or "updates" not in last else {"updates": last["updates"]}
    return [(cursor, plan and {**plan, **given}) for cursor, plan in reversed(found)]


def _after(segments: Sequence[Segment]) -> Cursor:
    """Where the rows end, for a lineage whose head has no cursor: nothing is known of its data."""
    rows = [row for segment in segments for part in segment.rows.values() for row in part]
    epoch, batch = max(((row.epoch, row.batch + 1) for row in rows), default=(0, 0))
    return Cursor("unknown", "unknown", 0, epoch, batch, None, 0, "drop", sum(len(row.ids) for row in rows))
