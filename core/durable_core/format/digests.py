"""L2. The three digests, on any contiguous buffer, without copying it.

crc32c is what object stores verify; xxh3-128 compares slices inside one run (fast, not safe against
an adversary); sha256 names documents and records.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable

import xxhash

Buffer = bytes | bytearray | memoryview

SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
XXH3 = re.compile(r"[0-9a-f]{32}")
CRC32C = re.compile(r"[0-9a-f]{8}")


def sha256(data: Buffer) -> str:
    """``sha256:<64 hex digits>``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def xxh3(data: Buffer) -> str:
    """xxh3-128 as 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def crc32c(data: Buffer) -> str:
    """CRC-32C (Castagnoli) as 8 hex digits."""
    return f"{_crc32c()(data, 0):08x}"


@functools.cache
def _crc32c() -> Callable[[Buffer, int], int]:
    """Imported late: it reads package metadata, which would double the start of a command line."""
    import crc32c

    return crc32c.crc32c


def xxh3_hasher() -> xxhash.xxh3_128:
    """For bytes that arrive in parts: ``update`` and ``hexdigest``."""
    return xxhash.xxh3_128()


class SliceHasher:
    """xxh3-128 and crc32c of bytes that arrive in parts; one pass over each part for both."""

    def __init__(self) -> None:
        self._xxh3 = xxhash.xxh3_128()
        self._crc32c = 0

    def update(self, part: Buffer) -> None:
        self._xxh3.update(part)
        self._crc32c = _crc32c()(part, self._crc32c)

    @property
    def xxh3(self) -> str:
        return self._xxh3.hexdigest()

    @property
    def crc32c(self) -> str:
        return f"{self._crc32c:08x}"
