"""L1. The run spec as people write it: a YAML or JSON file, and how it meets what the script is.

The keys are those of ``RunSpec``; units are in their names. A file says what no script can: who answers for
the run, who takes part, what must be recoverable, what it may use up, who may cancel it. What it says of the
script itself (model, data, batch) must be true of it. ``MANDATORY`` is what a launched run must not leave
open.

The launcher hands the workers a frozen copy (``freeze``) that holds what the file states and nothing else: a
default that was never written down binds nobody.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from durable_core.errors import FormatError, SpecMismatchError, UsageError
from durable_core.spec import codec
from durable_core.spec.canonical import canonical, digest_of, flatten
from durable_core.spec.model import RunSpec
from durable_core.spec.rules import Rule, is_later, rule_of
from durable_core.spec.secrecy import looks_secret

#: A run file is written by a person.
MAX_BYTES = 1 << 20

#: What a file must state before a run is launched with it, and why there is no default (SPEC-03, SPEC-04).
#: One of the names of a row is enough. All else has a default that is a value: it is bound all the same.
MANDATORY: Mapping[tuple[str, ...], str] = {
    ("owner",): "who answers for the run",
    ("provenance.source_revision", "provenance.code_digest"): "which code runs",
    ("provenance.image", "provenance.package_lock"): "which environment it runs in",
    ("membership",): "who takes part, and what may change about it",
    ("recovery.goals",): "how much may be lost to which failure, and for how long",
    ("failure.max_restarts",): "how often it may be started again",
    ("budgets.device_hours", "budgets.wall_seconds", "budgets.cost"): "what it may use up",
    ("cancel_authority",): "who may cancel it",
    ("output.artifacts",): "what comes out of it",
}

#: What either the script or the file has to say before the first generation.
BOUND: Mapping[str, str] = {"model.cls": "what is trained", "data.dataset_id": "on what"}


@dataclass(frozen=True)
class Declared:
    """``spec``: the file with every default filled in; ``document``: only what it states, as JSON."""

    spec: RunSpec
    document: Mapping[str, Any]
    source: str = ""

    def states(self, name: str) -> bool:
        """Whether the file states the field of that dotted name, or something below it."""
        value: Any = self.document
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return False
            value = value[part]
        return value not in (None, [], {}, "")

    def freeze(self) -> Declared:
        """Itself, when it may be launched. ``UsageError`` names every mandatory field that is missing, a
        reference that may come to mean something else, or a source tree that differs from its revision."""
        missing = [
            f"{' or '.join(names)} ({why})"
            for names, why in MANDATORY.items()
            if not any(self.states(name) for name in names)
        ]
        if missing:
            raise UsageError(
                f"{self.source or 'the run file'} leaves open: {'; '.join(missing)}",
                hint="a launched run states all of these",
            )
        self.spec.freeze()
        return self

    def to_json(self) -> dict[str, Any]:
        return {"v": codec.SPEC_VERSION, **self.document}

    def digest(self) -> str:
        """``sha256:<hex>`` of what it states: the same for the file and its frozen copy."""
        return digest_of(self.to_json())


def load(path: str | Path) -> RunSpec:
    """The spec of a run file, with every default filled in; see ``read``."""
    return read(path).spec


def read(path: str | Path) -> Declared:
    """A run file; ``.json`` is JSON, anything else YAML (no tags, aliases or repeated keys).

    ``UsageError`` names the file and the key: one that is not known (with the nearest that is), an illegal
    value, or one that looks like a secret. ``UnknownVersionError`` for a version of a later durable.
    """
    return parse(document(path, hint="--spec names a run file"), source=str(path))


def document(path: str | Path, *, hint: str = "") -> Any:
    """What a file that a person wrote says, by the rules of ``read``, whatever its keys are. ``hint``: what
    to do when it cannot be read."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint=hint) from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} has {len(data)} bytes", hint=f"such a file has at most {MAX_BYTES}")
    return _json(data, path) if path.suffix == ".json" else _yaml(data, path)


def freeze(path: str | Path, into: Path) -> Declared:
    """Read a run file, refuse what may not be launched (``Declared.freeze``), and write the frozen copy that
    the workers are told of (``DURABLE_SPEC``) to ``into``: the file itself may change while they train."""
    declared = read(path).freeze()
    new = into.with_name(into.name + ".new")
    new.write_bytes(canonical(declared.to_json()))
    new.replace(into)
    return declared


