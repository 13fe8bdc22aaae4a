"""L3. The manifest itself: objects in logical order, a description, and the digest of both."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from durable_core.data.files import check_name
from durable_core.data.manifest.describe import (
    Description,
    alias_in,
    read_description,
)
from durable_core.errors import DigestMismatchError, FormatError, UnknownVersionError, UsageError
from durable_core.format import canonical, digests
from durable_core.format.fields import UPGRADE, Fields

if TYPE_CHECKING:
    from durable_core.data.manifest.verify import Verified

VERSION = 2
KEY = "dataset manifest"
_LIMIT = 1 << 30
"""Bytes of a document: some five million objects."""


@dataclass(frozen=True)
class DataObject:
    """One immutable object of a dataset.

    ``name`` is relative to the dataset's root; ``digest`` is ``sha256:<64 hex>``; its records are those
    at the logical positions [``start``, ``start + records``).
    """

    name: str
    digest: str
    nbytes: int
    start: int
    records: int

    @property
    def stop(self) -> int:
        return self.start + self.records

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "digest": self.digest,
            "bytes": self.nbytes,
            "records": self.records,
            "range": [self.start, self.stop],
        }


@dataclass(frozen=True)
class DatasetManifest:
    """The objects of a dataset, and what makes its records what they are (``about``).

    Objects may be given in any order: their ranges say where they stand. Raises ``FormatError`` for ranges
    with a gap or an overlap, names that are no paths below a root, are given twice, or are aliases
    (``latest``).
    """

    objects: tuple[DataObject, ...]
    about: Description = field(default_factory=Description)
    version: int = VERSION

    def __post_init__(self) -> None:
        objects = tuple(sorted(self.objects, key=lambda each: (each.start, each.records, each.name)))
        object.__setattr__(self, "objects", objects)
        position, names = 0, set()
        for item in objects:
            check_name(item.name)
            if item.name in names:
                raise FormatError(item.name, "named twice in one manifest")
            if self.version > 1 and (alias := alias_in(item.name)):
                raise FormatError(item.name, f"{alias!r} is an alias: it will mean something else tomorrow")
            if not digests.SHA256.fullmatch(item.digest):
                raise FormatError(item.name, f"{item.digest!r} is no digest")
            if item.start != position or item.records < 0 or item.nbytes < 0:
                raise FormatError(item.name, f"records from {item.start} where {position} was due")
            names.add(item.name)
            position += item.records

    @cached_property
    def dataset_id(self) -> str:
        """``sha256:<hex>`` of the canonical form."""
        return digests.sha256(canonical.dumps(self._document()))

    @property
    def records(self) -> int:
        """Records in the whole dataset."""
        return self.objects[-1].stop if self.objects else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the whole dataset."""
        return sum(item.nbytes for item in self.objects)

    @classmethod
    def build(
        cls,
        paths: Iterable[str | os.PathLike[str]],
        root: str | os.PathLike[str] | None = None,
        *,
        count: Callable[[bytes], int] | None = None,
        **how: Any,
    ) -> DatasetManifest:
        """The manifest of the files and directories ``paths``, relative ones below ``root``.

        ``count`` gives the records of an object's whole content; without it the format does. The rest is as
        for ``manifest.build``, which also says what was found on the way.
        """
        from durable_core.data.manifest.build import build

        return build(paths, root=root, count=count, **how).manifest

    def verify(
        self, root: str | os.PathLike[str], *, sample: int | float | None = None, jobs: int = 1
    ) -> Verified:
        """Read the objects under ``root`` again and compare: see ``manifest.verify``.

        Raises ``DigestMismatchError`` or ``CorruptError`` naming the first object that is not as it was.
        """
        from durable_core.data.manifest.verify import verify

        return verify(self, root, sample=sample, jobs=jobs).require()

    def to_json(self) -> str:
        """The document as it is stored: its id, then every field, indented for people."""
        return json.dumps({"dataset_id": self.dataset_id, **self._document()}, indent=1) + "\n"

    def _document(self) -> dict[str, Any]:
        if self.version == 1:
            return {
                "version": 1,
                "properties": dict(self.about.properties),
                "objects": [vars(item) for item in self.objects],
            }
        return {
            "version": self.version,
            **self.about.to_json(),
            "objects": [item.to_json() for item in self.objects],
        }

    @classmethod
    def from_json(cls, text: str | bytes, *, key: str = KEY) -> DatasetManifest:
        """Raises ``UnknownVersionError`` or ``FormatError`` for what is no manifest, ``DigestMismatchError``
        for one whose ``dataset_id`` is not that of its content. ``key`` names it."""
        data = text.encode() if isinstance(text, str) else text
        fields = Fields(canonical.loads(data, key=key, limit=_LIMIT), key=key)
        version = fields.any("version")
        if version not in (1, VERSION) or type(version) is not int:
            raise UnknownVersionError(key, f"version {version!r}", hint=UPGRADE)
        claimed = fields.digest("dataset_id") if version > 1 or fields.has("dataset_id") else None
        read = _object if version > 1 else _object_1
        objects = tuple(
            read(Fields(item, key=key, where=f"object {at}"))
            for at, item in enumerate(fields.list("objects"))
        )
        try:
            about = read_description(fields) if version > 1 else _description_1(fields)
        except UsageError as error:
            raise FormatError(key, error.message) from error
        fields.end()
        found = cls(objects, about, version)
        if claimed not in (None, found.dataset_id):
            raise DigestMismatchError(
                key, f"says it is {claimed} and is {found.dataset_id}: it was edited", hint="build it again"
            )
        return found


def _object(fields: Fields) -> DataObject:
    name, digest = fields.text("name"), fields.digest("digest")
    nbytes, records, span = fields.count("bytes"), fields.count("records"), fields.lengths("range")
    fields.end()
    if len(span) != 2 or span[1] - span[0] != records:
        fields.fail(f"has {records} records in the range {list(span)}")
    return DataObject(name, digest, nbytes, span[0], records)


def _object_1(fields: Fields) -> DataObject:
    found = DataObject(
        fields.text("name"), fields.digest("digest"), fields.count("nbytes"), fields.count("start"),
        fields.count("records"),
    )  # fmt: skip
    fields.end()
    return found


def _description_1(fields: Fields) -> Description:
    properties: Mapping[str, Any] = fields.mapping("properties")
    if not all(isinstance(value, str) for value in properties.values()):
        fields.fail("has properties that are not texts")
    return Description(properties=properties)
