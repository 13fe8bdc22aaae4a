"""L6. How the command line speaks: one JSON document, or tables for people; errors in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from durable_core.errors import CorruptError, DurableError, SpecMismatchError

OK, FAILED, USAGE, NOT_FOUND, FENCED, CORRUPT = 0, 1, 2, 3, 4, 5

#: what every command may end with; the help text is made from this
EXIT_CODES: Mapping[int, str] = {
    OK: "fine",
    FAILED: "the check failed, or storage could not be read",
    USAGE: "usage",
    NOT_FOUND: "not found",
    FENCED: "fenced: another process owns the run",
    CORRUPT: "corrupt",
}


def epilog(codes: Mapping[int, str] = EXIT_CODES) -> str:
    """The last line of a command's help."""
    return "Exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in codes.items()) + "."


@dataclass(frozen=True)
class Table:
    """Rows for people; cells are shown with ``str``, ``None`` as a dash."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""


@dataclass(frozen=True)
class Answer:
    """What a command found: as a JSON document, the same for people, and the exit code."""

    document: Mapping[str, Any]
    human: Sequence[Table | str]
    exit_code: int = OK


def show(answer: Answer, *, as_json: bool) -> int:
    """Write an answer on stdout and return its exit code."""
    if as_json:
        write_json(answer.document)
        return answer.exit_code
    for part in answer.human:
        if isinstance(part, Table):
            _show_table(part)
        else:
            print(part)
    return answer.exit_code


def write_json(document: Mapping[str, Any]) -> None:
    """One JSON document and a newline, and nothing else, on stdout."""
    sys.stdout.write(json.dumps(document, ensure_ascii=True, allow_nan=False) + "\n")


def fail(error: DurableError, *, as_json: bool) -> int:
    """Report an expected error with its way out, and return its exit code."""
    named: dict[str, Any] = {}
    if isinstance(error, CorruptError):
        named = {"key": error.key, "reason": error.reason}
    elif isinstance(error, SpecMismatchError):
        named = {"fields": list(error.fields)}
    complain(type(error).__name__, error.message, error.hint, error.exit_code, as_json=as_json, **named)
    return error.exit_code


def complain(kind: str, message: str, hint: str, code: int, *, as_json: bool, **named: Any) -> None:
    """One line on stderr; with ``--json`` the document ``{"error": …}`` on stdout instead."""
    message, hint = " ".join(message.split()), " ".join(hint.split())
    if as_json:
        write_json({"error": {"type": kind, "message": message, "hint": hint, "exit_code": code, **named}})
    else:
        print(f"durable: {message}" + (f"  [{hint}]" if hint else ""), file=sys.stderr)


def cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _show_table(table: Table) -> None:
    rows = [[cell(value) for value in row] for row in table.rows]
    if sys.stdout.isatty():
        _show_rich(table, rows)
        return
    # Into a pipe: plain columns, never cut to a width, and no time spent on importing rich.
    if table.title:
        print(table.title)
    lines = [list(table.columns), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _show_rich(table: Table, rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(*table.columns, title=table.title or None, title_justify="left")
    for row in rows:
        drawn.add_row(*map(Text, row))  # Text: a key in brackets is not markup
    Console().print(drawn)


def human_bytes(count: int | None) -> str:
    """``1536`` -> ``1.5 KiB``."""
    if count is None:
        return "-"
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
