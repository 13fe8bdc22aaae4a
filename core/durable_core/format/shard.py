"""L2. A shard's header: the safetensors layout, written and distrusted in pure Python.

The file is ``<u64 little endian: n><n bytes of JSON><data>``; the JSON maps a name to ``dtype``, ``shape``
and ``data_offsets`` (begin, end) counted from the start of the data; the data has no gaps. See the format
text at https://github.com/huggingface/safetensors#format. The header is padded with blanks so
that the data starts on a page.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from durable_core.errors import FormatError, UsageError
from durable_core.format import canonical
from durable_core.types import SliceKey

#: Bytes per element of each dtype, by its safetensors name.
ITEMSIZE: dict[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}

PREFIX = 8
#: Bytes of JSON that the safetensors library accepts.
MAX_HEADER = 100_000_000
MAX_DIMS = 64
_METADATA = "__metadata__"
_LENGTH_LIMIT = 2**63

#: name, dtype, shape in elements, bytes
Entry = tuple[str, str, Sequence[int], int]


@dataclass(frozen=True)
class HeaderEntry:
    """One tensor of a shard; ``begin`` counts from the start of the object."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int


def entry_name(piece: SliceKey, global_shape: Sequence[int]) -> str:
    """The name of a slice in a shard: the tensor's key, with ``[begin:end, ...]`` unless it is whole."""
    if tuple(piece.shape) == tuple(global_shape):
        return piece.key
    spans = ",".join(f"{o}:{o + n}" for o, n in zip(piece.offsets, piece.shape, strict=True))
    return f"{piece.key}[{spans}]"


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor; ``UsageError`` for an unknown dtype."""
    if dtype not in ITEMSIZE:
        raise UsageError(f"dtype {dtype!r} is none of {', '.join(ITEMSIZE)}")
    return math.prod(shape) * ITEMSIZE[dtype]


def layout(entries: Sequence[Entry], *, align: int = 4096) -> tuple[bytes, tuple[int, ...]]:
    """Header bytes and, for each entry in the order given, where its data begins in the object.

    The data lies in the order of falling item size (ties: the order given), so that every tensor is
    aligned to its items without gaps; **write the parts sorted by their begin** (``write_order``).
    ``align`` is a power of two, at least 8. ``UsageError`` for a duplicate name, a byte count that is
    not shape x item size, or a header that readers would refuse.
    """
    if align < 8 or align & (align - 1):
        raise UsageError(f"align {align} is not a power of two of at least 8")
    header: dict[str, Any] = {}
    relative = [0] * len(entries)
    end = 0
    for index in sorted(range(len(entries)), key=lambda i: -ITEMSIZE.get(entries[i][1], 0)):
        name, dtype, shape, nbytes = entries[index]
        if nbytes != nbytes_of(dtype, shape) or len(shape) > MAX_DIMS:
            raise UsageError(f"{name!r}: {nbytes} bytes for {dtype} of shape {tuple(shape)}")
        if name in header or name == _METADATA:
            raise UsageError(f"two slices named {name!r}, or a reserved name")
        relative[index] = end
        end += nbytes
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [relative[index], end]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    padded = -(-(PREFIX + len(text)) // align) * align - PREFIX
    if padded > MAX_HEADER:
        raise UsageError(f"a header of {padded} bytes, more than {MAX_HEADER}", hint="write fewer slices")
    start = PREFIX + padded
    return struct.pack("<Q", padded) + text.ljust(padded), tuple(start + begin for begin in relative)


def write_order(begins: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Indices of the entries in the order their data lies in the object (empty ones first at a tie)."""
    return tuple(sorted(range(len(begins)), key=lambda i: (begins[i], sizes[i])))


def header_length(prefix: bytes | bytearray | memoryview, file_size: int, *, key: str) -> int:
    """Bytes of prefix and header together, from the first 8 bytes of an object of ``file_size`` bytes."""
    if len(prefix) < PREFIX or file_size < PREFIX:
        raise FormatError(key, "shorter than a shard's prefix")
    (length,) = struct.unpack("<Q", bytes(prefix[:PREFIX]))
    if length > MAX_HEADER or PREFIX + length > file_size:
        raise FormatError(key, f"claims a header of {length} bytes in an object of {file_size}")
    return PREFIX + int(length)


def parse_header(
    data: bytes | bytearray | memoryview, file_size: int, *, key: str
) -> tuple[HeaderEntry, ...]:
    """The tensors of a shard, sorted by ``begin``; ``data`` holds at least prefix and header.

    Raises ``FormatError`` naming ``key`` for anything but a header whose tensors cover the data of an
    object of ``file_size`` bytes exactly once, with dtypes known and lengths that agree.
    """
    start = header_length(data, file_size, key=key)
    if len(data) < start:
        raise FormatError(key, f"{len(data)} bytes of a header of {start}")
    text = bytes(data[PREFIX:start])
    if not text.startswith(b"{"):
        raise FormatError(key, "the header does not start with '{'")
    header = canonical.loads(text, key=key, limit=MAX_HEADER)
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(key, f"{_METADATA} is not an object of strings")
    entries = sorted(
        (_entry(name, fields, start, key) for name, fields in header.items()),
        key=lambda entry: (entry.begin, entry.nbytes),
    )
    end = start
    for entry in entries:
        if entry.begin != end:
            what = "overlaps" if entry.begin < end else "leaves a gap after"
            raise FormatError(key, f"tensor {entry.name!r} at {entry.begin} {what} what ends at {end}")
        end += entry.nbytes
    if end != file_size:
        raise FormatError(key, f"tensors end at {end} in an object of {file_size} bytes")
    return tuple(entries)


def _entry(name: str, fields: Any, start: int, key: str) -> HeaderEntry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(key, f"tensor {name!r} lacks dtype, shape or data_offsets, or has more")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEMSIZE:
        raise FormatError(key, f"tensor {name!r} has unknown dtype {dtype!r}")
    if not _are_lengths(shape) or len(shape) > MAX_DIMS:
        raise FormatError(key, f"tensor {name!r} has no valid shape")
    if not _are_lengths(offsets) or len(offsets) != 2:
        raise FormatError(key, f"tensor {name!r} has no valid data_offsets")
    begin, end = offsets
    if end - begin != math.prod(shape) * ITEMSIZE[dtype]:
        raise FormatError(key, f"tensor {name!r}: {end - begin} bytes for {dtype} of shape {shape}")
    return HeaderEntry(name, dtype, tuple(shape), start + begin, end - begin)


def _are_lengths(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < _LENGTH_LIMIT for item in value)
