"""L5. The training curve: the last rows, and the rows of the generation before to compare a replay with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from durable_core.engine import heartbeat
from durable_core.errors import CodecError, CorruptError, UsageError
from durable_core.format import codec, layout
from durable_core.state import window
from durable_core.types import Promise


class Curve:
    """``window``: the last ``size`` rows, which go into every checkpoint; ``replayed``: how many steps have
    been compared with their first execution."""

    def __init__(self, size: int, previous: heartbeat.Owner | None) -> None:
        self.window = window.Window(size)
        self.replayed = 0
        self._reference = _reference(previous)

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self.window.record(window.Row(**row))

    def note(self, step: int, values: Mapping[str, Any], promise: Promise) -> tuple[window.Row, str]:
        """One more row, and why it differs from what the same step gave before the failure; ``""``: it does
        not.

        ``UsageError`` for what is no number.
        """
        row = window.Row(step, **{name: _number(name, value) for name, value in values.items()})
        self.window.record(row)
        reference = self._reference.pop(step, None)
        if reference is None:
            return row, ""
        self.replayed += 1
        verdict = window.compare([reference], [row], promise)
        return row, verdict.reason if verdict.ok is False else ""

    def rows(self) -> list[Any]:
        """As JSON: a loss may well be NaN."""
        return [codec.encode(dict(vars(row))) for row in self.window.rows]


def _number(name: str, value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of several elements
        hint = "pass a float, as in loss.item()"
        raise UsageError(f"{name} is not a number: {error}", hint=hint) from error


def _reference(previous: heartbeat.Owner | None) -> dict[int, window.Row]:
    """The rows of the last owner's heartbeat by step. A hint: what another version wrote is left out."""
    try:
        rows = [
            window.Row(**codec.decode(row, key=layout.OWNER_HINT))
            for row in (previous.rows if previous else [])
        ]
    except (CorruptError, CodecError, TypeError):
        return {}
    return {row.step: row for row in rows}
