"""L3. Whole numbers as people give them: numpy's too, truth values and floats not."""

from __future__ import annotations

import operator
from typing import Any

from durable_core.errors import UsageError

LENGTHS_WANTED = (
    "build the manifest with `durable data build --tokens COLUMN` (or --lengths where the format knows them) "
    "and pass lengths=load_lengths(path), or give the dataset an int64 attribute `lengths`, one a record"
)
"""The way out where lengths are missing."""


def whole(name: str, value: Any, least: int | None = None) -> int:
    """``value`` as an ``int``, which JSON can hold.

    Raises ``UsageError``, naming it and its value, for what is no whole number, or is below ``least``.
    """
    try:
        if isinstance(value, bool):
            raise TypeError("a truth value")
        number = operator.index(value)
    except TypeError as error:
        raise UsageError(f"{name} must be a whole number, not {value!r:.80}") from error
    if least is not None and number < least:
        raise UsageError(f"{name} must be {least} or more, not {number}")
    return number
