"""L2. Canonical JSON: one value, one byte string; and a reader that believes nothing.

Canonical means: keys sorted by code point, no blanks, ASCII with escapes, integers in decimal,
floats as the shortest decimal that reads back as the same double. A digest of such bytes is
therefore a digest of the value.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from durable_core.errors import CodecError, FormatError

#: Containers inside containers; deeper documents are refused when written and when read.
MAX_DEPTH = 200
#: Bytes of a document; matches what ``Tier.get`` reads by default.
DEFAULT_LIMIT = 64 * 1024 * 1024

_OPENING, _CLOSING = b"[{", b"]}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_OPENING + _CLOSING))


def dumps(value: Any) -> bytes:
    """Canonical bytes of ``value`` (None, bool, int, float, str, list, tuple, dict with str keys).

    Raises ``CodecError`` for NaN, infinities, other types, other keys, and nesting beyond
    ``MAX_DEPTH``: what is written can be read. Tuples read back as lists.
    """
    try:
        _refuse_coerced_keys(value)
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
        )
    except RecursionError:
        raise CodecError("", f"nested deeper than {MAX_DEPTH} levels, or within itself") from None
    except (TypeError, ValueError) as error:
        raise CodecError("", f"not a JSON value: {error}") from error
    data = text.encode("ascii")
    if _depth(data) > MAX_DEPTH:
        raise CodecError("", f"nested deeper than {MAX_DEPTH} levels")
    return data


def loads(data: bytes | bytearray | memoryview, *, key: str, limit: int = DEFAULT_LIMIT) -> Any:
    """The value of a JSON document; ``key`` names the object in errors.

    Raises ``FormatError`` for more than ``limit`` bytes, invalid UTF-8, duplicate keys, NaN or
    infinities (also as overflowing literals), nesting beyond ``MAX_DEPTH``, trailing bytes.
    """
    if len(data) > limit:
        raise FormatError(key, f"{len(data)} bytes, more than the limit of {limit}")
    raw = bytes(data)
    if _depth(raw) > MAX_DEPTH:
        raise FormatError(key, f"nested deeper than {MAX_DEPTH} levels")
    try:
        return json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError and the hooks below
        raise FormatError(key, f"not strict JSON: {error}") from error


def _refuse_coerced_keys(root: Any) -> None:
    """``json`` would turn 1, None and True as keys into strings without a word."""
    todo = [root]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            for name in value:
                if not isinstance(name, str):
                    raise TypeError(f"key {name!r} is not a string")
            children: Any = value.values()
        elif isinstance(value, (list, tuple)):
            children = value
        else:
            continue
        todo.extend([child for child in children if isinstance(child, (dict, list, tuple))])


def _depth(data: bytes) -> int:
    """Deepest nesting of brackets outside strings, in linear time and without recursion.

    Exact for valid JSON. For anything else the answer may be wrong, and the parser refuses it.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return 0
    import numpy as np  # here, since nearly no document gets here and the command line starts without it

    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left of `"` delimits strings
    brackets = b"".join(plain.split(b'"')[::2]).translate(None, _NOT_BRACKETS)
    opening = np.isin(np.frombuffer(brackets, np.uint8), np.frombuffer(_OPENING, np.uint8))
    steps = np.where(opening, np.int8(1), np.int8(-1))
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return value


def _refuse_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not JSON")


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError(f"{literal} is beyond a double")
    return value
