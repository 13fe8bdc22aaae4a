"""L3. Shards of mosaicml-streaming (MDS), which describe themselves; ``index.json`` is not needed.

Layout, little-endian: samples u32 = n; where each sample begins, and the last ends, u32 [n + 1]; a JSON
description of the columns; the samples. A sample is the sizes u32 of its columns of no fixed size, then
the values in the order of the columns (streaming/base/format/mds). The library itself pins numpy and torch
and keeps shared memory by name, so it is not used. Images (``jpeg``, ``png``, ``pil``) stay bytes; ``pkl``
is refused: reading it runs code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from durable_core.data.readers.base import (
    DECODE_ERRORS,
    File,
    Held,
    ObjectIndex,
    ObjectReader,
    Record,
    tokens_in,
)
from durable_core.data.readers.frames import Source, source, whole
from durable_core.data.readers.lines import duplicate
from durable_core.data.readers.registry import Columns, Stored
from durable_core.errors import FormatError, RecordError, UnsupportedError

Decode = Callable[[bytes], Any]

_SHAPES = ("u1", "<u2", "<u4", "<u8")
_VALUES = {
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8",
    65: "<i8", 66: "<f8",
}  # fmt: skip
_SCALARS = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)


def index(stored: Stored, tokens: str | None, key: str | None) -> ObjectIndex:
    held = Held()
    file, compression = stored.file, stored.how.compression
    tables = {"frames": whole(file, compression)} if compression else {}
    columns = [column for column in (tokens, key) if column is not None]
    shard = MdsReader(
        stored.file, source(stored.file, stored.how.compression, tables.get("frames"), held), columns
    )
    try:
        records = shard.read(range(len(shard))) if columns else []
    finally:
        shard.close()
    lengths = None
    if tokens is not None:
        counts = [_counted(file.name, i, record[tokens]) for i, record in enumerate(records)]
        lengths = np.array(counts, dtype=np.int64)
    keys = tuple(str(record[key]) for record in records) if key else None
    if keys is not None and len(set(keys)) != len(keys):
        raise duplicate(stored.file.name, keys)
    rule = "ordinal" if key is None else f"key:{key}"
    return ObjectIndex(len(shard), lengths, rule, shard.schema, keys, tables)


def reader(stored: Stored, index: ObjectIndex, columns: Columns, held: Held) -> ObjectReader:
    return MdsReader(
        stored.file, source(stored.file, stored.how.compression, index.tables.get("frames"), held), columns
    )


def _counted(name: str, ordinal: int, value: Any) -> int:
    try:
        return tokens_in(value)
    except ValueError as error:
        raise RecordError(name, ordinal, str(error)) from error


class MdsReader(ObjectReader):
    def __init__(self, file: File, source: Source, columns: Sequence[str] | None) -> None:
        self._source = source
        try:
            count = int(np.frombuffer(source.read(0, 4), "<u4")[0])
            self._begins = np.frombuffer(source.read(4, 4 * (count + 1)), "<u4").astype(np.int64)
            begin = 4 * (count + 2)
            if self._begins[0] < begin or (np.diff(self._begins) < 0).any():
                raise ValueError("its samples do not lie one behind another")
            text = source.read(begin, int(self._begins[0]) - begin)
            encodings, self._sizes = _columns(json.loads(text))
            missing = [column for column in columns or () if column not in encodings]
            if missing:
                raise FormatError(file.name, f"no column {missing[0]!r}; it has {', '.join(encodings)}")
            self._decoders: list[tuple[str, Decode | None]] = [
                (name, _decoder(file.name, name, encoding) if columns is None or name in columns else None)
                for name, encoding in encodings.items()
            ]
        except DECODE_ERRORS as error:
            raise FormatError(file.name, f"not readable as an MDS shard: {error}") from error
        super().__init__(file.name, count)
        self.schema = "; ".join(f"{name}: {encoding}" for name, encoding in encodings.items())

    def _record(self, ordinal: int) -> Record:
        begin = int(self._begins[ordinal])
        data = self._source.read(begin, int(self._begins[ordinal + 1]) - begin)
        free = sum(size is None for size in self._sizes)
        sizes = iter(np.frombuffer(data, "<u4", free).tolist())
        position, out = 4 * free, dict[str, Any]()
        for (name, decode), fixed in zip(self._decoders, self._sizes, strict=True):
            end = position + (next(sizes) if fixed is None else fixed)
            if decode is not None:
                out[name] = decode(data[position:end])
            position = end
        if position != len(data):
            raise ValueError(f"{len(data)} bytes where its columns have {position}")
        return out

    def close(self) -> None:
        self._source.close()


def _columns(described: Any) -> tuple[dict[str, str], list[int | None]]:
    """Encoding by name, and the bytes of each column that has a fixed size. Raises ``DECODE_ERRORS``."""
    names, encodings = described["column_names"], described["column_encodings"]
    sizes, version = described["column_sizes"], described["version"]
    if version != 2:
        raise ValueError(f"version {version!r}")
    if not all(isinstance(text, str) for text in [*names, *encodings]) or len({*names}) != len(names):
        raise ValueError(f"columns {names!r:.80} of {encodings!r:.80}")
    if not all(size is None or (type(size) is int and size >= 0) for size in sizes):
        raise ValueError(f"sizes {sizes!r:.80}")
    if not len(names) == len(encodings) == len(sizes):
        raise ValueError(f"{len(names)} columns, {len(encodings)} encodings and {len(sizes)} sizes")
    return dict(zip(names, encodings, strict=True)), sizes


def _decoder(name: str, column: str, encoding: str) -> Decode:
    if encoding == "pkl":
        raise UnsupportedError(
            f"{name}: column {column!r} is pickled, and reading it would run code",
            hint="leave it out with columns=, or write the shards again without pkl",
        )
    kind, _, arguments = encoding.partition(":")
    if kind == "ndarray":
        return _array(arguments)
    if kind in _SCALARS:
        return lambda data: np.frombuffer(data, kind)[0]
    return _PLAIN.get(encoding, bytes)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:  # which is an ArithmeticError
        raise ValueError(f"{text!r} is no decimal number") from error


_PLAIN: dict[str, Decode] = {
    "str": lambda data: data.decode("utf-8"),
    "int": lambda data: int(np.frombuffer(data, "<i8")[0]),
    "str_int": int,
    "str_float": float,
    "str_decimal": lambda data: _decimal(data.decode("utf-8")),
    "json": json.loads,
}


def _array(arguments: str) -> Decode:
    """``ndarray[:dtype[:shape]]``; what is not fixed stands before the values: a code of the dtype, then
    (dimensions << 2 | code of the integers of the shape) and the shape."""
    dtype_text, _, shape_text = arguments.partition(":")
    fixed_dtype = np.dtype(dtype_text) if dtype_text else None
    fixed_shape = tuple(int(side) for side in shape_text.split(",")) if shape_text else None

    def decode(data: bytes) -> Any:
        position, dtype, shape = 0, fixed_dtype, fixed_shape
        if dtype is None:
            dtype, position = np.dtype(_VALUES[data[0]]), 1
        if shape is None:
            sides, kind = data[position] >> 2, np.dtype(_SHAPES[data[position] & 3])
            shape = tuple(np.frombuffer(data, kind, sides, position + 1).tolist())
            position += 1 + sides * kind.itemsize
        return np.frombuffer(bytearray(data[position:]), dtype, math.prod(shape)).reshape(shape)

    return decode
