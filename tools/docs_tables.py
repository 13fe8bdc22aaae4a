"""What the pages of ``docs/`` take from the code: a line ``{{ name argument }}`` of a page becomes a table.

A hook of MkDocs. A table made from the code cannot contradict it; what no code knows, what to do about
a failure say, is written in the pages, and ``tests/docs`` asks that nothing is missing there.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mkdocs.exceptions import PluginError

_MARKER = re.compile(r"^\{\{ *([a-z-]+)(?: +([^}]*?))? *\}\}$", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """MkDocs calls this for every page, before Markdown is read."""

    def made(found: re.Match[str]) -> str:
        name, argument = found[1], found[2] or ""
        if name not in _TABLES:
            raise PluginError(f"{page.file.src_uri}: no table {name!r}; there are {', '.join(_TABLES)}")
        return _TABLES[name](argument)

    return _MARKER.sub(made, markdown)


def rows(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table of Markdown."""
    ruled = [columns, ["---"] * len(columns), *lines]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in ruled)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", r"\|")


def _code(value: object) -> str:
    return f"`{value}`"


# --- failures --------------------------------------------------------------------------------


_LEFT_OUT = {"": "nothing", "data": "the data object", "storage": "the storage path"}
_FROM = {
    "": "-", "memory": "memory", "peer": "a peer's memory", "remote": "the root",
    "snapshot": "the drain's snapshot", "older": "an older checkpoint", "known-good": "a known-good one",
}  # fmt: skip


def failures(_: str) -> str:
    """All classes; the first cell leads to the entry of each."""
    from durable_core.launch.classes import TABLE

    columns = ("class", "what", "next attempt", "charged", "goes on from, at best", "when it is given up")
    lines = []
    for failure, row in TABLE.items():
        link = f"[{failure.value}](#{failure.value.lower()})"
        source = _FROM[row.restore.value]
        lines.append((link, row.title, _retry(failure), _charged(row), source, _given_up(failure)))
    return rows(columns, lines)


def failure(name: str) -> str:
    """The facts of one class, under its heading."""
    from durable_core.launch.classes import TABLE, F

    row = TABLE[F(name)]
    facts = {
        "Next attempt": _retry(F(name)),
        "charged": _charged(row),
        "goes on from": _FROM[row.restore.value],
        "left out afterwards": _LEFT_OUT.get(row.quarantine.value, f"the {row.quarantine.value}"),
        "when it is given up": _given_up(F(name)),
    }
    return "*" + "; ".join(f"{what}: {is_so}" for what, is_so in facts.items() if is_so != "-") + ".*"


def _retry(failure: Any) -> str:
    from durable_core.launch.classes import IN_FLIGHT, TABLE, Retry

    words = {
        Retry.IN_PLACE: "on the same nodes", Retry.REPLACE: "without the node, if the group can",
        Retry.REQUEUE: "after asking for nodes again", Retry.NONE: "none",
    }  # fmt: skip
    return "none needed: the group trains on" if failure in IN_FLIGHT else words[TABLE[failure].retry]


def _charged(row: Any) -> str:
    own = "" if not row.budget else f", at most {row.budget} without progress"
    return ("yes" if row.charged else "no") + own


def _given_up(failure: Any) -> str:
    from durable_core.launch.classes import IN_FLIGHT, TABLE, F

    if failure in IN_FLIGHT:
        return "-"
    run = "the run has failed" if TABLE[failure].terminal else "the run may go on"
    run = "the run has ended" if failure is F.F19 else run
    return f"{run}; exit code {TABLE[failure].exit_code}"


# --- operations ------------------------------------------------------------------------------


def checklist(_: str) -> str:
    from durable_core.cli.doctor import CHECKS

    return rows(("", "line"), ((number, what) for number, (what, _) in enumerate(CHECKS, 1)))


def detectors(_: str) -> str:
    """What each covers is shown for periods that the page names."""
    from durable_core.detect.policy import Integrity, coverage

    on = {row.detector for row in coverage(Integrity()) if row.on}
    shown = coverage(Integrity(replicas_every=100, recompute_every=1000), replicas=2)
    return rows(
        ("detector", "by default", "covers", "does not cover"),
        ((row.detector, "on" if row.detector in on else "off", row.covers, row.misses) for row in shown),
    )


def preflight(_: str) -> str:
    from durable_core.launch.preflight import CHECKS, QUICK

    return rows(
        ("check", "before every start", "what it asks for"),
        ((each.name, "yes" if each in QUICK else "", _first(each.test)) for each in CHECKS),
    )


def states(_: str) -> str:
    from durable_core.launch.machine import TERMINAL, State

    return ", ".join(f"{_code(state.value)}{' (an end)' if state in TERMINAL else ''}" for state in State)


def exit_codes(_: str) -> str:
    """The first cell leads to the entry of each."""
    from durable_core.cli.launch import LAUNCH_EXIT_CODES
    from durable_core.cli.output import EXIT_CODES

    lines = []
    for code, meaning in LAUNCH_EXIT_CODES.items():
        of = "every command" if code in EXIT_CODES else "`durable launch`"
        lines.append((f"[{code}](#exit-{code})", meaning, of))
    return rows(("code", "meaning", "of"), lines)


def launch_help(_: str) -> str:
    from durable_core.cli.launch import LAUNCH_EXIT_CODES
    from durable_core.cli.output import epilog
    from durable_core.launch.agent import flags

    return f"```text\n{flags.usage(epilog(LAUNCH_EXIT_CODES)).rstrip()}\n```"


