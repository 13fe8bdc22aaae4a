"""L3. How an agent says no, and the error that becomes of it at the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from durable_core.errors import (
    CorruptError,
    DurableError,
    Fenced,
    FormatError,
    InDoubt,
    ObjectNotFoundError,
    TierDenied,
    TierFull,
    TierUnavailable,
    UsageError,
)

#: The first that fits is said; anything else is ``unavailable``.
_SAID: tuple[tuple[type[DurableError], str], ...] = (
    (Fenced, "fenced"),
    (InDoubt, "in-doubt"),
    (TierFull, "full"),
    (TierDenied, "denied"),
    (ObjectNotFoundError, "missing"),
    (CorruptError, "corrupt"),
    (UsageError, "usage"),
)
_HEARD: Mapping[str, type[DurableError]] = {
    "fenced": Fenced,
    "in-doubt": InDoubt,
    "full": TierFull,
    "denied": TierDenied,
    "usage": UsageError,
}


def refusal(error: DurableError) -> dict[str, Any]:
    """The header that says ``error``; short enough for any frame."""
    said = next((name for kind, name in _SAID if isinstance(error, kind)), "unavailable")
    reason = error.reason if isinstance(error, CorruptError) else error.message
    return {"error": said, "reason": _plain(reason, 1000), "hint": _plain(error.hint, 300)}


def heard(header: Mapping[str, Any], key: str, where: str) -> DurableError | None:
    """The error in a reply about ``key`` of the agent at ``where``; ``None`` when it is none."""
    said = header.get("error")
    if said is None:
        return None
    reason, hint = str(header.get("reason", "")), str(header.get("hint", ""))
    if said == "missing":
        return ObjectNotFoundError(key, where)
    if said == "corrupt":
        return FormatError(key, f"{reason}, says {where}")
    kind = _HEARD.get(str(said), TierUnavailable)
    return kind(f"{where}: {reason}", hint=hint)


def _plain(text: str, limit: int) -> str:
    return text.encode("ascii", "replace").decode()[:limit]
