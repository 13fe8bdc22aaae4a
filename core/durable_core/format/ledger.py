"""L2. The ledger of acknowledged batches: which samples each step consumed, as they came out of the dataset.

A segment holds what one writer consumed since the parent checkpoint, as one safetensors object of
I64 arrays; the index names the segments of a checkpoint. Both outlive the checkpoint itself, so that
an audit can always be done.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_core.errors import FormatError, UsageError
from durable_core.format import canonical, digests, layout, shard
from durable_core.format.fields import Fields, versioned
from durable_core.format.parts import LedgerSegment, check_role_key, read_segment, segment_json

VERSION = 1

Ids = npt.NDArray[np.int64]
_COLUMNS = ("step", "epoch", "batch", "flags", "count")
_OPTIONAL = ("amounts", "epochs", "lengths")  # one value for each id, where a row has them
_I64 = np.dtype("<i8")


class RowFlag(enum.IntFlag):
    """What is special about a batch."""

    NONE = 0
    NO_UPDATE = 1  # consumed, but the optimizer step was skipped (non-finite gradients, say)
    ABANDONED = 2  # no batch: the trainer left the epoch before this one, on purpose
    SKIPPED = 4  # no batch: records of this one that were left out by declaration (bad, or skipped over)
    PADDED = 8  # the batch was filled up with masked samples, by declaration; those are not in ``ids``


@dataclass(slots=True)  # one for each batch, and freezing it would take five times as long
class Row:
    """One batch that a committed step consumed.

    ``step`` is the optimizer step it went into (several batches under accumulation), ``epoch`` and
    ``batch`` its place in the data, ``ids`` (int64, shape [pieces]) the records in order: one for each
    sample, or several where samples are packed.

    Int64 [pieces], not negative, or None: ``amounts``, the tokens of each that were used (None: whole
    records were); ``lengths``, the tokens that all pieces of its record have together; ``epochs``, which
    epoch of its source each was drawn in, or with replacement the ordinal of its draw (None: ``epoch``).
    """

    step: int
    epoch: int
    batch: int
    ids: Ids
    flags: RowFlag = RowFlag.NONE
    amounts: Ids | None = None
    epochs: Ids | None = None
    lengths: Ids | None = None

    @property
    def no_update(self) -> bool:
        return bool(self.flags & RowFlag.NO_UPDATE)

    @property
    def abandoned(self) -> bool:
        return bool(self.flags & RowFlag.ABANDONED)

    @property
    def skipped(self) -> bool:
        return bool(self.flags & RowFlag.SKIPPED)


def encode_segment(rows: Sequence[Row]) -> bytes:
    """One safetensors object of I64 columns (one value a row, ``count`` ids each) and ``ids`` [pieces].

    ``amounts``, ``epochs`` and ``lengths`` [pieces] are there only if a row has any; -1 stands for rows
    that have none.
    """
    arrays: dict[str, npt.NDArray[np.int64]] = {
        "step": _column([row.step for row in rows]),
        "epoch": _column([row.epoch for row in rows]),
        "batch": _column([row.batch for row in rows]),
        "flags": _column([int(row.flags) for row in rows]),
        "count": _column([len(row.ids) for row in rows]),
        "ids": np.concatenate([_ids(row) for row in rows]) if rows else _column([]),
    }
    for name in _OPTIONAL:
        if any(getattr(row, name) is not None for row in rows):
            arrays[name] = np.concatenate([_beside(row, name) for row in rows])
    header, begins = shard.layout([(name, "I64", a.shape, a.nbytes) for name, a in arrays.items()], align=64)
    sizes = [array.nbytes for array in arrays.values()]
    parts = [array.tobytes() for array in arrays.values()]
    return header + b"".join(parts[i] for i in shard.write_order(begins, sizes))


def decode_segment(data: bytes, *, key: str) -> tuple[Row, ...]:
    """The rows of a segment; ``FormatError`` naming ``key`` for anything else."""
    entries = {entry.name: entry for entry in shard.parse_header(data, len(data), key=key)}
    if set(entries) - set(_OPTIONAL) != {*_COLUMNS, "ids"}:
        raise FormatError(key, f"columns {sorted(entries)}")
    arrays: dict[str, Ids] = {}
    for name, entry in entries.items():
        if entry.dtype != "I64" or len(entry.shape) != 1:
            raise FormatError(key, f"column {name!r} is {entry.dtype} of shape {entry.shape}")
        arrays[name] = np.frombuffer(data, _I64, entry.shape[0], entry.begin)
    columns = [arrays[name] for name in _COLUMNS]
    if len({len(column) for column in columns}) != 1 or any((column < 0).any() for column in columns):
        raise FormatError(key, "columns of different lengths, or negative values")
    counts = arrays["count"].tolist()
    if sum(counts) != len(arrays["ids"]):
        raise FormatError(key, f"{len(arrays['ids'])} ids for rows of {sum(counts)}")
    ends = np.cumsum(arrays["count"])[:-1]
    ids = np.split(arrays["ids"], ends) if counts else []
    beside = (_split(name, arrays, ends, len(counts), key) for name in _OPTIONAL)
    plain = (arrays[name].tolist() for name in ("step", "epoch", "batch", "flags"))
    return tuple(
        Row(step, epoch, batch, part, RowFlag(flags), amounts, epochs, lengths)
        for step, epoch, batch, flags, part, amounts, epochs, lengths in zip(
            *plain, ids, *beside, strict=True
        )
    )


def _split(name: str, arrays: Mapping[str, Ids], ends: Ids, rows: int, key: str) -> list[Ids | None]:
    """One array a row; None where it has none, or no ids to have values of."""
    if not rows or name not in arrays:
        return [None] * rows
    if len(arrays[name]) != len(arrays["ids"]):
        raise FormatError(key, f"{len(arrays[name])} {name} for {len(arrays['ids'])} ids")
    found: list[Ids | None] = []
    for part in np.split(arrays[name], ends):
        absent = part == -1
        if (part < -1).any() or (absent.any() and not absent.all()):
            raise FormatError(key, f"negative {name}, or a row with {name} for some of its ids")
        found.append(None if absent.all() else part)
    return found


@dataclass(frozen=True)
class LedgerIndex:
    """The segments of one checkpoint, by role; ``parent`` is the checkpoint they follow on.

    ``cursor``: the plain values of the position committed with it, which tell how batches are counted when
    the manifest is long retired. ``None`` in older ones, and where there is no position.
    """

    generation: int
    c: int
    step: int
    parent: int | None
    segments: Mapping[str, LedgerSegment]
    cursor: Mapping[str, Any] | None = None


def encode_index(index: LedgerIndex) -> bytes:
    """Canonical bytes; their sha256 stands in the commit record."""
    document: dict[str, Any] = {
        "v": VERSION,
        "generation": index.generation,
        "c": index.c,
        "step": index.step,
        "parent": index.parent,
        "segments": {role: segment_json(segment) for role, segment in index.segments.items()},
    }
    if index.cursor is not None:
        document["cursor"] = dict(index.cursor)
    return canonical.dumps(document)


def decode_index(data: bytes, *, key: str) -> LedgerIndex:
    """Raises ``FormatError`` and ``UnknownVersionError`` naming ``key``."""
    fields = versioned(data, key=key, version=VERSION)
    index = LedgerIndex(
        generation=fields.count("generation"),
        c=fields.count("c"),
        step=fields.count("step"),
        parent=fields.count_or_null("parent"),
        segments=_read_segments(fields, key),
        cursor=fields.mapping("cursor") if fields.has("cursor") else None,
    )
    fields.end()
    return index


def index_digest(data: bytes) -> str:
    return digests.sha256(data)


def _read_segments(fields: Fields, key: str) -> dict[str, LedgerSegment]:
    found: dict[str, LedgerSegment] = {}
    for role, value in fields.mapping("segments").items():
        segment = read_segment(value, key=key)
        if segment is None or not layout.is_role(role):
            raise FormatError(key, f"no segment for {role!r}, or no role")
        check_role_key(segment.key, role, "ledger", within=key)
        found[role] = segment
    return found


def _column(values: Sequence[int]) -> Ids:
    try:
        return np.array(values, dtype=_I64)
    except OverflowError as error:
        raise UsageError(f"a ledger value does not fit int64: {error}") from error


def _ids(row: Row) -> Ids:
    return _vector(row, "ids", row.ids)


def _beside(row: Row, name: str) -> Ids:
    given: Ids | None = getattr(row, name)
    if given is None:
        return np.full(len(row.ids), -1, _I64)
    values = _vector(row, name, given)
    if len(values) != len(row.ids) or (values < 0).any():
        raise UsageError(f"batch {row.batch}: {len(values)} {name} for {len(row.ids)} ids, or negative ones")
    return values


def _vector(row: Row, name: str, values: Ids) -> Ids:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and not np.can_cast(array.dtype, _I64)):
        raise UsageError(f"batch {row.batch}: {name} are {array.dtype} {array.shape}", hint="int64 [pieces]")
    return array.astype(_I64)
