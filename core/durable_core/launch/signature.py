"""L5. When are two failures the same one? Equal signatures; what differs by chance is not part of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

#: Frames that count, innermost: below them lies what all callers share.
FRAMES = 5

#: What differs between two occurrences of one fault, and what stands for it. In this order: paths hold
#: numbers.
_CHANCE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.I), "<url>"),
    (re.compile(r"(?:(?<=[\s'\"(\[=:])|^)~?(?:/[^\s'\"/:,)\]]+)+/?(?=[\s'\":,)\]]|$)"), "<path>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.I), "<n>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I), "<id>"),
    (re.compile(r"\[?\b(?:\d{1,3}\.){3}\d{1,3}\b\]?(?::\d+)?"), "<address>"),
    (re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{12,}\b", re.I), "<id>"),
    (re.compile(r"[-+]?(?<![A-Za-z_])\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.I), "<n>"),
)


def normalized(message: str) -> str:
    """``message``, its first line, without paths, addresses, identities and numbers."""
    text = message.strip().split("\n", 1)[0]
    for pattern, name in _CHANCE:
        text = pattern.sub(name, text)
    return " ".join(text.split())[:200]


def frame(text: str) -> str:
    """``file:function`` without the directory and the line: ``/a/b.py:12:f`` and ``b.py:f`` are the same."""
    file, _, function = text.rpartition(":")
    file = re.sub(r"[:,]\s*(?:line )?\d+$", "", file)
    return f"{file.rpartition('/')[2]}:{function}" if file else function


def signature(kind: str, message: str = "", frames: Sequence[str] = (), step: int | None = None,
              position: str = "") -> str:  # fmt: skip
    """``<16 hex digits> <kind> in <innermost frame> at step <s>``: stable over processes, hosts and
    versions of this code.

    ``kind``: of the error, or how the process ended; ``step``: the one it happened in; ``position``: the
    class of the data position (the object it was about, the phase), ``""`` when it does not matter.
    """
    inner = [frame(text) for text in frames[-FRAMES:]]
    parts = (kind, normalized(message), *inner, "" if step is None else str(step), position)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    where = f" in {inner[-1]}" if inner else ""
    when = "" if step is None else f" at step {step}"
    of = f" ({position})" if position else ""
    return f"{digest} {kind}{where}{when}{of}"
