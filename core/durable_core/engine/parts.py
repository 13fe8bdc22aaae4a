"""L4. A checkpoint and the roles that restore it: whose part each takes, and what then has no owner. Pure.

What is replicated is everybody's. A role that the checkpoint knows takes its own part of the rest; a new
one begins with the first role's. What differed between the replicas and is of a role that is gone, or of
one that would get another's, is dropped only where that was declared.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from durable_core.errors import SpecMismatchError
from durable_core.format.manifest import SHARED, Manifest

_SHOWN = 8  # names spelled out in one sentence


@dataclass(frozen=True)
class Part:
    """``role``: whose documents are taken. ``begins``: the one that takes them is not in the checkpoint.
    ``dropped``: what differed between the replicas and is from now on the first one's."""

    role: str
    begins: bool = False
    dropped: tuple[str, ...] = ()


def part_of(manifest: Manifest, role: str, roles: Sequence[str], from_first: Sequence[str] = ()) -> Part:
    """What ``role``, one of ``roles``, takes. ``from_first``: shell patterns of names in the state.

    Raises ``SpecMismatchError`` naming what differs between the replicas and matches no pattern.
    """
    if set(roles) == set(manifest.roles):
        return Part(role)
    names = differing(manifest)
    undeclared = [name for name in names if not any(fnmatch.fnmatchcase(name, p) for p in from_first)]
    first = manifest.roles[0]
    if undeclared:
        raise SpecMismatchError(
            f"c{manifest.c} is of {', '.join(manifest.roles)} and restored by {', '.join(roles)}, and what "
            f"each of those had of its own has no place there: {shown(undeclared)}",
            fields=tuple(undeclared),
            hint=f"restore it with the roles it was saved with, or declare that {first}'s will do: "
            f"from_first=({undeclared[0]!r}, ...)",
        )
    begins = role not in manifest.roles
    return Part(first if begins else role, begins, names)


def differing(manifest: Manifest) -> tuple[str, ...]:
    """Names of tensors and of plain values in the state that are not the same for every role; sorted."""
    found = set()
    for key in manifest.tensors:
        parts = key.split("/", 3)
        if parts[0] == "roles" and parts[2] == "state":
            found.add(parts[3])
    if ("state", SHARED) not in manifest.documents:
        first, *others = (manifest.documents.get(("state", role)) for role in manifest.roles)
        found.update(name for other in others for name in _paths(first, other, ""))
    return tuple(sorted(found))


def shown(names: Sequence[str]) -> str:
    """The first of ``names``, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _paths(one: Any, two: Any, path: str) -> Iterator[str]:
    """Where two documents of typed JSON differ, as paths in the state they stand for."""
    if one == two:
        return
    if isinstance(one, dict) and isinstance(two, dict):
        mine, theirs = _entries(one), _entries(two)
        for key in sorted({*mine, *theirs}):
            inner = path if key.startswith("$") or (not path and key == "tree") else f"{path}/{key}"
            yield from _paths(mine.get(key), theirs.get(key), inner.lstrip("/"))
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for index, pair in enumerate(zip(one, two, strict=True)):
            yield from _paths(*pair, f"{path}/{index}".lstrip("/"))
    else:
        yield path or "<the whole state>"


def _entries(value: dict[str, Any]) -> dict[str, Any]:
    pairs = value.get("$dict")
    return {str(key): item for key, item in pairs} if isinstance(pairs, list) else value
