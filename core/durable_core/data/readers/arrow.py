"""L3. Arrow IPC through pyarrow: files, and the streams that Hugging Face ``datasets`` writes.

A local object is mapped: nothing is decoded or copied before a record is taken. (A mapped file must not be
truncated while it is read: the operating system answers with SIGBUS. Objects are immutable.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from durable_core.data.readers.base import DECODE_ERRORS, File, Held, ObjectIndex, ObjectReader, Record
from durable_core.data.readers.lines import duplicate
from durable_core.data.readers.registry import Columns, Stored
from durable_core.data.readers.rows import Rows, check_facts, chosen, lengths_of, schema_text
from durable_core.errors import FormatError

_MAGIC = b"ARROW1"


def index(stored: Stored, tokens: str | None, key: str | None) -> ObjectIndex:
    schema, batches = _batches(stored.file, whole=True)
    check_facts(stored.file.name, schema, stored.how, tokens, key)
    records = sum(batch.num_rows for batch in batches)
    lengths = None
    if tokens is not None:
        begins = np.cumsum([0, *(batch.num_rows for batch in batches)]).tolist()
        counted = (
            lengths_of(stored.file.name, batch.column(tokens), begin)
            for batch, begin in zip(batches, begins, strict=False)
        )
        lengths = np.concatenate([np.zeros(0, np.int64), *counted])
    keys = None
    if key is not None:
        keys = tuple(str(value) for batch in batches for value in batch.column(key).to_pylist())
        if len(set(keys)) != records:
            raise duplicate(stored.file.name, keys)
    rule = "ordinal" if key is None else f"key:{key}"
    return ObjectIndex(records, lengths, rule, schema_text(schema), keys)


def reader(stored: Stored, index: ObjectIndex, columns: Columns, held: Held) -> ObjectReader:
    return ArrowReader(stored.file, columns)


class ArrowReader(ObjectReader):
    """Batches of a mapped file cost their metadata; those of a remote or compressed one are held whole."""

    def __init__(self, file: File, columns: Sequence[str] | None) -> None:
        schema, batches = _batches(file)
        names = chosen(file.name, schema, columns)
        self._begins = np.concatenate(([0], np.cumsum([b.num_rows for b in batches], dtype=np.int64)))
        super().__init__(file.name, int(self._begins[-1]))
        self._rows = [Rows(batch.select(names)) for batch in batches]

    def _record(self, ordinal: int) -> Record:
        batch = int(np.searchsorted(self._begins, ordinal, side="right")) - 1
        return self._rows[batch].record(ordinal - int(self._begins[batch]))

    def close(self) -> None:
        self._rows = []


def _batches(file: File, *, whole: bool = False) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """``whole``: every offset is looked at too, as a value read by a wrong one may end the process. It is
    a pass over the object, made when it is indexed: afterwards its digest stands for that."""
    try:
        source: Any = (
            pa.memory_map(file.path) if file.path is not None else pa.PythonFile(file.open(), mode="r")
        )
        head = source.read(len(_MAGIC))
        source.seek(0)
        if head == _MAGIC:
            reader = pa.ipc.open_file(source)
            schema, batches = reader.schema, [reader.get_batch(i) for i in range(reader.num_record_batches)]
        else:
            stream = pa.ipc.open_stream(source)
            schema, batches = stream.schema, list(stream)
        for batch in batches:
            batch.validate(full=whole)
    except (*DECODE_ERRORS, OSError, pa.ArrowException) as error:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise FormatError(file.name, f"not readable as Arrow IPC: {error}") from error
    return schema, batches
