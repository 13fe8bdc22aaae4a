"""L1. The spec as JSON and back, driven by the field types; strict, since a spec is the run's identity."""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, Union

from durable_core.errors import FormatError, PromiseError, UnknownVersionError, UsageError
from durable_core.spec.model import RunSpec
from durable_core.spec.sections import Pairs
from durable_core.types import Promise

SPEC_VERSION = 1
#: version -> function that rewrites a document of that version as the next one
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def encode(spec: RunSpec) -> dict[str, Any]:
    return {"v": SPEC_VERSION, **_encode_fields(spec)}


def _encode_fields(value: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(type(value))
    given = ((item, getattr(value, item.name)) for item in fields(value))
    return {item.name: _encode(hints[item.name], it) for item, it in given if not _left_out(item, it)}


def _left_out(item: Field[Any], value: Any) -> bool:
    """A later field that was not given: the documents from before it must keep their digests."""
    return bool(item.metadata.get("later")) and value == _default(item)


def _default(item: Field[Any]) -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def _encode(hint: Any, value: Any) -> Any:
    if is_dataclass(value):
        return _encode_fields(value)
    if isinstance(value, Promise):
        return value.value
    if hint == Pairs:
        return dict(value)
    if isinstance(value, tuple):
        return [_encode_fields(each) if is_dataclass(each) else each for each in value]
    return value


def later_fields(cls: Any = RunSpec, prefix: str = "") -> frozenset[str]:
    """Dotted names of the fields that a document without them leaves *not said*, rather than at a default."""
    found: set[str] = set()
    hints = typing.get_type_hints(cls)
    for item in fields(cls):
        options = [hints[item.name], *typing.get_args(hints[item.name])]
        if item.metadata.get("later"):
            found.add(f"{prefix}{item.name}")
        for option in filter(is_dataclass, options):
            found |= later_fields(option, f"{prefix}{item.name}.")
    return frozenset(found)


def decode(document: Mapping[str, Any] | str | bytes) -> RunSpec:
    """See ``RunSpec.from_json``."""
    if isinstance(document, (str, bytes)):
        try:
            document = json.loads(document)
        except ValueError as error:
            raise FormatError("spec", f"not JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise FormatError("spec", "not a JSON object")
    body = _migrated(dict(document))
    del body["v"]
    try:
        spec = decode_dataclass(RunSpec, body, "spec")
    except (UsageError, PromiseError) as error:  # valid JSON, illegal values: the document is at fault
        raise FormatError("spec", error.message, hint=error.hint) from error
    assert isinstance(spec, RunSpec)
    return spec


def _migrated(body: dict[str, Any]) -> dict[str, Any]:
    while body.get("v") != SPEC_VERSION:
        version = body.get("v")
        step = MIGRATIONS.get(version) if type(version) is int else None
        if step is None:
            raise UnknownVersionError(
                "spec.v",
                f"version {version!r} is not known; this code reads up to {SPEC_VERSION}",
                hint="use the version of durable that wrote it",
            )
        body = step(body)
    return body


def decode_dataclass(cls: Any, value: Any, path: str, *, without: Collection[str] = ()) -> Any:
    """``value``, a JSON object, as the frozen dataclass ``cls``, whose fields may be such classes themselves.

    ``path``: where it stands, for the ``FormatError`` that names the field at fault, and for one that is not
    known the nearest that is. ``without``: fields that cannot be written as JSON. An illegal value raises
    what ``cls`` raises.
    """
    if not isinstance(value, Mapping):
        raise FormatError(path, f"must be an object, not {type(value).__name__}")
    hints = typing.get_type_hints(cls)
    known = [item.name for item in fields(cls) if item.name not in without]
    unknown = sorted(str(name) for name in set(value) - set(known))
    if unknown:
        nearest = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else "known: " + ", ".join(known)
        raise FormatError(_below(path, unknown[0]), "no such field in this version", hint=hint)
    missing = [item.name for item in fields(cls) if item.name not in value and _default(item) is MISSING]
    if missing:
        raise FormatError(_below(path, missing[0]), "is missing")
    # A field that is left out takes its default: a minor addition stays readable without a migration.
    return cls(**{name: _decode(hints[name], item, _below(path, name)) for name, item in value.items()})


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _decode(hint: Any, value: Any, path: str) -> Any:
    if hint == Pairs:
        return _decode_pairs(value, path)
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _decode_union(typing.get_args(hint), value, path)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise FormatError(path, f"must be one of {_listed(typing.get_args(hint))}, not {value!r}")
        return value
    if origin in (tuple, frozenset):
        return origin(_decode_array(typing.get_args(hint)[0], value, path))
    if is_dataclass(hint):
        return decode_dataclass(hint, value, path)
    if hint is Promise:
        if value not in [promise.value for promise in Promise]:
            raise FormatError(path, f"{value!r} is no promise")
        return Promise(value)
    if type(value) is hint or (hint is float and type(value) is int):
        return value
    raise FormatError(path, f"must be {hint.__name__}, not {type(value).__name__}")


def _decode_union(options: tuple[Any, ...], value: Any, path: str) -> Any:
    """As the one option there is besides ``None``, or the one whose type the value has."""
    options = tuple(option for option in options if option is not type(None))
    if len(options) == 1:
        return _decode(options[0], value, path)
    if type(value) not in options:
        known = [option.__name__ for option in options if typing.get_origin(option) is None]
        raise FormatError(path, f"must be {' or '.join(known)}, not {type(value).__name__}")
    return value


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, values))


def _decode_array(hint: Any, value: Any, path: str) -> tuple[Any, ...]:
    if is_dataclass(hint):
        if not isinstance(value, (list, tuple)):
            raise FormatError(path, "must be an array of objects")
        return tuple(decode_dataclass(hint, item, f"{path}.{n}") for n, item in enumerate(value))
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise FormatError(path, "must be an array of strings")
    return tuple(value)


def _decode_pairs(value: Any, path: str) -> Pairs:
    if not isinstance(value, Mapping):
        raise FormatError(path, f"must be an object, not {type(value).__name__}")
    for name, item in value.items():
        if not (item is None or isinstance(item, (str, int, float, bool))):
            raise FormatError(f"{path}.{name}", "must be a string, a number, a boolean or null")
    return tuple(sorted(value.items(), key=lambda pair: pair[0]))
