"""L3. Megatron's indexed datasets: ``x.idx`` says where each sequence of tokens lies in ``x.bin``.

Layout of an index, little-endian: ``MMIDIDX\\0\\0``, version u64 = 1, dtype code u8, sequences u64 = n,
documents u64 = d, lengths i32 [n] in tokens, begins i64 [n] in bytes, documents i64 [d]
(megatron/core/datasets/indexed_dataset.py). A record is one sequence: what was one document, mostly.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from durable_core.data.readers.base import File, Held, ObjectIndex, ObjectReader, Ranges, Record
from durable_core.data.readers.registry import Columns, Stored
from durable_core.errors import FormatError, UsageError

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


def index(stored: Stored, tokens: str | None, key: str | None) -> ObjectIndex:
    if key is not None:
        raise UsageError(f"{stored.file.name}: {stored.how.kind} has no keys")
    dtype, lengths, begins = _read(stored.file)
    _check_ends(stored.file, _paired(stored.file, stored.companion), dtype, lengths, begins)
    return ObjectIndex(len(lengths), lengths.astype(np.int64), schema=f"tokens: {dtype.name}")


def reader(stored: Stored, index: ObjectIndex, columns: Columns, held: Held) -> ObjectReader:
    if columns is not None:
        raise UsageError(f"{stored.file.name}: {stored.how.kind} has no columns")
    return MegatronReader(stored.file, _paired(stored.file, stored.companion))


class MegatronReader(ObjectReader):
    def __init__(self, file: File, tokens: File) -> None:
        self._dtype, self._lengths, self._begins = _read(file)
        _check_ends(file, tokens, self._dtype, self._lengths, self._begins)
        super().__init__(file.name, len(self._lengths))
        self._ranges = Ranges(tokens)

    def _record(self, ordinal: int) -> Record:
        return self._ranges.array(self._dtype, int(self._begins[ordinal]), int(self._lengths[ordinal]))

    def close(self) -> None:
        self._ranges.close()


def _paired(file: File, companion: File | None) -> File:
    if companion is None:
        raise UsageError(f"{file.name} is only the index of a .bin file", hint="pass that as companion=")
    return companion


def _read(file: File) -> tuple[np.dtype[Any], NDArray[np.int32], NDArray[np.int64]]:
    with file.open() as stream:
        data = stream.read()
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise FormatError(file.name, "no index of a Megatron dataset")
    _, version, code, count, documents = _HEAD.unpack_from(data)
    if version != 1 or code not in _DTYPES:
        raise FormatError(file.name, f"version {version}, dtype code {code}")
    if len(data) < _HEAD.size + 12 * count + 8 * documents:
        raise FormatError(file.name, f"truncated: {len(data)} bytes for {count} sequences")
    lengths = np.frombuffer(data, "<i4", count, _HEAD.size)
    begins = np.frombuffer(data, "<i8", count, _HEAD.size + 4 * count)
    return np.dtype(_DTYPES[code]), lengths, begins


def _check_ends(
    file: File, tokens: File, dtype: np.dtype[Any], lengths: NDArray[np.int32], begins: NDArray[np.int64]
) -> None:
    ends = begins + lengths.astype(np.int64) * dtype.itemsize
    bad = np.flatnonzero((lengths < 0) | (begins < 0) | (ends > tokens.size()))
    if len(bad):
        raise FormatError(file.name, f"sequence {bad[0]} ends beyond {tokens.name} ({tokens.size()} bytes)")
