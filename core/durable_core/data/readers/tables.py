"""L3. Tables of offsets kept on a local disk, by the digest of the object they were made from.

They can be made again from the object, so a damaged or a missing one costs a pass over it and nothing else.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load, save

from durable_core.data.files import File
from durable_core.data.readers.base import ObjectIndex
from durable_core.data.readers.registry import index_object
from durable_core.data.scratch import write_whole

VERSION = 1
"""Of what the readers' tables mean; another one is another file."""


def kept_index(directory: Path, digest: str, format: str, file: File, records: int) -> ObjectIndex:
    """The index of an object of one file whose digest is known, from ``directory`` or made and put there."""
    kind = "".join(letter if letter.isalnum() else "-" for letter in format)
    path = directory / f"{digest.partition(':')[2]}.{kind}.v{VERSION}"
    try:
        return ObjectIndex(records, tables=load(path.read_bytes()))
    except (OSError, SafetensorError):
        index = index_object(format, file)
    with suppress(OSError):  # a disk that is full or read-only costs the next process a pass over the object
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, save(dict(index.tables)))
    return index
