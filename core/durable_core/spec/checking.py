"""L1. How the parts of a spec refuse an illegal value: ``UsageError`` that names the field."""

from __future__ import annotations

import math
from typing import Any

from durable_core.errors import UsageError

#: Metadata of a field that came after the first journals: it is encoded only when it has been given, so that
#: the digest of a spec without it stays what it was.
LATER = {"later": True}


def require(condition: bool, name: str, message: str, hint: str = "") -> None:
    if not condition:
        raise UsageError(f"spec.{name}: {message}", hint=hint)


def positive(value: int | None, name: str) -> None:
    good = value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)
    require(good, name, f"must be a positive integer, not {value!r}")


def count(value: int | None, name: str) -> None:
    good = value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)
    require(good, name, f"must be an integer, 0 or more, not {value!r}")


def choice(value: str | None, allowed: tuple[str, ...], name: str) -> None:
    require(value is None or value in allowed, name, f"{value!r} is none of {', '.join(allowed)}")


def distinct(values: tuple[str, ...], name: str) -> None:
    require(len(set(values)) == len(values), name, f"{values!r} must be distinct")


def amounts(section: Any, prefix: str, *names: str, zero: bool = False) -> None:
    """The fields ``names`` of a frozen ``section`` are finite numbers above 0 (or 0), made ``float``: the
    digest of ``60`` and ``60.0`` must not differ."""
    for name in names:
        value = getattr(section, name)
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        good = number and (value > 0 or (zero and value == 0))
        wanted = "0 or more" if zero else "above 0"
        require(good, f"{prefix}.{name}", f"must be {wanted}, not {value!r}")
        object.__setattr__(section, name, float(value))
