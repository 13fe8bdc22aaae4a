"""L3. A record of an Arrow table: scalars as python values, lists of numbers as numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from durable_core.data.readers.base import DECODE_ERRORS, Ids
from durable_core.data.readers.registry import Format
from durable_core.errors import FormatError, RecordError


class Rows:
    """Records of one record batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._columns = [
            (name, column, _numbers(column.type))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]

    def record(self, row: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        try:
            for name, column, numbers in self._columns:
                value = column[row]
                out[name] = _array(value) if numbers else value.as_py()
        except pa.ArrowException as error:
            raise undecodable(error) from error
        return out


def chosen(name: str, schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
    """The columns to read, in the order asked for. Raises ``FormatError`` for one that is not there."""
    if columns is None:
        return list(schema.names)
    missing = [column for column in columns if column not in schema.names]
    if missing:
        raise FormatError(name, f"no column {missing[0]!r}; it has {', '.join(schema.names)}")
    return list(columns)


def schema_text(schema: pa.Schema) -> str:
    """Columns and types, one after another, whatever the metadata says."""
    return "; ".join(f"{field.name}: {field.type}" for field in schema)


def undecodable(error: pa.ArrowException) -> Exception:
    """The same, as one of ``DECODE_ERRORS``: some of pyarrow's are none. Being out of memory is no fault of
    the data, and stays what it is."""
    return error if isinstance(error, (*DECODE_ERRORS, MemoryError)) else ValueError(str(error))


def lengths_of(name: str, column: pa.Array | pa.ChunkedArray, begin: int = 0) -> Ids:
    """Elements of each list; tokens, when the column holds tokens. ``begin``: the ordinal of the first.

    Raises ``RecordError`` for a null: a record without tokens has an empty list.
    """
    import pyarrow.compute as pc

    lengths = pc.list_value_length(column)
    if lengths.null_count:
        ordinal = begin + pc.index(pc.is_null(lengths), True).as_py()
        raise RecordError(name, ordinal, "null where a list of tokens is due")
    return np.asarray(lengths, dtype=np.int64)


def check_facts(name: str, schema: pa.Schema, how: Format, tokens: str | None, key: str | None) -> list[str]:
    """The columns that ``tokens`` and ``key`` need."""
    wanted = chosen(name, schema, [column for column in (tokens, key) if column is not None])
    if tokens is not None and not _is_list(schema.field(tokens).type):
        raise FormatError(name, f"column {tokens!r} is {schema.field(tokens).type}, no list of tokens")
    return list(dict.fromkeys(wanted))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _numbers(kind: pa.DataType) -> bool:
    return _is_list(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))


def _array(value: pa.Scalar) -> Any:
    """A list of numbers; a null list, or one with nulls in it, stays as python has it."""
    values = value.values
    if values is None or values.null_count:
        return value.as_py()
    return values.to_numpy(zero_copy_only=False).copy()
