"""L2. A patch: the runs of bytes in which a slice differs from an earlier version of it.

Stored as one ``U8`` entry of a shard, which stays a valid ``.safetensors`` file:

    8 bytes   magic ``DPATCH1`` and a zero
    u64       bytes of the slice, before and after
    u64       number of runs
    2 x u64   begin and length of each run, ascending, neither touching nor overlapping
    ...       the new bytes of the runs, one after the other

All integers little endian. Applying a patch writes the runs over the earlier version; whether the result is
the slice, its digest says.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from durable_core.errors import FormatError

_HEAD = struct.Struct("<8sQQ")
_RUN = struct.Struct("<QQ")
_MAGIC = b"DPATCH1\0"

#: begin and length in bytes
Run = tuple[int, int]


def size(runs: Sequence[Run]) -> int:
    """Bytes of the patch with these runs."""
    return _HEAD.size + len(runs) * _RUN.size + sum(length for _, length in runs)


def head(runs: Sequence[Run], nbytes: int) -> bytes:
    """What stands before the bytes of the runs, for a slice of ``nbytes`` bytes."""
    index = b"".join(_RUN.pack(begin, length) for begin, length in runs)
    return _HEAD.pack(_MAGIC, nbytes, len(runs)) + index


def apply(patch: bytes | bytearray | memoryview, out: memoryview, *, key: str) -> None:
    """Write the runs of ``patch`` into ``out``, the bytes of the earlier version.

    ``FormatError`` naming ``key``, before anything is changed, for anything but a patch of a slice of this
    length.
    """
    data = memoryview(patch).cast("B")
    runs, begin = _runs(data, out.nbytes, key)
    for at, length in runs:
        out[at : at + length] = data[begin : begin + length]
        begin += length


def _runs(data: memoryview, nbytes: int, key: str) -> tuple[list[Run], int]:
    """The runs, and where their bytes begin in the patch."""
    if data.nbytes < _HEAD.size:
        raise FormatError(key, f"a patch of {data.nbytes} bytes")
    magic, whole, count = _HEAD.unpack(data[: _HEAD.size])
    if magic != _MAGIC:
        raise FormatError(key, "not a patch")
    if whole != nbytes:
        raise FormatError(key, f"a patch for {whole} bytes, not for {nbytes}")
    begin = _HEAD.size + count * _RUN.size
    if begin > data.nbytes:
        raise FormatError(key, f"a patch of {data.nbytes} bytes claims {count} runs")
    runs = list(_RUN.iter_unpack(data[_HEAD.size : begin]))
    end, total = -1, 0
    for at, length in runs:
        if at <= end or length == 0 or at + length > nbytes:
            raise FormatError(key, f"a run of {length} bytes at {at}, after {end}, in {nbytes}")
        end, total = at + length, total + length
    if begin + total != data.nbytes:
        raise FormatError(key, f"runs of {total} bytes in a patch that has {data.nbytes - begin}")
    return runs, begin
