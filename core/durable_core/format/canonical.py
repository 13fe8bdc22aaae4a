"""L2. Canonical JSON: one value, one byte string; and a reader that believes nothing.

Canonical means: keys sorted by code point, no blanks, ASCII with escapes, integers in decimal,
floats as the shortest decimal that reads back as the same double. A digest of such bytes is
therefore a digest of the value.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import Any, NoReturn

from durable_core.errors import CodecError, FormatError

#: Containers inside containers; deeper documents are refused when written and when read.
MAX_DEPTH = 200
#: Bytes of a document; matches what ``Tier.get`` reads by default.
DEFAULT_LIMIT = 64 * 1024 * 1024

# What a bracket adds to the depth, as one int8; every other byte is dropped.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_KEYS = frozenset({str})
_LEAVES = frozenset({str, int, float, bool, type(None)})


def dumps(value: Any) -> bytes:
    """Canonical bytes of ``value`` (None, bool, int, float, str, list, tuple, dict with str keys).

    Raises ``CodecError`` for NaN, infinities, other types, other keys, and nesting beyond
    ``MAX_DEPTH``: what is written can be read. Tuples read back as lists.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        _refuse_coerced_keys(value)
    except RecursionError:
        raise CodecError("", f"nested deeper than {MAX_DEPTH} levels, or within itself") from None
    except (TypeError, ValueError) as error:
        raise CodecError("", f"not a JSON value: {error}") from error
    data = text.encode("ascii")
    if _is_too_deep(data):
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
    if _is_too_deep(raw):
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
    """``json`` turns 1, None and True as keys into strings without a word. (It has refused cycles.)

    Containers of plain values, which most are, cost no step of the interpreter for each value.
    """
    todo = [root]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if not _KEYS.issuperset(map(type, value)):
                for name in value:
                    if not isinstance(name, str):
                        raise TypeError(f"key {name!r} is not a string")
            value = value.values()
        elif not isinstance(value, (list, tuple)):
            continue
        if not _LEAVES.issuperset(map(type, value)):
            todo.extend([child for child in value if type(child) not in _LEAVES])


def _is_too_deep(data: bytes) -> bool:
    """Whether brackets outside strings nest deeper than ``MAX_DEPTH``; linear time, no recursion.

    Exact for valid JSON. For anything else the answer may be wrong, and the parser refuses it.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False

    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left of `"` delimits strings
    steps = b"".join(plain.split(b'"')[::2]).translate(_STEPS, _NOT_BRACKETS)
    return max(itertools.accumulate(memoryview(steps).cast("b")), default=0) > MAX_DEPTH


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
