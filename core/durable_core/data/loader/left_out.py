"""L3. Records left out by declaration: how many, of which object, and why; said once an object."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from durable_core.data.ledger import LeftOut, Tag
from durable_core.errors import CorruptError, SkippedRecord


def by_object(items: Iterable[Any]) -> LeftOut:
    """Of what was read for a batch: the object of each ``SkippedRecord``, how many of it, and why."""
    found: dict[str, tuple[int, str]] = {}
    for item in items:
        if isinstance(item, SkippedRecord):
            count, why = found.get(item.key, (0, item.why))
            found[item.key] = count + 1, why
    return found


class Skips:
    """Records left out, counted where batches are handed over: whoever read them, the same batch is too much.

    ``most``: of different records since the process began; None: no bound.
    """

    def __init__(self, most: int | None) -> None:
        self._most, self._ids = most, set[int]()
        self._told = set[str]()

    def count(self, tag: Tag) -> None:
        """Raises ``CorruptError``, naming the batch and its records, once there are more than ``most``.

        Warns when it is the first time for an object.
        """
        for name, (count, why) in (tag.left_out or {}).items():
            if name not in self._told:
                self._told.add(name)
                _warn(name, count, why, tag)
        if self._most is None or tag.skipped is None:
            return
        self._ids.update(tag.skipped.tolist())
        if len(self._ids) > self._most:
            raise CorruptError(
                f"epoch {tag.epoch} batch {tag.batch}",
                f"more than max_skipped={self._most} records would be left out: {len(self._ids)} with ids "
                f"{', '.join(map(str, tag.skipped[:8]))}",
            )


def _warn(name: str, count: int, why: str, tag: Tag) -> None:
    records = "1 record" if count == 1 else f"{count} records"
    warnings.warn(
        f"data: {name}: {records} left out so far (epoch {tag.epoch} batch {tag.batch}), as declared: {why}. "
        "Said once an object; the ledger names every record",
        stacklevel=4,
    )
