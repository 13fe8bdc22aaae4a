"""L3. What a manifest says of a dataset beside its objects. All of it is part of the identity.

Each class is one object of the document: every field is there, explicitly null where nothing was given.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from durable_core.errors import UsageError
from durable_core.format import digests
from durable_core.format.fields import Fields

EXHAUSTION = ("stop", "repeat", "renormalize", "error")
#: ``object-ordinal``: a record is named by its object's digest and its ordinal in it; ``key``: by a column.
ID_RULES = ("object-ordinal", "key")

_ALIAS = re.compile(r"(?:.*[-_.])?(?:latest|newest)(?:\..*)?|current(?:\..*)?", re.IGNORECASE)

D = TypeVar("D")


def check_identity(value: str, what: str) -> str:
    """``value`` if it is ``sha256:<64 hex digits>``; ``UsageError``: a path or a name is a location."""
    if not digests.SHA256.fullmatch(value):
        raise UsageError(
            f"{what} {value!r} is no identity: what lies there can change",
            hint="give sha256:<64 hex digits>; `durable data show` says the id of a dataset",
        )
    return value


def alias_in(name: str) -> str | None:
    """The part of an object's name that says "whatever is newest" (``latest``, ``current.txt``, …)."""
    return next((part for part in name.split("/") if _ALIAS.fullmatch(part)), None)


@dataclass(frozen=True)
class SampleIds:
    """How a record keeps its name when objects are moved or listed otherwise. ``column``: with ``key``,
    whose values are checked to be unique when the manifest is built."""

    rule: str = "object-ordinal"
    column: str | None = None

    def __post_init__(self) -> None:
        if self.rule not in ID_RULES or (self.rule == "key") is not bool(self.column):
            raise UsageError(
                f"sample ids by {self.rule!r} of column {self.column!r}",
                hint="object-ordinal without a column, or key with one",
            )


@dataclass(frozen=True)
class Provenance:
    """PROV-style links: this dataset ``wasDerivedFrom`` those ids, ``wasGeneratedBy`` the activity (a command
    and its version, a commit), which ``wasAssociatedWith`` the agent and ``used`` other things by digest."""

    derived_from: tuple[str, ...] = ()
    activity: str | None = None
    agent: str | None = None
    used: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("derived_from", "used"):
            given = getattr(self, name)
            for each in given:
                check_identity(each, name)
            # A set: the order in which the sources were named says nothing.
            object.__setattr__(self, name, tuple(sorted(set(given))))


@dataclass(frozen=True)
class Tokenizer:
    """``version``: what people call it; ``digest`` of its files, ``vocabulary`` of the vocabulary alone."""

    version: str | None = None
    digest: str | None = None
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        for what in ("digest", "vocabulary"):
            if (value := getattr(self, what)) is not None:
                check_identity(value, f"tokenizer {what}")


@dataclass(frozen=True)
class MixturePolicy:
    """How the dataset is meant to be drawn from in a mixture: weights or a name of them, with or without
    replacement, and what happens when it is exhausted."""

    policy: str | None = None
    replacement: bool | None = None
    exhaustion: str | None = None

    def __post_init__(self) -> None:
        if self.exhaustion not in (None, *EXHAUSTION):
            raise UsageError(f"exhaustion {self.exhaustion!r} is none of {', '.join(EXHAUSTION)}")


@dataclass(frozen=True)
class Access:
    """Who may read it (a policy's name), and what for."""

    policy: str | None = None
    scope: str | None = None


@dataclass(frozen=True)
class Lengths:
    """The sidecar of lengths: uint32 [records] in logical order, tokens of each; ``digest`` is of the numbers
    in little-endian bytes, ``total`` their sum. ``source``: ``format``, ``column <name>`` or ``measure``."""

    digest: str
    total: int
    source: str

    @classmethod
    def of(cls, values: NDArray[np.uint32], source: str) -> Lengths:
        return cls(digests.sha256(values.astype("<u4").tobytes()), int(values.sum(dtype=np.int64)), source)


@dataclass(frozen=True)
class Description:
    """Everything but the objects. Free texts are names, versions or digests of what was applied."""

    dataset_version: str | None = None
    schema: str | None = None
    schema_version: str | None = None
    format: str | None = None
    compression: str | None = None
    split: str | None = None
    filter: str | None = None
    dedup: str | None = None
    transform: str | None = None
    packing: str | None = None
    sample_ids: SampleIds = field(default_factory=SampleIds)
    provenance: Provenance = field(default_factory=Provenance)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    mixture: MixturePolicy = field(default_factory=MixturePolicy)
    access: Access = field(default_factory=Access)
    lengths: Lengths | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise UsageError(f"property {name!r} is not a text with a name")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, every field there."""
        return {**dataclasses.asdict(self), "properties": dict(self.properties)}


def read_description(fields: Fields) -> Description:
    """Raises ``FormatError`` naming the field; ``UsageError`` from a value that has no meaning."""
    return _read(Description, fields, end=False)


def _read(kind: type[D], fields: Fields, *, end: bool = True) -> D:
    """A class of this module from its JSON object, by the types its fields are declared with."""
    values = {each.name: _READ[str(each.type)](fields, each.name) for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if end:
        fields.end()
    return kind(**values)


def _text_or_null(fields: Fields, name: str) -> str | None:
    value = fields.any(name)
    if not isinstance(value, str | None):
        fields.fail(f"field {name!r} is neither a string nor null")
    return value


def _flag_or_null(fields: Fields, name: str) -> bool | None:
    value = fields.any(name)
    if not isinstance(value, bool | None):
        fields.fail(f"field {name!r} is neither true, false nor null")
    return value


def _texts(fields: Fields, name: str) -> tuple[str, ...]:
    value = fields.list(name)
    if not all(isinstance(each, str) for each in value):
        fields.fail(f"field {name!r} is not a list of strings")
    return tuple(value)


def _text_map(fields: Fields, name: str) -> dict[str, str]:
    value = fields.mapping(name)
    if not all(isinstance(each, str) for each in value.values()):
        fields.fail(f"field {name!r} holds what is no string")
    return value


def _lengths_or_null(fields: Fields, name: str) -> Lengths | None:
    value = fields.any(name)
    return None if value is None else _read(Lengths, Fields(value, key=fields.key, where=name))


def _inner(kind: type[D]) -> Callable[[Fields, str], D]:
    return lambda fields, name: _read(kind, fields.inner(name, name))


_READ: Mapping[str, Callable[[Fields, str], Any]] = {
    "str": Fields.text,
    "int": Fields.count,
    "str | None": _text_or_null,
    "bool | None": _flag_or_null,
    "tuple[str, ...]": _texts,
    "Mapping[str, str]": _text_map,
    "Lengths | None": _lengths_or_null,
    "SampleIds": _inner(SampleIds),
    "Provenance": _inner(Provenance),
    "Tokenizer": _inner(Tokenizer),
    "MixturePolicy": _inner(MixturePolicy),
    "Access": _inner(Access),
}
