"""L5. What the controller asks of agents: one file for each thing, named by its op_id: it is asked once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from durable_core.engine import words
from durable_core.engine.launched import RunFiles
from durable_core.engine.words import Request


def derived(op_id: str, kind: str) -> str:
    """The op_id of what is asked under the operation ``op_id``."""
    return hashlib.sha256(f"{op_id}\0{kind}".encode()).hexdigest()[:32]


def ask(
    places: Iterable[RunFiles], kind: str, op_id: str, generation: int, *, failure: str = "",
    reason: str = "", evidence: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Leave the request at each of ``places``, unless it is there. ``op_id``: what it follows from.

    ``OSError`` where there is no room for it. Killed before the file: the next controller derives the same
    name, and asks. After it: it finds the file.
    """
    name = derived(op_id, kind)
    request = Request(name, kind, generation, failure, reason, dict(evidence or {}))
    for files in places:
        path = files.requests / f"{name}.json"
        if not path.exists():
            words.write(path, request)
