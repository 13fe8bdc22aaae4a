"""L3. WebDataset shards: tar files in which consecutive files with one key make a sample.

The key of ``a/b.c.txt`` is ``a/b``, its suffix ``c.txt``. Where the files lie is found in one pass over
the headers (about 25 us a file) and kept; a sample is then read by position. A record is
``{"__key__": key, suffix: bytes, …}``: what the bytes are is for the transform to say.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from durable_core.data.readers.base import (
    DECODE_ERRORS,
    File,
    Held,
    ObjectIndex,
    ObjectReader,
    Ranges,
    Record,
)
from durable_core.data.readers.frames import CHUNK
from durable_core.data.readers.lines import duplicate
from durable_core.data.readers.registry import Columns, Stored
from durable_core.errors import FormatError, UsageError

Tables = dict[str, NDArray[Any]]


def index(stored: Stored, tokens: str | None, key: str | None) -> ObjectIndex:
    if tokens is not None or key not in (None, "__key__"):
        raise UsageError(f"{stored.file.name}: a tar has no column {tokens or key!r}, only __key__")
    tables = _tables(stored.file)
    keys = tuple(_texts(tables["keys"]))
    if len(set(keys)) != len(keys):
        raise duplicate(stored.file.name, keys)
    # Suffixes may be missing in any sample, and so in all of a shard: they are no schema.
    return ObjectIndex(len(keys), None, "key:__key__", "__key__: str; suffix: bytes", keys, tables)


def reader(stored: Stored, index: ObjectIndex, columns: Columns, held: Held) -> ObjectReader:
    return TarReader(stored.file, dict(index.tables) or _tables(stored.file), columns)


class TarReader(ObjectReader):
    """``tables``: ``first`` [records + 1] the first file of each sample; ``begin``, ``size`` and ``suffix``
    [files]; the ``suffixes`` and ``keys`` as texts separated by newlines."""

    def __init__(self, file: File, tables: Tables, columns: Sequence[str] | None) -> None:
        super().__init__(file.name, len(tables["first"]) - 1)
        self._first, self._begin = tables["first"], tables["begin"]
        self._size, self._suffix = tables["size"], tables["suffix"]
        self._suffixes, self._keys = _texts(tables["suffixes"]), _texts(tables["keys"])
        self._columns = None if columns is None else set(columns)
        self._ranges = Ranges(file)

    def _record(self, ordinal: int) -> Record:
        out: dict[str, Any] = {"__key__": self._keys[ordinal]}
        for i in range(int(self._first[ordinal]), int(self._first[ordinal + 1])):
            suffix = self._suffixes[int(self._suffix[i])]
            if self._columns is None or suffix in self._columns:
                out[suffix] = self._ranges.read(int(self._begin[i]), int(self._size[i]))
        if self._columns is not None and (missing := self._columns - out.keys()):
            raise KeyError(f"no file {sorted(missing)[0]!r} in sample {out['__key__']!r}")
        return out

    def close(self) -> None:
        self._ranges.close()


def _tables(file: File) -> Tables:
    first, keys, suffixes = [0], list[str](), dict[str, int]()
    begins, sizes, kinds = list[int](), list[int](), list[int]()
    inside: set[str] = set()
    for key, suffix, begin, size in _files(file):
        if not keys or key != keys[-1]:
            if keys:
                first.append(len(begins))
            keys.append(key)
            inside = set()
        if suffix in inside:
            raise FormatError(file.name, f"record {len(keys) - 1} ({key!r}) has two files {suffix!r}")
        inside.add(suffix)
        begins.append(begin)
        sizes.append(size)
        kinds.append(suffixes.setdefault(suffix, len(suffixes)))
    if keys:
        first.append(len(begins))
    numbers = {"first": first, "begin": begins, "size": sizes, "suffix": kinds}
    tables: Tables = {name: np.array(values, dtype=np.int64) for name, values in numbers.items()}
    return tables | {"suffixes": _bytes(suffixes), "keys": _bytes(keys)}


def _files(file: File) -> Iterator[tuple[str, str, int, int]]:
    """(key, suffix, first byte, bytes) of the regular files, as they lie.

    Raises ``FormatError`` for what is not read as it is: links, devices, files with holes, and an archive
    without its end, behind which nothing may lie.
    """
    nbytes = file.size()
    try:
        with file.open() as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # or they are all remembered
                if member.isdir():
                    continue
                _check_plain(file.name, member, nbytes)
                folder, _, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if not (stem.startswith("__") and stem.endswith("__")):  # WebDataset's own notes
                    yield key, suffix.lower(), member.offset_data, member.size
            # A header that is damaged or cut short also ends the loop.
            _check_end(file.name, stream, archive.offset)
    except (tarfile.TarError, *DECODE_ERRORS) as error:
        raise FormatError(file.name, f"not readable as tar: {error}") from error


def _check_plain(name: str, member: tarfile.TarInfo, nbytes: int) -> None:
    if not member.isreg() or member.issparse():
        links = member.islnk() or member.issym()
        kind = "a file with holes" if member.issparse() else "a link" if links else "no file"
        raise FormatError(
            name,
            f"{member.name!r} is {kind}, so its bytes do not lie here",
            hint="write the shard of plain files (tar --dereference --hard-dereference, without --sparse)",
        )
    if "\n" in member.name:
        raise FormatError(name, f"a file name with a newline: {member.name!r}")
    if not 0 <= member.size <= nbytes - member.offset_data:
        raise FormatError(name, f"truncated in {member.name!r}")


def _check_end(name: str, stream: BinaryIO, offset: int) -> None:
    """From ``offset`` on there is a block of zeros at least, and nothing but zeros."""
    stream.seek(offset)
    head = stream.read(tarfile.BLOCKSIZE)
    if len(head) < tarfile.BLOCKSIZE or any(head):
        raise FormatError(name, f"no end of the archive at byte {offset}: it is damaged there, or cut short")
    while chunk := stream.read(CHUNK):
        if chunk.strip(b"\0"):
            raise FormatError(
                name,
                f"more data behind the end of the archive at byte {offset}",
                hint="archives are put together with tar --concatenate; a damaged one is to be written again",
            )


def _bytes(texts: Any) -> NDArray[np.uint8]:
    return np.frombuffer("".join(f"{text}\n" for text in texts).encode("utf-8", "surrogateescape"), np.uint8)


def _texts(data: NDArray[np.uint8]) -> list[str]:
    return data.tobytes().decode("utf-8", "surrogateescape").split("\n")[:-1]
