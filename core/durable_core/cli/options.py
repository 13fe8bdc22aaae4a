"""L6. Values on the command line that several commands take."""

from __future__ import annotations

import re

import click

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(|B|KiB|MiB|GiB|TiB)", re.IGNORECASE)
_UNITS = ("b", "kib", "mib", "gib", "tib")


def size(_: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """``1048576``, ``512MiB``, ``8 GiB`` -> bytes."""
    if value is None:
        return None
    found = _SIZE.fullmatch(value.strip())
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{value!r} is no size such as 512MiB or 8GiB", param=parameter)
    return int(float(found[1]) * 1024 ** _UNITS.index(found[2].lower() or "b"))
