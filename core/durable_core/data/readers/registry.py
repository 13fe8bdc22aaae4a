"""L3. Which format is read by which module. A module, and the library behind it, is imported at first use.

A format is a text: ``<kind>[+<compression>][:<argument>…]``.

==========================  ============================================  ====================  =============
format                      an object is                                  a record is           a seek costs
==========================  ============================================  ====================  =============
``parquet``                 a Parquet file                                dict column -> value  a row group
``arrow``                   Arrow IPC, file or stream (HF ``datasets``)   dict column -> value  O(1), mapped
``jsonl[+gzip|zstd]``       a JSON value a line; a blank line is none     the JSON value        O(1); a frame
``text[+gzip|zstd]``        a UTF-8 text file                             str                   the file
``text[+gzip|zstd]:lines``  one; or ``:paragraphs``; blank ones are none  str                   O(1); a frame
``blob[+gzip|zstd]``        a file                                        bytes                 the file
``npy[:<block>]``           an array: its rows, or ``block`` elements     array                 O(1)
``bin:<dtype>:<block>``     raw numbers, little-endian                    array                 O(1)
``safetensors[:<block>]``   tensors of one length: a row of each          dict tensor -> array  O(1)
``megatron``                ``.idx`` beside its ``.bin``: a sequence      array                 O(1)
``tar``                     a WebDataset shard: files with one key        dict suffix -> bytes  O(1)
``mds[+zstd]``              a mosaicml-streaming shard                    dict column -> value  O(1); a frame
==========================  ============================================  ====================  =============

A column that holds lists of numbers gives numpy arrays, which may be written to. *Frame*: a gzip member or
zstd frame is decompressed whole and kept for the reads of it; most writers make one of a whole file, others
(``bgzip``, ``pzstd``, ``zstd -B``) many. A row group is decoded whole and kept likewise: read it in windows
(``block_prp_v1``), not one record here and there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Protocol

from durable_core.data.readers.base import File, Held, ObjectIndex, ObjectReader
from durable_core.errors import FormatError, UnsupportedError, UsageError

COMPRESSIONS = ("gzip", "zstd")
EXAMPLES = {
    "npy": "npy:128",
    "bin": "bin:uint16:2048",
    "safetensors": "safetensors:2048",
    "text": "text:lines",
}
"""Of arguments, where a format takes any."""
_ENDINGS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".npy": "npy",
    ".safetensors": "safetensors",
    ".idx": "megatron",
    ".tar": "tar",
    ".mds": "mds",
}


@dataclass(frozen=True)
class Format:
    """A format's text, taken apart."""

    kind: str
    compression: str = ""
    arguments: tuple[str, ...] = ()

    def number(self, position: int) -> int | None:
        """Argument ``position`` as a count of elements; None when it is not given."""
        if len(self.arguments) <= position:
            return None
        text = self.arguments[position]
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(
                f"{self.kind}: {text!r} is no number of elements", hint=f"as in {EXAMPLES[self.kind]}"
            )
        return int(text)


class Stored(NamedTuple):
    """An object and how to read it; ``companion``: see ``companion_of``."""

    file: File
    how: Format
    companion: File | None


Columns = Sequence[str] | None
"""Only these of each record; None: all."""


class Module(Protocol):
    """What a module of this package provides for a kind."""

    def index(self, stored: Stored, tokens: str | None, key: str | None) -> ObjectIndex: ...

    def reader(self, stored: Stored, index: ObjectIndex, columns: Columns, held: Held) -> ObjectReader: ...


#: kind -> (module, the compressions it reads, the most arguments it takes)
KINDS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "parquet": ("parquet", (), 0),
    "arrow": ("arrow", (), 0),
    "jsonl": ("lines", COMPRESSIONS, 0),
    "text": ("lines", COMPRESSIONS, 1),
    "blob": ("lines", COMPRESSIONS, 0),
    "npy": ("tokens", (), 1),
    "bin": ("tokens", (), 2),
    "safetensors": ("tokens", (), 1),
    "megatron": ("megatron", (), 0),
    "tar": ("tar", (), 0),
    "mds": ("mds", ("zstd",), 0),
}


