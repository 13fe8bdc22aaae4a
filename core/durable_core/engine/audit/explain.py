"""L4. Where one sample went: the steps that consumed it, and the checkpoints that hold its effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from durable_core.commit.state import CheckpointInfo
from durable_core.data.cursor import Cursor
from durable_core.engine.audit import UNKNOWN, LazyRows, lineage_of, position_of
from durable_core.engine.audit.consumption import role_order
from durable_core.engine.audit.due import Plan
from durable_core.engine.audit.sources import places_of
from durable_core.engine.inspect import Reader
from durable_core.errors import NotFoundError
from durable_core.format.ledger import Row, RowFlag


@dataclass(frozen=True)
class Use:
    """Once consumed: by ``step``, in ``batch`` of ``epoch``, at ``place`` of the share of ``role``.

    ``place`` counts records from 0 (pieces, where documents are packed). ``tokens``: how many of its tokens
    were used; None for a whole record. ``applied``: an optimizer step was made with it. ``left_out``: by
    declaration (it did not decode), so it was not trained on. ``c``: the first checkpoint that counts it.
    """

    step: int
    epoch: int
    batch: int
    role: str
    place: int
    tokens: int | None
    applied: bool
    left_out: bool
    c: int


@dataclass(frozen=True)
class Explanation:
    """``id``: in the source ``source`` (None for a run that has only one); ``uses``: oldest first.

    ``checkpoints``: those that can still be restored and hold its effect. ``head`` and ``step``: how far
    was looked.
    """

    source: str | None
    id: int
    uses: tuple[Use, ...]
    checkpoints: tuple[int, ...]
    head: int | None
    step: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def explain(reader: Reader, sample: int | str, c: int | None = None) -> Explanation:
    """At which steps up to checkpoint ``c`` (the head, by default) a sample was consumed.

    ``sample``: its id, or ``source:id`` in a mixture; there a bare id is one of all sources in a row.

    Raises ``NotFoundError`` for an id that no dataset of the run has, ``CheckpointNotFoundError``, and what
    ``audit`` raises for a damaged ledger.
    """
    infos = lineage_of(reader, c)
    known = (position_of(reader, info, []) for info in reversed(infos))
    cursor, plan, _ = next((position for position in known if position.cursor is not None), UNKNOWN)
    source, local, wanted = _find(str(sample), cursor, plan)
    uses = [use for info in infos for use in _uses(info, LazyRows(reader, info), wanted)]
    trained = [use.step for use in uses if use.applied]
    kept = [info for info in infos if info.usable and trained and info.step >= trained[0]]
    return Explanation(
        source=source,
        id=local,
        uses=tuple(uses),
        checkpoints=tuple(info.c for info in kept),
        head=infos[-1].c if infos else None,
        step=infos[-1].step if infos else 0,
    )


def _find(sample: str, cursor: Cursor | None, plan: Plan | None) -> tuple[str | None, int, int]:
    """(source, id in it, id in the ledger)."""
    places = {} if plan is None else places_of(plan)
    name, _, text = sample.rpartition(":")
    if not text.isascii() or not text.isdigit():
        raise NotFoundError(
            f"{sample!r} is no sample id",
            hint="an id is the place of a record in the dataset, from 0; in a mixture source:number. Keys of "
            "records (`durable data build --key`) are checked when a manifest is built, and not kept",
        )
    number = int(text)
    if not places:
        _check(number, None if cursor is None else cursor.size, name)
        return None, number, number
    if not name:
        held = (source for source, place in places.items() if number in place)
        name = next(held, "")
        number -= places[name].start if name else 0
    if name not in places or number >= len(places[name]):
        known = ", ".join(f"{source}:0 to {len(place) - 1}" for source, place in places.items())
        raise NotFoundError(f"no source of the run has a sample {sample!r}", hint=f"there are {known}")
    return name, number, places[name].start + number


def _check(sample: int, size: int | None, name: str) -> None:
    if name:
        raise NotFoundError(f"no source {name!r}: the run has one dataset", hint=f"ask for {sample}")
    if size is not None and sample >= size:
        raise NotFoundError(f"no sample {sample}: the dataset has {size}", hint=f"0 to {size - 1}")


def _uses(info: CheckpointInfo, rows: Mapping[str, Sequence[Row]], wanted: int) -> Iterator[Use]:
    found = [
        Use(
            step=row.step,
            epoch=row.epoch,
            batch=row.batch,
            role=role,
            place=place,
            tokens=None if row.amounts is None else int(row.amounts[place]),
            applied=not row.flags & (RowFlag.NO_UPDATE | RowFlag.SKIPPED),
            left_out=bool(row.flags & RowFlag.SKIPPED),
            c=info.c,
        )
        for role, part in rows.items()
        for row in part
        for place in np.flatnonzero(row.ids == wanted).tolist()
    ]
    return iter(sorted(found, key=lambda use: (use.step, use.epoch, use.batch, role_order(use.role))))
