"""L3. Parquet through pyarrow. A row group is decoded once and kept for the reads of it.

One record at random costs its row group (0.6 ms for 100 rows of 2 KiB, 4 ms for 1000), so orders of
windows (``block_prp_v1``) suit this format: every group is then decoded about once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from durable_core.data.readers.base import DECODE_ERRORS, File, Held, ObjectIndex, ObjectReader, Record
from durable_core.data.readers.lines import duplicate
from durable_core.data.readers.registry import Columns, Stored
from durable_core.data.readers.rows import Rows, check_facts, chosen, lengths_of, schema_text, undecodable
from durable_core.errors import FormatError, RecordError


def index(stored: Stored, tokens: str | None, key: str | None) -> ObjectIndex:
    parquet = _open(stored.file)
    try:
        schema = parquet.schema_arrow
        wanted = check_facts(stored.file.name, schema, stored.how, tokens, key)
        lengths, keys = None, None
        if wanted:
            table = parquet.read(columns=wanted)
            lengths = None if tokens is None else lengths_of(stored.file.name, table[tokens])
            keys = None if key is None else tuple(str(value) for value in table[key].to_pylist())
    except (*DECODE_ERRORS, OSError, pa.ArrowException) as error:
        raise _broken(stored.file.name, error) from error
    finally:
        parquet.close()
    records = parquet.metadata.num_rows
    if keys is not None and len(set(keys)) != records:
        raise duplicate(stored.file.name, keys)
    rule = "ordinal" if key is None else f"key:{key}"
    return ObjectIndex(records, lengths, rule, schema_text(schema), keys)


def reader(stored: Stored, index: ObjectIndex, columns: Columns, held: Held) -> ObjectReader:
    return ParquetReader(stored.file, columns, held)


class ParquetReader(ObjectReader):
    def __init__(self, file: File, columns: Sequence[str] | None, held: Held) -> None:
        self._parquet, self._held, self._lock = _open(file), held, threading.Lock()
        meta = self._parquet.metadata
        super().__init__(file.name, meta.num_rows)
        sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        self._begins = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        self._columns = chosen(file.name, self._parquet.schema_arrow, columns)

    def _read(self, ordinals: Sequence[int]) -> list[Record]:
        """Group by group, so that each is decoded once however the ordinals are mixed."""
        groups = np.searchsorted(self._begins, ordinals, side="right") - 1
        out: list[Record] = [None] * len(ordinals)
        for place in np.argsort(groups, kind="stable"):
            group, ordinal = int(groups[place]), ordinals[place]
            out[place] = self._decoded(ordinal, lambda i, g=group: self._row(g, i))  # type: ignore[misc]
        return out

    def _record(self, ordinal: int) -> Record:
        return self._read([ordinal])[0]

    def _row(self, group: int, ordinal: int) -> Record:
        rows = self._held.get((self, group), lambda: self._group(group))
        return rows.record(ordinal - int(self._begins[group]))

    def _group(self, group: int) -> tuple[Rows, int]:
        try:
            with self._lock:  # pyarrow's file has one position
                table = self._parquet.read_row_group(group, columns=self._columns, use_threads=False)
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError(f"row group {group}: {error}") from error  # how pyarrow says "not decodable"
        except pa.ArrowException as error:
            raise undecodable(error) from error
        batch = table.select(self._columns).combine_chunks().to_batches(max_chunksize=None)
        return Rows(batch[0]), table.nbytes

    def close(self) -> None:
        self._held.forget(self)
        self._parquet.close()


def _open(file: File) -> pq.ParquetFile:
    source: Any = pa.PythonFile(file.open(), mode="r") if file.path is None else file.path
    try:
        return pq.ParquetFile(source, pre_buffer=file.path is None)
    except (*DECODE_ERRORS, OSError, pa.ArrowException) as error:
        raise _broken(file.name, error) from error


def _broken(name: str, error: BaseException) -> BaseException:
    """pyarrow says OSError, without a number, for what it cannot decode; with one it is an I/O error."""
    if isinstance(error, (FormatError, RecordError, MemoryError)) or (
        isinstance(error, OSError) and error.errno is not None
    ):
        return error
    return FormatError(name, f"not readable as Parquet: {error}")
