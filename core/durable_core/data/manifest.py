"""L3. What a dataset is: its objects by digest. A path is a location, never an identity.

The id of a dataset is the digest of the canonical form of its manifest, so the same bytes have the
same id wherever they lie, in whatever order they were listed, and any changed byte has another.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from durable_core.errors import (
    CorruptError,
    DigestMismatchError,
    FormatError,
    UnknownVersionError,
    UsageError,
)

VERSION = 1
_CHUNK = 1 << 20


@dataclass(frozen=True)
class DataObject:
    """One immutable object of a dataset.

    ``name`` is relative to the dataset's root; ``digest`` is ``sha256:<64 hex>``; ``start`` is the
    logical position of its first record, which is the number of records before it.
    """

    name: str
    digest: str
    nbytes: int
    start: int
    records: int


@dataclass(frozen=True)
class DatasetManifest:
    """The objects of a dataset in logical order, and the properties that make its records what they are.

    ``properties`` (schema, tokenizer, transform, packing, filter, provenance, …) are part of the identity.
    """

    objects: tuple[DataObject, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION

    def __post_init__(self) -> None:
        position, names = 0, set()
        for item in self.objects:
            _check_name(item.name)
            if item.name in names:
                raise FormatError(item.name, "named twice in one manifest")
            if item.start != position or item.records < 0 or item.nbytes < 0:
                raise FormatError(item.name, f"records from {item.start} where {position} was due")
            names.add(item.name)
            position += item.records

    @property
    def dataset_id(self) -> str:
        """``sha256:<hex>`` of the canonical form."""
        return "sha256:" + hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def records(self) -> int:
        """Records in the whole dataset."""
        return sum(item.records for item in self.objects)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole dataset."""
        return sum(item.nbytes for item in self.objects)

    @classmethod
    def build(
        cls,
        paths: Iterable[str | os.PathLike[str]],
        root: str | os.PathLike[str],
        *,
        count: Callable[[bytes], int] = len,
        properties: Mapping[str, str] | None = None,
    ) -> DatasetManifest:
        """Read and digest the files, in order of their names relative to ``root``.

        ``count`` gives the records of an object's bytes (default: each byte is one).
        Raises ``UsageError`` for a path outside ``root`` or one that is only an alias of another
        (a symbolic link such as ``latest``): what it points to can change.
        """
        base = Path(root)
        found: list[DataObject] = []
        position = 0
        for name in sorted(_name(path, base) for path in paths):
            content = (base / name).read_bytes()
            digest, records = "sha256:" + hashlib.sha256(content).hexdigest(), count(content)
            found.append(DataObject(name, digest, len(content), position, records))
            position += records
        return cls(tuple(found), dict(properties or {}))

    def verify(self, root: str | os.PathLike[str], *, sample: int | None = None) -> int:
        """Read the objects under ``root`` again and compare; returns how many were read.

        ``sample`` reads only that many, evenly spread, the first and last among them.
        Raises ``DigestMismatchError`` or ``CorruptError`` naming the object.
        """
        chosen = range(len(self.objects)) if sample is None else _spread(len(self.objects), sample)
        for index in chosen:
            _verify(self.objects[index], Path(root))
        return len(chosen)

    def to_json(self) -> str:
        """Canonical: sorted keys, no spaces, ASCII."""
        value = {
            "version": self.version,
            "properties": dict(self.properties),
            "objects": [vars(item) for item in self.objects],
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> DatasetManifest:
        """Raises ``UnknownVersionError`` or ``FormatError`` for what is no manifest."""
        try:
            value = json.loads(text)
        except ValueError as error:
            raise FormatError("dataset manifest", f"not JSON: {error}") from error
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise UnknownVersionError("dataset manifest", f"not a manifest of version {VERSION}")
        objects, properties = value.get("objects"), value.get("properties")
        if set(value) != {"version", "objects", "properties"} or not isinstance(objects, list):
            raise FormatError("dataset manifest", f"fields {sorted(value)}")
        if not isinstance(properties, dict) or not all(isinstance(item, str) for item in properties.values()):
            raise FormatError("dataset manifest", "properties are not texts")
        return cls(tuple(_object(item) for item in objects), properties)


def _object(value: Any) -> DataObject:
    kinds = {"name": str, "digest": str, "nbytes": int, "start": int, "records": int}
    if not isinstance(value, dict) or {name: type(item) for name, item in value.items()} != kinds:
        raise FormatError("dataset manifest", f"not an object: {value!r}")
    return DataObject(**value)


def _name(path: str | os.PathLike[str], root: Path) -> str:
    full = root / path
    try:
        relative = full.relative_to(root)
    except ValueError as error:
        raise UsageError(f"{path} is outside the dataset's root {root}") from error
    for part in (full, *full.parents[: len(relative.parts) - 1]):
        if part.is_symlink():
            raise UsageError(
                f"{part} is a symbolic link to {part.readlink()}: an alias can change what it means",
                hint="name what it points to",
            )
    name = relative.as_posix()
    _check_name(name)
    return name


def _check_name(name: str) -> None:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or str(pure) != name or name in ("", "."):
        raise FormatError(name, "not a path below the dataset's root")


def _verify(item: DataObject, root: Path) -> None:
    digest, nbytes = hashlib.sha256(), 0
    try:
        with (root / item.name).open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                nbytes += len(chunk)
    except FileNotFoundError as error:
        raise CorruptError(item.name, "the object is missing") from error
    if nbytes != item.nbytes:
        raise DigestMismatchError(item.name, f"{nbytes} bytes where the manifest says {item.nbytes}")
    if "sha256:" + digest.hexdigest() != item.digest:
        raise DigestMismatchError(item.name, f"content is not {item.digest}")


def _spread(total: int, wanted: int) -> list[int]:
    if wanted < 1:
        raise UsageError(f"sample must be at least 1, not {wanted}")
    if wanted >= total:
        return list(range(total))
    return sorted({round(k * (total - 1) / max(wanted - 1, 1)) for k in range(wanted)})
