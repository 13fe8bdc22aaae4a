"""L2. The types the codec knows by itself: one encoder and one decoder each, in two tables.

An encoder gets ``(encoder, value, path, depth)``, a decoder ``(decoder, body, path, depth)``; both call back
for what is inside. A decoder may raise ``TypeError``, ``ValueError``, ``LookupError`` or ``OverflowError``:
the caller turns them into a ``FormatError`` with the path.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np

from durable_core.errors import CodecError
from durable_core.format import canonical
from durable_core.format.codec_numpy import (
    decode_array,
    decode_dtype,
    decode_scalar,
    encode_array,
)
from durable_core.format.codec_parts import from_base64, join, listed, to_base64

if TYPE_CHECKING:
    from durable_core.format.codec import Decoder, Encoder

_SAFE_INT = 2**53
_PATHS: dict[str, type[PurePosixPath] | type[PureWindowsPath] | type[Path]] = {
    "path": Path,
    "posix": PurePosixPath,
    "windows": PureWindowsPath,
}


# --- scalars -------------------------------------------------------------------------------


def _encode_int(_: Encoder, value: int, path: str, depth: int) -> Any:
    return value if -_SAFE_INT <= value <= _SAFE_INT else {"$int": hex(value)}


def _decode_int(_: Decoder, body: Any, path: str, depth: int) -> int:
    return int(body, 16)


def _encode_float(_: Encoder, value: float, path: str, depth: int) -> Any:
    return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}


def _decode_float(_: Decoder, body: Any, path: str, depth: int) -> float:
    return float(_doubles(body, 1)[0])


def _encode_complex(_: Encoder, value: complex, path: str, depth: int) -> Any:
    return {"$complex": struct.pack(">2d", value.real, value.imag).hex()}


def _decode_complex(_: Decoder, body: Any, path: str, depth: int) -> complex:
    return complex(*_doubles(body, 2))


def _doubles(text: Any, count: int) -> tuple[float, ...]:
    data = bytes.fromhex(text)
    if len(data) != 8 * count:
        raise ValueError(f"{len(data)} bytes for {count} doubles")
    return struct.unpack(f">{count}d", data)


def _is_unicode(text: str) -> bool:
    """No surrogates. JSON would join a high and a low one that stand side by side."""
    return text.isascii() or not any(0xD800 <= ord(char) <= 0xDFFF for char in text)


def _encode_str(_: Encoder, value: str, path: str, depth: int) -> Any:
    return value if _is_unicode(value) else {"$str": to_base64(value.encode("utf-8", "surrogatepass"))}


def _decode_str(_: Decoder, body: Any, path: str, depth: int) -> str:
    return from_base64(body).decode("utf-8", "surrogatepass")


def _encode_bytes(_: Encoder, value: bytes, path: str, depth: int) -> Any:
    return {"$bytes": to_base64(value)}


def _decode_bytes(_: Decoder, body: Any, path: str, depth: int) -> bytes:
    return from_base64(body)


def _encode_bytearray(_: Encoder, value: bytearray, path: str, depth: int) -> Any:
    return {"$bytearray": to_base64(value)}


def _decode_bytearray(_: Decoder, body: Any, path: str, depth: int) -> bytearray:
    return bytearray(from_base64(body))


# --- paths and times -----------------------------------------------------------------------


def _encode_path(_: Encoder, value: PurePosixPath | PureWindowsPath, path: str, depth: int) -> Any:
    kind = "path" if isinstance(value, Path) else "posix" if isinstance(value, PurePosixPath) else "windows"
    return {"$path": [kind, str(value)]}


def _decode_path(_: Decoder, body: Any, path: str, depth: int) -> Any:
    kind, text = listed(body, 2)
    return _PATHS[kind](text)


def _encode_date(_: Encoder, value: dt.date, path: str, depth: int) -> Any:
    return {"$date": value.isoformat()}


def _decode_date(_: Decoder, body: Any, path: str, depth: int) -> dt.date:
    return dt.date.fromisoformat(body)


def _encode_datetime(_: Encoder, value: dt.datetime, path: str, depth: int) -> Any:
    zone: Any = None
    if type(value.tzinfo) is dt.timezone:
        offset, name = value.tzinfo.utcoffset(None), value.tzinfo.tzname(None)
        usual = dt.timezone(offset).tzname(None)
        zone = [*_delta(offset), None if name == usual else name]
    elif value.tzinfo is not None:
        raise CodecError(path, "a datetime of a named zone", hint="store value.astimezone(timezone.utc)")
    return {"$datetime": [value.replace(tzinfo=None).isoformat(), value.fold, zone]}


def _decode_datetime(_: Decoder, body: Any, path: str, depth: int) -> dt.datetime:
    text, fold, zone = listed(body, 3)
    value = dt.datetime.fromisoformat(text).replace(fold=fold)
    if zone is None:
        return value
    *offset, name = listed(zone, 4)
    delta = dt.timedelta(*offset)
    return value.replace(tzinfo=dt.timezone(delta) if name is None else dt.timezone(delta, name))


def _encode_timedelta(_: Encoder, value: dt.timedelta, path: str, depth: int) -> Any:
    return {"$timedelta": list(_delta(value))}


def _decode_timedelta(_: Decoder, body: Any, path: str, depth: int) -> dt.timedelta:
    days, seconds, microseconds = listed(body, 3)
    return dt.timedelta(days, seconds, microseconds)


def _delta(value: dt.timedelta) -> tuple[int, int, int]:
    return value.days, value.seconds, value.microseconds


# --- containers ----------------------------------------------------------------------------


def _items(encoder: Encoder, items: Iterable[Any], path: str, depth: int) -> list[Any]:
    return [encoder.encode(item, join(path, i), depth) for i, item in enumerate(items)]


def _pairs(encoder: Encoder, value: dict[Any, Any], path: str, depth: int) -> list[Any]:
    return [
        [encoder.encode(name, join(path, name), depth), encoder.encode(item, join(path, name), depth)]
        for name, item in value.items()
    ]


def _unpair(decoder: Decoder, body: Any, path: str, depth: int) -> list[tuple[Any, Any]]:
    pairs = []
    for pair in listed(body):
        name_document, item = listed(pair, 2)
        name = decoder.decode(name_document, path, depth)
        pairs.append((name, decoder.decode(item, join(path, name), depth)))
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key appears twice")
    return pairs


def _unlist(decoder: Decoder, body: Any, path: str, depth: int) -> list[Any]:
    return [decoder.decode(item, join(path, i), depth) for i, item in enumerate(listed(body))]


def _encode_dict(encoder: Encoder, value: dict[Any, Any], path: str, depth: int) -> Any:
    if _is_plain(value):
        return {name: encoder.encode(item, join(path, name), depth) for name, item in value.items()}
    return {"$dict": _pairs(encoder, value, path, depth)}


def _is_plain(value: dict[Any, Any]) -> bool:
    """Keys in sorted order keep it in canonical JSON, so an object says all there is to say."""
    names = list(value)
    if not all(type(name) is str and not name.startswith("$") and _is_unicode(name) for name in names):
        return False
    return all(a < b for a, b in itertools.pairwise(names))


def _encode_defaultdict(encoder: Encoder, value: defaultdict[Any, Any], path: str, depth: int) -> Any:
    name = None
    if value.default_factory is not None:
        name = encoder.registry.factory_name(value.default_factory)
        if name is None:
            raise CodecError(
                path,
                "a defaultdict whose factory is not registered",
                hint="durable_core.format.codec.register_factory(name, factory) makes it storable",
            )
    return {"$defaultdict": [name, *_pairs(encoder, value, path, depth)]}


def _decode_defaultdict(decoder: Decoder, body: Any, path: str, depth: int) -> Any:
    name, *pairs = listed(body)
    factory = None if name is None else decoder.registry.factory(name)
    if name is not None and factory is None:
        raise CodecError(path, f"defaultdict factory {name!r} is not registered here")
    return defaultdict(factory, _unpair(decoder, pairs, path, depth))


def _encode_deque(encoder: Encoder, value: deque[Any], path: str, depth: int) -> Any:
    return {"$deque": [value.maxlen, *_items(encoder, value, path, depth)]}


def _decode_deque(decoder: Decoder, body: Any, path: str, depth: int) -> deque[Any]:
    maxlen, *items = listed(body)
    if maxlen is not None and len(items) > maxlen:
        raise ValueError(f"{len(items)} items in a deque of {maxlen}")
    return deque(_unlist(decoder, items, path, depth), maxlen)


def _unordered(encoder: Encoder, value: Iterable[Any], path: str, depth: int) -> list[Any]:
    """Elements in the order of their canonical bytes: equal sets have equal documents."""
    return sorted((encoder.encode(item, join(path, item), depth) for item in value), key=canonical.dumps)


def _encode_range(encoder: Encoder, value: range, path: str, depth: int) -> Any:
    return {"$range": _items(encoder, (value.start, value.stop, value.step), path, depth)}


def _encode_slice(encoder: Encoder, value: slice, path: str, depth: int) -> Any:
    return {"$slice": _items(encoder, (value.start, value.stop, value.step), path, depth)}


def _decode_slice(decoder: Decoder, body: Any, path: str, depth: int) -> slice:
    start, stop, step = _unlist(decoder, listed(body, 3), path, depth)
    return slice(start, stop, step)


def _distinct(decoder: Decoder, body: Any, path: str, depth: int) -> set[Any]:
    items = _unlist(decoder, body, path, depth)
    found = set(items)
    if len(found) != len(items):
        raise ValueError("an element appears twice")
    return found


# --- the tables ----------------------------------------------------------------------------

ENCODERS: dict[type, Callable[[Encoder, Any, str, int], Any]] = {
    int: _encode_int,
    float: _encode_float,
    complex: _encode_complex,
    str: _encode_str,
    bytes: _encode_bytes,
    bytearray: _encode_bytearray,
    PosixPath: _encode_path,
    WindowsPath: _encode_path,
    PurePosixPath: _encode_path,
    PureWindowsPath: _encode_path,
    dt.date: _encode_date,
    dt.datetime: _encode_datetime,
    dt.timedelta: _encode_timedelta,
    range: _encode_range,
    slice: _encode_slice,
    np.ndarray: lambda e, value, path, depth: encode_array(value, path),
    list: _items,
    tuple: lambda e, value, path, depth: {"$tuple": _items(e, value, path, depth)},
    dict: _encode_dict,
    OrderedDict: lambda e, value, path, depth: {"$ordered": _pairs(e, value, path, depth)},
    defaultdict: _encode_defaultdict,
    Counter: lambda e, value, path, depth: {"$counter": _pairs(e, value, path, depth)},
    deque: _encode_deque,
    set: lambda e, value, path, depth: {"$set": _unordered(e, value, path, depth)},
    frozenset: lambda e, value, path, depth: {"$frozenset": _unordered(e, value, path, depth)},
}

#: Types whose values hold other values, and could hold themselves.
CONTAINERS = frozenset({list, tuple, dict, OrderedDict, defaultdict, Counter, deque, set, frozenset, slice})

DECODERS: dict[str, Callable[[Decoder, Any, str, int], Any]] = {
    "$int": _decode_int,
    "$float": _decode_float,
    "$complex": _decode_complex,
    "$str": _decode_str,
    "$bytes": _decode_bytes,
    "$bytearray": _decode_bytearray,
    "$path": _decode_path,
    "$date": _decode_date,
    "$datetime": _decode_datetime,
    "$timedelta": _decode_timedelta,
    "$range": lambda d, body, path, depth: range(*_unlist(d, listed(body, 3), path, depth)),
    "$slice": _decode_slice,
    "$array": lambda d, body, path, depth: decode_array(body),
    "$scalar": lambda d, body, path, depth: decode_scalar(body),
    "$dtype": lambda d, body, path, depth: decode_dtype(body),
    "$tuple": lambda d, body, path, depth: tuple(_unlist(d, body, path, depth)),
    "$dict": lambda d, body, path, depth: dict(_unpair(d, body, path, depth)),
    "$ordered": lambda d, body, path, depth: OrderedDict(_unpair(d, body, path, depth)),
    "$defaultdict": _decode_defaultdict,
    "$counter": lambda d, body, path, depth: Counter(dict(_unpair(d, body, path, depth))),
    "$deque": _decode_deque,
    "$set": lambda d, body, path, depth: _distinct(d, body, path, depth),
    "$frozenset": lambda d, body, path, depth: frozenset(_distinct(d, body, path, depth)),
}
