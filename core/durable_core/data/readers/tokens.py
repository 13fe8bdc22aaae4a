"""L3. Arrays of numbers: ``.npy``, raw numbers, safetensors. A record is a row, or a block of elements.

Read by position, not mapped: each record is an array of its own, which may be written to.
"""

from __future__ import annotations

import io
import json
import math
import operator
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from durable_core.data.readers.base import (
    DECODE_ERRORS,
    File,
    Held,
    ObjectIndex,
    ObjectReader,
    Ranges,
    Record,
)
from durable_core.data.readers.registry import Columns, Format, Stored
from durable_core.errors import FormatError, UnsupportedError, UsageError

#: safetensors' names of what numpy has too
_SAFETENSORS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_MAX_HEADER = 100 << 20


@dataclass(frozen=True)
class Array:
    """Where an array's elements lie, and how many make up a record.

    ``row``: the shape of a record (``()``: a number); ``total``: elements in all.
    """

    dtype: np.dtype[Any]
    begin: int
    total: int
    row: tuple[int, ...]

    @cached_property
    def width(self) -> int:
        """Elements in a record."""
        return math.prod(self.row)

    @property
    def records(self) -> int:
        """The last block may be short; the last row may not."""
        return -(-self.total // self.width) if self.width else 0

    def text(self) -> str:
        return f"{self.dtype.name}{list(self.row)}"


def index(stored: Stored, tokens: str | None, key: str | None) -> ObjectIndex:
    if key is not None:
        raise UsageError(f"{stored.file.name}: {stored.how.kind} has no keys")
    arrays = _arrays(stored.file, stored.how)
    records = _records(stored.file.name, arrays)
    counted = arrays.get(tokens or "") if stored.how.kind == "safetensors" else arrays[""]
    lengths = None
    if counted is not None and counted.row:
        lengths = np.full(records, counted.width, dtype=np.int64)
        if records:
            lengths[-1] = counted.total - (records - 1) * counted.width
    elif tokens is not None:
        raise FormatError(stored.file.name, f"no rows of tokens in {tokens!r}")
    schema = "; ".join(f"{name}: {array.text()}" for name, array in sorted(arrays.items()))
    return ObjectIndex(records, lengths, schema=schema)


def reader(stored: Stored, index: ObjectIndex, columns: Columns, held: Held) -> ObjectReader:
    arrays = _arrays(stored.file, stored.how)
    if stored.how.kind != "safetensors":
        if columns is not None:
            raise UsageError(f"{stored.file.name}: {stored.how.kind} has no columns")
        return ArrayReader(stored.file, arrays[""])
    missing = [column for column in columns or () if column not in arrays]
    if missing:
        raise FormatError(stored.file.name, f"no tensor {missing[0]!r}; it has {', '.join(sorted(arrays))}")
    return TensorsReader(stored.file, {name: arrays[name] for name in columns or arrays})


class ArrayReader(ObjectReader):
    def __init__(self, file: File, array: Array) -> None:
        super().__init__(file.name, array.records)
        self._ranges, self._array = Ranges(file), array

    def _record(self, ordinal: int) -> Record:
        return _row(self._ranges, self._array, ordinal)

    def close(self) -> None:
        self._ranges.close()


class TensorsReader(ObjectReader):
    def __init__(self, file: File, arrays: Mapping[str, Array]) -> None:
        super().__init__(file.name, _records(file.name, arrays))
        self._ranges, self._arrays = Ranges(file), arrays

    def _record(self, ordinal: int) -> Record:
        return {name: _row(self._ranges, array, ordinal) for name, array in self._arrays.items()}

    def close(self) -> None:
        self._ranges.close()


def _row(ranges: Ranges, array: Array, ordinal: int) -> Any:
    first = ordinal * array.width
    count = min(array.width, array.total - first)
    values = ranges.array(array.dtype, array.begin + first * array.dtype.itemsize, count)
    if not array.row:
        return values[0]
    return values if len(array.row) == 1 else values.reshape(array.row)


def _records(name: str, arrays: Mapping[str, Array]) -> int:
    counts = {key: array.records for key, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise FormatError(name, f"its tensors have different lengths: {counts}" if counts else "no tensors")
    return next(iter(counts.values()))


def _arrays(file: File, how: Format) -> dict[str, Array]:
    try:
        if how.kind == "safetensors":
            return _safetensors(file, how.number(0))
        return {"": _npy(file, how.number(0)) if how.kind == "npy" else _raw(file, how)}
    except (*DECODE_ERRORS, tokenize.TokenError) as error:  # numpy takes a header's text apart as Python
        raise FormatError(file.name, f"not readable as {how.kind}: {error}") from error


def _raw(file: File, how: Format) -> Array:
    block = how.number(1)
    if block is None:
        raise UsageError(
            f"{file.name}: raw numbers do not say what they are",
            hint="bin:<dtype>:<numbers a record>, as bin:uint16:2048",
        )
    try:
        dtype = np.dtype(how.arguments[0])
    except TypeError as error:
        raise UsageError(f"{how.arguments[0]!r} is no dtype: {error}") from error
    nbytes = file.size()
    if dtype.hasobject or not dtype.itemsize or nbytes % dtype.itemsize:
        raise FormatError(file.name, f"{nbytes} bytes are no whole number of {dtype}")
    return Array(dtype, 0, nbytes // dtype.itemsize, (block,))


def _npy(file: File, block: int | None) -> Array:
    with file.open() as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"version {version} of the format")
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(stream)
        begin = stream.tell()
    if dtype.hasobject:
        raise UnsupportedError(
            f"{file.name}: an array of python objects would run code", hint="store numbers"
        )
    if fortran and len(shape) > 1:
        raise UnsupportedError(
            f"{file.name}: its rows are not contiguous (Fortran order)", hint="save it in C order"
        )
    return _checked(file, _shaped(dtype, begin, shape, block))


def _safetensors(file: File, block: int | None) -> dict[str, Array]:
    """Every byte behind the header belongs to one tensor, as the library has it too."""
    ranges = Ranges(file)
    try:
        size = int.from_bytes(ranges.read(0, 8), "little")
        if size > _MAX_HEADER:
            raise FormatError(file.name, f"a header of {size} bytes")
        header: dict[str, Any] = json.load(io.BytesIO(ranges.read(8, size)))
    finally:
        ranges.close()
    header.pop("__metadata__", None)
    arrays, extents = {}, []
    for name, entry in header.items():
        if entry["dtype"] not in _SAFETENSORS:
            raise UnsupportedError(
                f"{file.name}: tensor {name!r} is {entry['dtype']}, which numpy does not have"
            )
        dtype = np.dtype(_SAFETENSORS[entry["dtype"]])
        begin, end = map(operator.index, entry["data_offsets"])
        array = _shaped(dtype, 8 + size + begin, entry["shape"], block)
        if end - begin != array.total * dtype.itemsize:
            raise ValueError(f"tensor {name!r} has bytes {begin} to {end} for {array.total} {dtype}")
        arrays[name] = _checked(file, array)
        extents.append((begin, end))
    at = 0
    for begin, end in sorted(extents):
        if begin != at:
            raise ValueError(f"a tensor begins at byte {begin} of the data, where {at} is due")
        at = end
    if 8 + size + at != file.size():
        raise ValueError(f"{file.size()} bytes where its header speaks of {8 + size + at}")
    return arrays


def _shaped(dtype: np.dtype[Any], begin: int, shape: Sequence[int], block: int | None) -> Array:
    sides = tuple(operator.index(side) for side in shape)
    if not sides:
        raise ValueError("a single number is no dataset")
    if min(sides) < 0:
        raise ValueError(f"a shape of {list(sides)}")
    if block is not None and len(sides) > 1:
        raise ValueError(f"it has rows already ({list(sides)}), so no block of {block}")
    row = sides[1:] if block is None else (block,)
    if sides[0] and not math.prod(row) * dtype.itemsize:
        raise ValueError(f"its {sides[0]} rows have no bytes ({dtype}{list(row)})")
    return Array(dtype, begin, math.prod(sides), row)


def _checked(file: File, array: Array) -> Array:
    end, nbytes = array.begin + array.total * array.dtype.itemsize, file.size()
    if nbytes < end:
        raise FormatError(file.name, f"truncated: {nbytes} bytes where its header speaks of {end}")
    return array
