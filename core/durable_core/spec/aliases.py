"""L1. Which references may move under a run. A spec that holds one cannot be frozen (SPEC-04, SPEC-06)."""

from __future__ import annotations

import re
from pathlib import Path

_DIGEST = re.compile(r"(sha256:[0-9a-f]{64}|blake3:[0-9a-f]{64}|xxh3:[0-9a-f]{32})")
_REVISION = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})")
_PINNED_IMAGE = re.compile(r"(.+@)?sha256:[0-9a-f]{64}")
_MOVING = re.compile(r"(^|[/:@])(latest|head|main|master|current|stable|nightly)($|[/:@])", re.IGNORECASE)


def is_digest(value: str) -> bool:
    """Whether a reference is a content digest (``sha256:``, ``blake3:`` or ``xxh3:`` and hex digits)."""
    return bool(_DIGEST.fullmatch(value))


def mutable_alias(kind: str, value: str) -> str | None:
    """Why a reference may come to mean something else later, or ``None`` when it cannot.

    ``kind`` is the last part of the field's name: a ``source_revision`` must be a full commit id and an
    ``image`` be pinned by digest; any other reference must not be a moving name or a symbolic link.
    """
    if is_digest(value):
        return None
    if kind == "source_revision":
        return None if _REVISION.fullmatch(value) else "is a branch, a tag or a short commit id, and may move"
    if kind == "image":
        return None if _PINNED_IMAGE.fullmatch(value) else "is an image tag, and may move"
    if _MOVING.search(value):
        return "is a moving name"
    if "://" not in value and "\0" not in value and any(path.is_symlink() for path in _chain(value)):
        return "goes through a symbolic link"
    return None


def _chain(value: str) -> tuple[Path, ...]:
    """The path and, when it is relative, its parents as given; above is the machine's business."""
    path = Path(value)
    return (path, *(parent for parent in path.parents if not path.is_absolute() and parent != Path()))