def parse(raw: Any, *, source: str = "") -> Declared:
    """As ``read``, for a document already at hand."""
    if not isinstance(raw, Mapping):
        raise UsageError(f"{source}: not a mapping of field names to values")
    for name, text in _texts(raw):
        kind = looks_secret(text)  # the text itself is not shown
        if kind is not None:
            raise UsageError(
                f"{source}: {name} holds what looks like {kind}",
                hint="a spec is read by many: say where the secret is (security.credentials: env:NAME)",
            )
    try:
        spec = codec.decode({"v": codec.SPEC_VERSION, **raw})
    except FormatError as error:
        if error.key == "spec.v":
            raise
        raise UsageError(f"{source}: {error.key}: {error.reason}", hint=error.hint) from error
    stated = {name: value for name, value in raw.items() if name != "v"}
    document = _normal(stated, codec.encode(spec))
    return Declared(spec, document, source)


def merge(declared: Declared, derived: RunSpec, *, said: Collection[str] = ()) -> RunSpec:
    """The spec of a run that was launched with a file and whose script turned out to be ``derived``.

    Policy is the file's. What the file states of the script must be so, unless the script says nothing about
    it: a script that describes no model says nothing that it left at the default. ``said``: fields that it
    did say although they have the default. ``SpecMismatchError`` lists the fields that disagree,
    ``UsageError`` what neither of the two says (``BOUND``).
    """
    script = derived.to_json()
    differing = tuple(sorted(_disagreements(declared, derived, script, said)))
    if differing:
        stated, is_so = flatten(dict(declared.document)), flatten(script)
        listed = "; ".join(
            f"{name}: {stated.get(name, '...')!r}, but it is {is_so.get(name, len(derived.roles))!r}"
            for name in differing
        )
        raise SpecMismatchError(
            f"{declared.source or 'the run file'} states what is not so of this script: {listed}",
            fields=differing,
            hint="mend the file, or launch the script that it describes",
        )
    merged = codec.decode(_overlaid(script, declared.document))
    document = merged.to_json()
    unbound = [f"{name} ({why})" for name, why in BOUND.items() if not flatten(document).get(name)]
    if unbound:
        raise UsageError(
            f"neither the script nor {declared.source or 'the run file'} says: {', '.join(unbound)}",
            hint="state it in the run file",
        )
    return merged


def _disagreements(
    declared: Declared, derived: RunSpec, script: Mapping[str, Any], said: Collection[str]
) -> Iterator[str]:
    described = bool(derived.model.cls)
    unsaid = flatten(RunSpec(roles=derived.roles).to_json())
    is_so = flatten(dict(script))
    for name, value in flatten(dict(declared.document)).items():
        if rule_of(name) is Rule.FREE or name == "cancel_authority" or is_later(name):
            continue
        if name not in is_so:  # of a section that the script knows nothing of, such as its data
            continue
        left = not described or name == "promise"
        silent = left and name not in said and is_so[name] == unsaid.get(name)
        if not silent and is_so[name] != value:
            yield name
    membership = declared.spec.membership
    if membership is not None and not membership.admits(len(derived.roles)):
        yield "membership.fixed" if membership.fixed is not None else "membership.elastic"


def _overlaid(base: Any, stated: Any) -> Any:
    if not isinstance(base, Mapping) or not isinstance(stated, Mapping):
        return stated
    return {**base, **{name: _overlaid(base.get(name), value) for name, value in stated.items()}}


def _normal(raw: Any, encoded: Any) -> Any:
    """What ``raw`` states, with the values as the codec writes them (``60`` seconds are ``60.0``)."""
    if not isinstance(raw, Mapping) or not isinstance(encoded, Mapping):
        return encoded if encoded is not None else raw
    return {name: _normal(value, encoded[name]) if name in encoded else value for name, value in raw.items()}


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, name)
    elif isinstance(value, str):
        yield name, value


# --- the two ways to write it -----------------------------------------------------------------


def _json(data: bytes, path: Path) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise UsageError(f"{path}: the key {repeated!r} is there twice")
        return dict(pairs)

    try:
        return json.loads(data, object_pairs_hook=unique)
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deeply") from error


def _yaml(data: bytes, path: Path) -> Any:
    try:
        for event in yaml.parse(data, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise UsageError(f"{path}: an alias{_place(event.start_mark)}: write out what it stands for")
        _check_keys(yaml.compose(data, Loader=yaml.SafeLoader), path)
        return yaml.safe_load(data)
    except yaml.MarkedYAMLError as error:  # without the text around it, which may be anything
        raise UsageError(f"{path}: {error.problem}{_place(error.problem_mark)}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {type(error).__name__}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deeply") from error


def _place(mark: Any) -> str:
    return "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"


def _check_keys(node: Any, path: Path) -> None:
    """YAML lets a later key of the same name win, silently."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, path)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            raise UsageError(f"{path}: a key must be a name{_place(key.start_mark)}")
        if key.value in seen:
            raise UsageError(f"{path}: the key {key.value!r} is there twice{_place(key.start_mark)}")
        seen.add(key.value)
        _check_keys(value, path)
