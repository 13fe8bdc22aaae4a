"""L2. What the encoders and decoders of typed JSON share: paths, lists of known length, base64."""

from __future__ import annotations

import base64
from typing import Any


def join(path: str, part: Any) -> str:
    """``path`` extended by a key or index; ``/`` and ``%`` in ``part`` are escaped."""
    text = part if isinstance(part, str) else repr(part)
    text = text.replace("%", "%25").replace("/", "%2F")
    return f"{path}/{text}" if path else text


def listed(body: Any, length: int | None = None) -> list[Any]:
    """``body`` itself; ``TypeError`` or ``ValueError`` unless it is a list (of that length)."""
    if not isinstance(body, list):
        raise TypeError("not a list")
    if length is not None and len(body) != length:
        raise ValueError(f"{len(body)} items, not {length}")
    return body


def to_base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def from_base64(text: Any) -> bytes:
    """``TypeError`` or ``ValueError`` for what is not strict base64."""
    if not isinstance(text, str):
        raise TypeError("not base64 text")
    return base64.b64decode(text, validate=True)
