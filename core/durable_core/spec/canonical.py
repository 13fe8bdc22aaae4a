"""L1. The canonical JSON that gives a spec its address. Same rules as the documents on disk."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no blanks, ASCII, no NaN or infinity. Equal values, equal bytes."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def digest_of(value: Any) -> str:
    """``sha256:<hex>`` of the canonical form of a JSON value."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> leaf. Objects are opened, arrays are leaves; an empty object is a leaf."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(flatten(item, f"{prefix}.{key}" if prefix else key))
    return flat