def detect(name: str) -> str | None:
    """The format that an object's name stands for; None when a name does not tell (raw ``.bin``).

    Compressed forms that are not read are detected too, so that opening them says why.
    """
    stem, compression = name.lower(), ""
    for ending, found in _ENDINGS.items():
        if stem.endswith(ending):
            stem, compression = stem[: -len(ending)], "+" + found
    kind = next((kind for suffix, kind in _SUFFIXES.items() if stem.endswith(suffix)), None)
    return None if kind is None else kind + compression


def format_of(names: Iterable[str]) -> str:
    """The one format that all names stand for. Raises ``UsageError``, or what ``parse`` does."""
    kinds = {detect(name) for name in names}
    found = kinds.pop() if len(kinds) == 1 else None
    if found is None:
        raise UsageError(
            "neither the manifest nor the names of its objects tell one format", hint="pass format="
        )
    parse(found)
    return found


def companion_of(format: str, name: str) -> str | None:
    """The name of the second file that an object of this format needs: ``x.bin`` beside ``x.idx``."""
    if parse(format).kind != "megatron":
        return None
    if not name.endswith(".idx"):
        raise FormatError(name, "a Megatron dataset is named by its .idx file")
    return name[: -len(".idx")] + ".bin"


def parse(format: str) -> Format:
    """Raises ``UsageError`` for a format that is none, ``UnsupportedError`` for one that is not read."""
    head, *arguments = format.split(":")
    kind, _, compression = head.partition("+")
    if kind not in KINDS:
        raise UsageError(f"no format {format!r}", hint="one of " + ", ".join(KINDS))
    _, compressions, most = KINDS[kind]
    if compression and compression not in compressions:
        raise UnsupportedError(
            f"{kind} under {compression} has no random access and is not read", hint="store it uncompressed"
        )
    if len(arguments) > most:
        shown = f"as in {EXAMPLES[kind]}" if kind in EXAMPLES else ""
        raise UsageError(f"{format!r}: {kind} takes at most {most} arguments", hint=shown)
    return Format(kind, compression, tuple(arguments))


def module_of(kind: str) -> Module:
    name = f"{__package__}.{KINDS[kind][0]}"
    try:
        module: Module = import_module(name)  # each provides the two functions
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{kind} is read with {error.name}, which is not installed",
            hint="pip install 'durable-training[data]'",
        ) from error
    return module


def index_object(
    format: str,
    file: File,
    name: str | None = None,
    *,
    companion: File | None = None,
    tokens: str | None = None,
    key: str | None = None,
) -> ObjectIndex:
    """Count and describe the records of an object; reads the whole of it where the format has no index.

    ``name`` only says what errors call it (default: the file's own). ``companion``: see
    ``companion_of``. ``tokens``: the column whose length is a record's number of tokens. ``key``: the
    column that is the record's own id; a value given twice is a ``FormatError`` naming both records.

    Raises ``FormatError`` or ``RecordError`` naming the object and the record.
    """
    how = parse(format)
    if name is not None and name != file.name:
        file = copy.copy(file)
        file.name = name
    return module_of(how.kind).index(Stored(file, how, companion), tokens, key)


def open_object(
    format: str,
    file: File,
    index: ObjectIndex | None = None,
    columns: Sequence[str] | None = None,
    *,
    companion: File | None = None,
    held: Held | None = None,
) -> ObjectReader:
    """The records of an object by ordinal. ``columns``: only these; a missing one is a ``FormatError``.

    ``index``: from ``index_object``; without it, it is made first. ``held``: where decoded row groups and
    frames are kept (default: this reader's own). Close the reader in the process that opened it.
    """
    stored = Stored(file, parse(format), companion)
    module = module_of(stored.how.kind)
    if index is None:
        index = module.index(stored, None, None)
    chosen = None if columns is None else tuple(columns)
    opened = module.reader(stored, index, chosen, Held() if held is None else held)
    if len(opened) != index.records:
        opened.close()
        raise FormatError(file.name, f"{len(opened)} records where its index says {index.records}")
    return opened


def check_unique(keys: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Raises ``FormatError`` for a key that two records of a dataset share. ``keys``: (object, its keys)."""
    seen: dict[str, tuple[str, int]] = {}
    for name, values in keys:
        for ordinal, value in enumerate(values):
            first = seen.setdefault(value, (name, ordinal))
            if first != (name, ordinal):
                raise FormatError(
                    name,
                    f"record {ordinal} has the key {value!r} of {first[0]} record {first[1]}",
                    hint="a key names one record; without one, records are named by object and ordinal",
                )
