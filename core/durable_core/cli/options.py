"""L6. Values on the command line that several commands take."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from durable_core.engine.inspect import holds_run, local_path
from durable_core.tier.remote import is_remote

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


# --- the root of a run that is there ----------------------------------------------------------------

#: Where a script under Accelerate has its run, below its project directory, when nobody says otherwise.
BELOW_A_PROJECT = "durable"

Body = TypeVar("Body", bound=Callable[..., Any])


def root_argument(*, optional: bool = False) -> click.Argument:
    """ROOT; a project directory of Accelerate stands for the root below it, which is said on stderr."""
    return click.Argument(
        ["root"], required=not optional, metavar="[ROOT]" if optional else "ROOT", callback=_meant
    )


def takes_root(body: Body) -> Body:
    """The same, for a command of its own."""
    return click.argument("root", metavar="ROOT", callback=_meant)(body)


def _meant(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None or is_remote(value) or "://" in value:
        return value
    path = local_path(value)
    below = path / BELOW_A_PROJECT
    if holds_run(path) or not holds_run(below):
        return value
    print(f"durable: {value} is a project directory; its run is in {below}", file=sys.stderr)
    return str(below)
