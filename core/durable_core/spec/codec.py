"""L1. The spec as JSON and back, driven by the field types; strict, since a spec is the run's identity."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union

from durable_core.errors import FormatError, PromiseError, UnknownVersionError, UsageError
from durable_core.spec.model import Pairs, RunSpec
from durable_core.types import Promise

SPEC_VERSION = 1
#: version -> function that rewrites a document of that version as the next one
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def encode(spec: RunSpec) -> dict[str, Any]:
    return {"v": SPEC_VERSION, **_encode_fields(spec)}


def _encode_fields(value: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(type(value))
    return {item.name: _encode(hints[item.name], getattr(value, item.name)) for item in fields(value)}


def _encode(hint: Any, value: Any) -> Any:
    if is_dataclass(value):
        return _encode_fields(value)
    if isinstance(value, Promise):
        return value.value
    if hint == Pairs:
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


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
        spec = _decode_dataclass(RunSpec, body, "spec")
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


def _decode_dataclass(cls: Any, value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise FormatError(path, f"must be an object, not {type(value).__name__}")
    hints = typing.get_type_hints(cls)
    unknown = sorted(set(value) - {item.name for item in fields(cls)})
    if unknown:
        raise FormatError(f"{path}.{unknown[0]}", "no such field in this version")
    # A field that is left out takes its default: a minor addition stays readable without a migration.
    return cls(**{name: _decode(hints[name], item, f"{path}.{name}") for name, item in value.items()})


def _decode(hint: Any, value: Any, path: str) -> Any:
    if hint == Pairs:
        return _decode_pairs(value, path)
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return None if value is None else _decode(options[0], value, path)
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise FormatError(path, "must be an array of strings")
        return tuple(value)
    if is_dataclass(hint):
        return _decode_dataclass(hint, value, path)
    if hint is Promise:
        if value not in [promise.value for promise in Promise]:
            raise FormatError(path, f"{value!r} is no promise")
        return Promise(value)
    if type(value) is hint or (hint is float and type(value) is int):
        return value
    raise FormatError(path, f"must be {hint.__name__}, not {type(value).__name__}")


def _decode_pairs(value: Any, path: str) -> Pairs:
    if not isinstance(value, Mapping):
        raise FormatError(path, f"must be an object, not {type(value).__name__}")
    for name, item in value.items():
        if not (item is None or isinstance(item, (str, int, float, bool))):
            raise FormatError(f"{path}.{name}", "must be a string, a number, a boolean or null")
    return tuple(sorted(value.items(), key=lambda pair: pair[0]))
