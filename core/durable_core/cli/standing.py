"""L6. ``durable status`` for people: the document as tables, without what is empty."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

from durable_core.cli.output import Table
from durable_core.cli.views import brief, when
from durable_core.launch.machine import TERMINAL

#: Characters of a line of running text, and of a cell of it.
_LINE, _CELL = 110, 40
#: The newest failures that are shown.
_FAILURES = 10


def shown(document: Mapping[str, Any]) -> list[Table | str]:
    rows = [(name.replace("_", " "), told) for name, tell in _ROWS.items() if (told := tell(document[name]))]
    parts: list[Table | str] = [Table(("what", "is"), rows), *_failures(document["failures"])]
    control = document["controller"]
    if control is None:
        return parts
    if document["health"]["is"] != "stopped":  # of a group that is gone, nothing in the report holds
        parts += _watched(control)
    return [*parts, *_detectors(document["integrity"])]


def _health(value: Mapping[str, Any]) -> str:
    return f"{value['is']}: {value['because'] or value['means']}"


def _newest(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else f"c{value['c']} at step {value['step']}, {value['age_s']:.0f} s old"


def _budget(value: Mapping[str, Any]) -> str:
    charged = f"{value['charged']} of {value['restarts']} restarts charged"
    return f"{charged}; {value['failures']} failures in all"


def _data(value: Mapping[str, Any]) -> str | None:
    if value["through_step"] is None:
        return None
    proof = "a ledger for every checkpoint" if value["ledger"] else "no complete ledger"
    return f"{proof}, through step {value['through_step']}; proved by {value['proved_by']}"


def _integrity(value: Mapping[str, Any]) -> str:
    good = value["known_good"]
    known = "nothing known good yet" if good is None else f"known good up to step {good['step']}"
    return f"{known}; {len(value['corrupt'])} corrupt; {len(value['numeric_findings'])} numeric findings"


def _members(value: list[str]) -> str:
    return ", ".join(value) if len(value) <= 8 else f"{len(value)}: {value[0]} ... {value[-1]}"


def _pairs(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {brief(item)}" for key, item in value.items())


def _draining(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else f"{value['reason']} at step {value['step']}"


def _terminal(value: Mapping[str, Any] | None) -> str | None:
    if value is None:
        return None
    c = value.get("c")
    parts = ("" if c is None else f"c{c}", f"by {value['principal']}" if "principal" in value else "")
    return ", ".join(filter(None, (value["outcome"], *parts, str(value.get("reason") or ""))))


def _plain(value: Any) -> str | None:
    """``0`` is told, ``""`` and what there is none of are not."""
    return brief(value) or None


_ROWS: Mapping[str, Callable[[Any], str | None]] = {
    "run": _plain,
    "state": _plain,
    "health": _health,
    "generation": _plain,
    "launch_id": _plain,
    "members": _members,
    "owner": lambda value: value["reason"],
    "promise": _plain,
    "seed": _plain,
    "target": _plain,
    "newest_durable": _newest,
    "recoverable": _pairs,
    "restore_point": lambda value: None if value is None else f"c{value}",
    "commits": _plain,
    "budget": _budget,
    "quarantined": _pairs,
    "draining": _draining,
    "terminal": _terminal,
    "summary": lambda value: value and value["key"],
    "in_doubt": _plain,
    "voids": lambda value: str(value) if value else None,
    "data": _data,
    "integrity": _integrity,
}


def _failures(found: list[Mapping[str, Any]]) -> list[Table | str]:
    if not found:
        return []
    rows = [
        (when(one["time"]), one["generation"], one["class"], one.get("step"), _reason(one))
        for one in found[-_FAILURES:]
    ]
    older = len(found) - len(rows)
    more = [f"and {older} older; durable report ROOT counts them"] if older else []
    return [Table(("failed", "generation", "class", "step", "reason"), rows), *more]


def _reason(failure: Mapping[str, Any]) -> str:
    evidence = failure.get("evidence")
    what = evidence.get("what") if isinstance(evidence, Mapping) else None
    return textwrap.shorten(str(what or failure["signature"]), _LINE, placeholder=" ...")


# --- what the controller reports --------------------------------------------------------------


def _watched(control: Mapping[str, Any]) -> list[Table | str]:
    since = "" if control["since"] is None else f" since {when(control['since'])}"
    parts: list[Table | str] = [f"{control['state']}{since}  {control['reason']}".rstrip()]
    if control["state"] in (state.value for state in TERMINAL):
        return parts
    age = f"{control['report_age_s']:.1f} s"
    if control["stale"]:
        parts.append(f"the controller has not reported for {age}: what follows is old")
    elif control["ranks"]:
        parts.append(f"reported {age} ago; what follows is as it was then")
    if control["trouble"]:
        parts.append(f"the controller is in trouble: {control['trouble']}")
    parts += _rows(control["violations"], _VIOLATIONS)
    parts += _rows(control["stragglers"], _STRAGGLERS)
    parts += _rows(control["ranks"], _RANKS)
    return parts


_Cells = Mapping[str, Callable[[Mapping[str, Any]], Any]]

_VIOLATIONS: _Cells = {
    "violated": lambda row: row.get("invariant"),
    "rank": lambda row: row.get("rank"),
    "since": lambda row: when(row.get("since", 0.0)),
    "confirmed": lambda row: "yes" if row.get("confirmed") else "no",
    "evidence": lambda row: row.get("reason"),
}
_STRAGGLERS: _Cells = {
    "slow rank": lambda row: row.get("rank"),
    "ratio": lambda row: f"{row.get('ratio', 0.0):.2f} x",
    "evidence": lambda row: row.get("reason"),
}
_RANKS: _Cells = {
    "rank": lambda row: row.get("rank"),
    "host": lambda row: row.get("host"),
    "pid": lambda row: row.get("pid"),
    "phase": lambda row: row.get("phase"),
    "step": lambda row: row.get("step"),
    "durable": lambda row: row.get("durable"),
    "beat s ago": lambda row: row.get("age_s"),
    "exit": lambda row: row.get("exit"),
}


def _rows(found: list[Mapping[str, Any]], cells: _Cells) -> list[Table]:
    if not found:
        return []
    return [Table(tuple(cells), [tuple(cell(row) for cell in cells.values()) for row in found])]


# --- what is looked for -----------------------------------------------------------------------


def _detectors(integrity: Mapping[str, Any]) -> list[Table | str]:
    words = {True: "on", False: "off", None: "not known"}
    rows: list[tuple[Any, ...]] = []
    for one in integrity["detectors"]:
        texts = zip_longest(*(textwrap.wrap(one[name], _CELL) for name in ("covers", "misses")), fillvalue="")
        for at, lines in enumerate(texts):
            head = (one["detector"], words[one["on"]], one["period"]) if at == 0 else ("", "", "")
            rows.append((*head, *lines))
    table = Table(("detector", "is", "every", "covers", "does not cover"), rows)
    return [table, textwrap.fill(integrity["limits"], _LINE)]


def mixture(sources: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (
            name, f"{source['target']:.2%}", f"{source['share']:.2%}", source["draws"], source["tokens"],
            source["epoch"], "ran out" if source["removed"] else None,
        )
        for name, source in sources.items()
    ]  # fmt: skip
    return Table(("source", "target", "actual", "draws", "tokens", "epoch", ""), rows)
