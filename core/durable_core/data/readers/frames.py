"""L3. Bytes of a file that may be compressed: found by frame, where there are frames.

A gzip member or a zstd frame can be decompressed without those before it. The table of frames, made in
one pass, says where each begins in the file and in the decompressed bytes; a range is read by
decompressing the frames it lies in, whole, which are then kept for a while.
"""

from __future__ import annotations

import bisect
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from durable_core.data.readers.base import File, Held, Ids, Ranges
from durable_core.errors import FormatError, UnsupportedError, UsageError

CHUNK = 1 << 20
MAX_FRAME = 1 << 30
"""Bytes of the largest decompressed frame that is read at random: it is held in memory whole."""


class Source(Protocol):
    """Decompressed bytes by position."""

    def read(self, begin: int, length: int) -> bytes:
        """Exactly these, or ``FormatError``."""

    def close(self) -> None: ...


class Scan:
    """One pass over a file's decompressed bytes; ``table`` is complete after it.

    ``table``: int64 [frames + 1, 2]: where each frame begins in the file and in the decompressed bytes,
    and where the last one ends. Empty for an uncompressed file.
    """

    def __init__(self, file: File, compression: str) -> None:
        self._file, self._compression = file, compression
        self._starts: list[tuple[int, int]] = []

    @property
    def table(self) -> Ids:
        return np.array(self._starts, dtype=np.int64).reshape(-1, 2)

    def __iter__(self) -> Iterator[bytes]:
        with self._file.open() as stream:
            chunks = iter(lambda: stream.read(CHUNK), b"")
            yield from self._decompressed(chunks) if self._compression else chunks

    def _decompressed(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        taken = given = 0
        codec = _Codec(self._compression)
        decoder: Any = None
        for chunk in chunks:
            while chunk:
                if decoder is None:
                    if not chunk.strip(b"\0"):  # padding, which gzip allows
                        taken, chunk = taken + len(chunk), b""
                        continue
                    self._starts.append((taken, given))
                    decoder = codec.new()
                data = codec.feed(decoder, chunk, self._file.name, len(self._starts) - 1)
                rest = decoder.unused_data if decoder.eof else b""
                taken, given = taken + len(chunk) - len(rest), given + len(data)
                yield data
                chunk, decoder = rest, None if decoder.eof else decoder
        if decoder is not None:
            raise FormatError(
                self._file.name, f"truncated in {self._compression} frame {len(self._starts) - 1}"
            )
        self._starts.append((taken, given))


class Framed:
    """Random access to the decompressed bytes, by a table of frames."""

    def __init__(self, file: File, compression: str, table: NDArray[Any], held: Held) -> None:
        self._ranges, self._codec, self._held = Ranges(file), _Codec(compression), held
        self._name = file.name
        self._begins = [int(begin) for begin, _ in table]
        self._raw = [int(begin) for _, begin in table]

    def read(self, begin: int, length: int) -> bytes:
        end = begin + length
        if end > self._raw[-1]:
            raise FormatError(self._name, f"truncated: {self._raw[-1]} bytes decompressed, {end} wanted")
        parts = []
        frame = bisect.bisect_right(self._raw, begin) - 1
        while begin < end:
            stop = min(end, self._raw[frame + 1])
            if stop > begin:
                parts.append(self._frame(frame)[begin - self._raw[frame] : stop - self._raw[frame]])
            begin, frame = stop, frame + 1
        return b"".join(parts)

    def close(self) -> None:
        self._ranges.close()
        self._held.forget(self._ranges)

    def _frame(self, frame: int) -> bytes:
        nbytes = self._raw[frame + 1] - self._raw[frame]
        if nbytes > MAX_FRAME:
            raise UnsupportedError(
                f"{self._name}: a record needs all of frame {frame}, {nbytes} bytes decompressed",
                hint="compress in frames (bgzip, pzstd), in smaller objects, or not at all",
            )
        return self._held.get((self._ranges, frame), lambda: (self._decode(frame, nbytes), nbytes))

    def _decode(self, frame: int, nbytes: int) -> bytes:
        begin, end = self._begins[frame], self._begins[frame + 1]
        decoder = self._codec.new()
        data = self._codec.feed(decoder, self._ranges.read(begin, end - begin), self._name, frame)
        if not decoder.eof or len(data) != nbytes:
            raise FormatError(self._name, f"frame {frame} gives {len(data)} bytes, not {nbytes}")
        return data


def source(file: File, compression: str, table: NDArray[Any] | None, held: Held) -> Source:
    """Bytes by position, of a plain file or of a compressed one with its table of frames."""
    if not compression:
        return Ranges(file)
    if table is None:
        table = whole(file, compression)
    return Framed(file, compression, table, held)


def whole(file: File, compression: str) -> Ids:
    """The table of frames of a compressed file."""
    scan = Scan(file, compression)
    for _ in scan:
        pass
    return scan.table


class _Codec:
    """One compression: new decoders, and what they raise."""

    def __init__(self, compression: str) -> None:
        self.compression = compression
        self.new: Callable[[], Any] = partial(zlib.decompressobj, wbits=31)
        self._error: type[Exception] = zlib.error
        if compression == "zstd":
            try:
                import zstandard
            except ModuleNotFoundError as error:
                raise UsageError(
                    "zstd is read with zstandard, which is not installed",
                    hint="pip install 'durable-training[data]'",
                ) from error
            self.new = zstandard.ZstdDecompressor().decompressobj
            self._error = zstandard.ZstdError

    def feed(self, decoder: Any, data: bytes, name: str, frame: int) -> bytes:
        try:
            raw: bytes = decoder.decompress(data)
        except self._error as error:
            raise FormatError(name, f"{self.compression} frame {frame}: {error}") from error
        return raw
