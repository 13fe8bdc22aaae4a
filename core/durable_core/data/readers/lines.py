"""L3. Records that are stretches of one file: JSON lines, lines, paragraphs, or the file itself.

Where each record begins is found in one pass over the decompressed bytes, and kept: 8 bytes a record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from durable_core.data.readers.base import (
    DECODE_ERRORS,
    File,
    Held,
    Ids,
    ObjectIndex,
    ObjectReader,
    Record,
    tokens_in,
)
from durable_core.data.readers.frames import Scan, Source, source
from durable_core.data.readers.registry import Columns, Format, Stored
from durable_core.errors import FormatError, RecordError, UsageError

Decode = Callable[[bytes], Record]


def index(stored: Stored, tokens: str | None, key: str | None) -> ObjectIndex:
    unit = _unit(stored.how)
    if stored.how.kind != "jsonl" and (tokens or key):
        raise UsageError(f"{stored.file.name}: {stored.how.kind} has no columns, so no {tokens or key!r}")
    scan = Scan(stored.file, stored.how.compression)
    facts = _Facts(stored.file.name, tokens, key)
    offsets = _whole(scan) if unit == "file" else _offsets(facts.watch(scan), paragraphs=unit == "paragraphs")
    tables = {"offsets": offsets} | ({"frames": scan.table} if stored.how.compression else {})
    lengths, keys = facts.told(len(offsets) - 1)
    rule = "ordinal" if key is None else f"key:{key}"
    return ObjectIndex(len(offsets) - 1, lengths, rule, f"{stored.how.kind}:{unit}", keys, tables)


def reader(stored: Stored, index: ObjectIndex, columns: Columns, held: Held) -> ObjectReader:
    if columns is not None and stored.how.kind != "jsonl":
        raise UsageError(f"{stored.file.name}: {stored.how.kind} has no columns")
    offsets = index.tables.get("offsets")
    if offsets is None:
        offsets = _again(stored.file, stored.how)
    bytes_ = source(stored.file, stored.how.compression, index.tables.get("frames"), held)
    return Stretches(stored.file.name, bytes_, offsets, _decode(stored.how, columns))


class Stretches(ObjectReader):
    """Record i is the bytes from ``offsets[i]`` to ``offsets[i + 1]``, decoded."""

    def __init__(self, name: str, source: Source, offsets: Ids, decode: Decode) -> None:
        super().__init__(name, len(offsets) - 1)
        self._source, self._offsets, self._decode = source, offsets, decode

    def _record(self, ordinal: int) -> Record:
        begin = int(self._offsets[ordinal])
        return self._decode(self._source.read(begin, int(self._offsets[ordinal + 1]) - begin))

    def close(self) -> None:
        self._source.close()


def _unit(how: Format) -> str:
    if how.kind == "jsonl":
        return "lines"
    unit = how.arguments[0] if how.arguments else "file"
    if unit not in ("file", "lines", "paragraphs"):
        raise UsageError(f"{how.kind} by {unit!r}", hint="lines, paragraphs, or nothing for the file")
    return unit


def _again(file: File, how: Format) -> Ids:
    scan = Scan(file, how.compression)
    unit = _unit(how)
    return _whole(scan) if unit == "file" else _offsets(scan, paragraphs=unit == "paragraphs")


def _decode(how: Format, columns: Sequence[str] | None) -> Decode:
    if how.kind == "blob":
        return bytes
    if how.kind == "jsonl":
        return json.loads if columns is None else _Picked(columns)
    return _text if _unit(how) == "file" else _stripped


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _stripped(data: bytes) -> str:
    return data.decode("utf-8").rstrip()


class _Picked:
    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns

    def __call__(self, data: bytes) -> Record:
        value = json.loads(data)
        return {column: _column(value, column) for column in self._columns}


def _column(value: Any, column: str) -> Any:
    """Raises ``ValueError`` that says what there is."""
    if not isinstance(value, dict):
        raise ValueError(f"no column {column!r}; it is a {type(value).__name__}")
    if column not in value:
        raise ValueError(f"no column {column!r}; it has {', '.join(value)}")
    return value[column]


# --- where records begin -----------------------------------------------------------------------


def _whole(scan: Scan) -> Ids:
    return np.array([0, sum(len(chunk) for chunk in scan)], dtype=np.int64)


def _offsets(chunks: Any, *, paragraphs: bool) -> Ids:
    """Where each line that is not blank begins (of a paragraph: the first), and the end of the bytes."""
    found, end, after_blank = [], 0, True
    for begin, data in _lines(chunks):
        starts = np.concatenate(([0], np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1))
        starts = starts[starts < len(data)]
        blank = _blank(data, starts)
        wanted = ~blank
        if paragraphs:
            wanted &= np.concatenate(([after_blank], blank[:-1]))
            after_blank = bool(blank[-1])
        found.append(starts[wanted] + begin)
        end = begin + len(data)
    return np.concatenate((*found, [end])).astype(np.int64)


def _lines(chunks: Any) -> Iterator[tuple[int, bytes]]:
    """Whole lines at a time, with the position of the first; the last may want its newline."""
    begin, pending = 0, list[bytes]()
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            pending.append(chunk)
            continue
        data = b"".join((*pending, chunk[:cut]))
        yield begin, data
        begin, pending = begin + len(data), [chunk[cut:]]
    rest = b"".join(pending)
    if rest:
        yield begin, rest


def _blank(data: bytes, starts: Ids) -> Any:
    """Which lines hold nothing but white space. Only those that begin with some are looked at whole."""
    blank = np.isin(np.frombuffer(data, np.uint8)[starts], np.frombuffer(b" \t\r\n\v\f", np.uint8))
    for i in np.flatnonzero(blank):
        end = int(starts[i + 1]) if i + 1 < len(starts) else len(data)
        blank[i] = not data[int(starts[i]) : end].strip()
    return blank


class _Facts:
    """Lengths and keys of JSON lines, taken while they pass; nothing is decoded unless they are wanted."""

    def __init__(self, name: str, tokens: str | None, key: str | None) -> None:
        self._name, self._tokens, self._key = name, tokens, key
        self._lengths: list[int] = []
        self._keys: list[str] = []

    def watch(self, chunks: Any) -> Iterator[bytes]:
        if not (self._tokens or self._key):
            yield from chunks
            return
        for _, data in _lines(chunks):
            for line in data.split(b"\n"):
                if line.strip():
                    self._note(line)
            yield data

    def told(self, records: int) -> tuple[Ids | None, tuple[str, ...] | None]:
        lengths = np.array(self._lengths, dtype=np.int64) if self._tokens else None
        keys = tuple(self._keys) if self._key else None
        if self._key and len(set(self._keys)) != records:
            raise duplicate(self._name, self._keys)
        return lengths, keys

    def _note(self, line: bytes) -> None:
        ordinal = max(len(self._lengths), len(self._keys))
        try:
            value = json.loads(line)
            if self._tokens:
                self._lengths.append(tokens_in(_column(value, self._tokens)))
            if self._key:
                self._keys.append(str(_column(value, self._key)))
        except DECODE_ERRORS as error:
            raise RecordError(self._name, ordinal, f"{type(error).__name__}: {error}") from error


def duplicate(name: str, keys: Sequence[str]) -> FormatError:
    """The error for keys that are not unique: it names the first two records that share one."""
    first: dict[str, int] = {}
    for ordinal, key in enumerate(keys):
        if first.setdefault(key, ordinal) != ordinal:
            return FormatError(name, f"records {first[key]} and {ordinal} have one key, {key!r}")
    raise ValueError("the keys are unique")
