"""L4. Small JSON documents that processes of one launch leave for each other: a worker's last words, which
run was opened, what the agent knows, what the controller asks. Whole or absent: written aside, then renamed.

All of them are of one installation: a field too many or too few is damage, not another version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from durable_core.errors import FormatError


@dataclass(frozen=True)
class Words:
    """The error that a worker ended with.

    ``kind``: the class by its whole name; ``branch``: our own base class of it (``TierError``, ...), ``""``
    for a foreign one; ``frames``: ``file:function`` of the innermost frames, innermost last, without line
    numbers; ``step``: the last boundary, if a run was open; ``object``: the key of the object it was about,
    if any; ``hint``: the way out; ``attempt``: of the launch, as the worker was told it."""

    kind: str
    message: str
    branch: str = ""
    frames: tuple[str, ...] = ()
    step: int | None = None
    object: str = ""
    hint: str = ""
    exit_code: int = 1
    attempt: int = 0


@dataclass(frozen=True)
class Opened:
    """The run that this group works on. ``root``: as ``open_tier`` takes it; ``roles``: its members."""

    root: str
    run_id: str
    generation: int
    launch_id: str
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Member:
    """One worker as its agent knows it. ``exit``: its status, negative for a signal; ``None``: it lives."""

    rank: int
    pid: int
    host: str
    node: int
    exit: int | None = None


@dataclass(frozen=True)
class Facts:
    """What the agent of one node knows of its group. ``phase``: see ``launch.machine.GroupPhase``; ``since``,
    ``time``: wall clock, for people. ``expected``: members of the whole group; ``reason``: why it is in that
    phase."""

    launch_id: str
    attempt: int
    phase: str
    since: float
    time: float
    generation: int | None = None
    expected: int = 0
    members: tuple[Member, ...] = ()
    standbys: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Request:
    """Something the controller asks of the agent, once: ``restart`` (for a failure of that class), ``drain``,
    ``dump`` (stacks). It counts only while ``generation`` is the group's."""

    op_id: str
    kind: str
    generation: int
    failure: str = ""
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


Document = Words | Opened | Facts | Request
_Made = TypeVar("_Made")


def write(path: Path, document: Document) -> None:
    """Readers see the old one or the new one. ``TypeError`` for evidence that is not JSON; ``OSError``, also
    where the directory is gone: whoever made it has ended."""
    put(path, json.dumps(asdict(document)).encode())


def put(path: Path, data: bytes) -> None:
    """``data`` whole, or what was there before. ``OSError``."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(data)
    beside.replace(path)


def read_words(path: Path) -> Words | None:
    """``None`` when nobody wrote any. ``FormatError`` for anything else, as in all that follow."""
    return _read(path, lambda doc: Words(**{**doc, "frames": tuple(doc["frames"])}))


def read_opened(path: Path) -> Opened | None:
    return _read(path, lambda doc: Opened(**{**doc, "roles": tuple(doc["roles"])}))


def read_facts(path: Path) -> Facts | None:
    return _read(
        path, lambda doc: Facts(**{**doc, "members": tuple(Member(**row) for row in doc["members"])})
    )


def read_request(path: Path) -> Request | None:
    return _read(path, lambda doc: Request(**doc))


def _read(path: Path, make: Callable[[dict[str, Any]], _Made]) -> _Made | None:
    try:
        doc = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FormatError(str(path), "not JSON") from error
    if not isinstance(doc, dict):
        raise FormatError(str(path), "not an object")
    try:
        return make(doc)
    except (TypeError, KeyError) as error:
        raise FormatError(str(path), f"not what it should be: {error}") from error
