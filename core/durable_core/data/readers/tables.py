"""L3. Tables of offsets kept on a local disk, by the digest of the object they were made from.

They can be made again from the object, so a damaged or a missing one costs a pass over it and nothing else.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from safetensors.numpy import load, save

from durable_core.data.files import File
from durable_core.data.readers.base import ObjectIndex
from durable_core.data.readers.registry import index_object
from durable_core.data.scratch import write_whole

VERSION = 2
"""Of what the readers' tables mean, and how they are kept; another one is another file."""


def kept_index(
    directory: Path, digest: str, format: str, file: File, records: int, *, verified: bool
) -> ObjectIndex:
    """The index of an object of one file whose digest is known, from ``directory`` or made and put there.

    ``verified``: that the object is what its digest says is known. If not, the table of one that is
    something else is made for this time, and not kept: by that digest others would take it for theirs.
    """
    kind = "".join(letter if letter.isalnum() else "-" for letter in format)
    path = directory / f"{digest.partition(':')[2]}.{kind}.v{VERSION}"
    kept = _read(path)
    if kept is not None:
        return ObjectIndex(records, tables=load(kept))
    index = index_object(format, file)
    if not verified and digest_of(file) != digest:
        return index
    tables = save(dict(index.tables))
    with suppress(OSError):  # a disk that is full or read-only costs the next process a pass over the object
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, hashlib.sha256(tables).digest() + tables)
    return index


def _read(path: Path) -> bytes | None:
    """The tables at ``path`` as they were written; None where there are none, or others."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    tables = data[size:]
    return tables if hashlib.sha256(tables).digest() == data[:size] else None


def digest_of(file: File) -> str:
    """``sha256:<hex>`` of an object: a pass over it."""
    digest = hashlib.sha256()
    for chunk in file.chunks():
        digest.update(chunk)
    return "sha256:" + digest.hexdigest()