#: Numbers of requirements, which say nothing to a reader of the site.
_REQUIREMENT = re.compile(r" \([A-Z]+-[0-9]+(?:, [A-Z]+-[0-9]+)*\)")


def accelerate_help(_: str) -> str:
    from accelerate_durable.__main__ import parser

    return f"```text\n{parser().format_help().rstrip()}\n```"


def _first(of: Any) -> str:
    """The first sentence of a docstring."""
    text = _REQUIREMENT.sub("", " ".join((inspect.getdoc(of) or "").split()))
    return re.split(r"(?<=[.:]) ", text, maxsplit=1)[0]


# --- configuration ---------------------------------------------------------------------------


def run_file(_: str) -> str:
    """Every key of a run file, by section."""
    from durable_core.spec import RunSpec

    return "\n\n".join(_sections(RunSpec, ""))


def durable_options(_: str) -> str:
    """Every option of a run under Accelerate, with its variable."""
    from accelerate_durable.options import PREFIX, DurableOptions, option_names

    types = typing.get_type_hints(DurableOptions)
    lines, sections = [], []
    for field in dataclasses.fields(DurableOptions):
        name, inner = field.name, _dataclass_in(types[field.name])
        if name not in option_names():
            continue
        variable = _code(f"{PREFIX}{name.upper()}")
        lines.append((_code(name), _type(types[name], inner, name), _default(field), variable))
        if inner is not None:
            sections.append(_section(inner, name))
    table = rows(("option", "value", "default", "variable"), lines)
    return "\n\n".join((inspect.getdoc(DurableOptions) or "", table, *sections))


def accelerate_exit_codes(_: str) -> str:
    from accelerate_durable.failures import EXIT_CODES

    return rows(("code", "of a script under `accelerate_durable`"), EXIT_CODES.items())


def _sections(kind: type, prefix: str) -> Iterator[str]:
    nested: list[tuple[type, str]] = []
    lines = []
    types = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, inner = f"{prefix}{field.name}", _dataclass_in(types[field.name])
        if inner is not None:
            nested.append((inner, name))
        lines.append((_code(name), _type(types[field.name], inner, name), _default(field), _why(name)))
    columns = ("key", "value", "default", "needed")
    needed = any(line[-1] for line in lines)
    yield rows(columns if needed else columns[:-1], lines if needed else [line[:-1] for line in lines])
    for inner, name in nested:
        yield _section(inner, name)


def _section(kind: type, name: str) -> str:
    told = _REQUIREMENT.sub("", inspect.getdoc(kind) or "")
    return "\n\n".join((f"#### {name} {{#{_anchor(name)}}}", told, *_sections(kind, f"{name}.")))


def _anchor(name: str) -> str:
    return f"spec-{name.replace('.', '-')}"


def _dataclass_in(hint: Any) -> type | None:
    """The section that a key holds, alone, optional, or in a tuple."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint
    return next(filter(None, map(_dataclass_in, typing.get_args(hint))), None)


def _type(hint: Any, inner: type | None, name: str) -> str:
    if inner is not None:
        return f"{'list of ' if typing.get_origin(hint) is tuple else ''}[section](#{_anchor(name)})"
    return " or ".join(dict.fromkeys(_words(hint)))


#: As a file writes them.
_WRITTEN = {int: "a whole number", float: "a number", bool: "`true` or `false`", str: "text"}


def _words(hint: Any) -> Iterator[str]:
    """What a value may be, for people; ``None`` is what leaving a key out says."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        yield ", ".join(map(_code, parts))
    elif origin in (tuple, frozenset):  # of pairs, where a name has a value
        pairs = typing.get_origin(parts[0]) is tuple
        yield "names with values" if pairs else f"a list of {' or '.join(_words(parts[0]))}"
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield ", ".join(_code(each.value) for each in hint)
    elif hint in _WRITTEN:
        yield _WRITTEN[hint]
    elif hint is not type(None):
        for part in parts:
            yield from _words(part)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return ""
    value = getattr(field.default, "value", field.default)
    if isinstance(value, tuple):
        return ", ".join(map(_code, value))
    return "" if value is None or value == "" else _code(value)


def _why(name: str) -> str:
    from durable_core.spec.runfile import MANDATORY

    for names, why in MANDATORY.items():
        if name in names:
            others = [_code(other) for other in names if other != name]
            return why + (f" (or {', '.join(others)})" if others else "")
    return ""


# --- reference -------------------------------------------------------------------------------


def classes(module: str) -> str:
    """Directives for the public classes that a module defines, in its order."""
    found = vars(importlib.import_module(module)).values()
    own = [each for each in found if inspect.isclass(each) and each.__module__ == module]
    names = [each.__name__ for each in own if not each.__name__.startswith("_")]
    return "\n\n".join(f"::: {module}.{name}\n    options: {{heading_level: 3}}" for name in names)


_TABLES: Mapping[str, Callable[[str], str]] = {
    "failures": failures,
    "failure": failure,
    "checklist": checklist,
    "detectors": detectors,
    "preflight": preflight,
    "states": states,
    "exit-codes": exit_codes,
    "launch-help": launch_help,
    "accelerate-help": accelerate_help,
    "run-file": run_file,
    "durable-options": durable_options,
    "accelerate-exit-codes": accelerate_exit_codes,
    "classes": classes,
}
