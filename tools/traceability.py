"""From each requirement to the tests that show it: the table is checked, and written out for people.

``tests/traceability/requirements.json`` has, for each id, what is asked for in one line, the tests that would
fail without it (``file::test``; a file alone where its tests come from a shared contract, or where it is a
script), and a note: what of it is not covered, or why there is none.

    python tools/traceability.py           write core/design/traceability.md
    python tools/traceability.py --check   end with 1 when something is wrong or out of date
"""

from __future__ import annotations

import ast
import functools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "traceability" / "requirements.json"
WRITTEN = ROOT / "core" / "design" / "traceability.md"

#: How many requirements each group has: none is forgotten by being left out of the table.
GROUPS: Mapping[str, tuple[str, int]] = {
    "SPEC": ("Run specification and identity", 8),
    "REC": ("Run record, reconciler, state machine", 10),
    "FENCE": ("Fencing and cancellation", 11),
    "SCHED": ("Scheduling, membership, launcher", 17),
    "STATE": ("State classes captured by a checkpoint", 19),
    "COMMIT": ("Commit protocol, manifest, garbage collection", 23),
    "SHARD": ("Sharded storage and resharding", 12),
    "CAD": ("Cadence, asynchronous save, backlog", 15),
    "TIER": ("Storage tiers, RPO, RTO", 15),
    "INCR": ("Incremental and layered snapshots", 8),
    "DETECT": ("Failure detection and classification", 12),
    "RECOV": ("Recovery orchestration", 13),
    "SDC": ("Silent data corruption and known-good", 8),
    "DATAID": ("Dataset identity, manifests, cache", 8),
    "DATA": ("Logical plane, physical plane, shuffle", 15),
    "MIX": ("Mixture", 10),
    "QUEUE": ("Throughput and queues", 7),
    "CONTR": ("Reproducibility contract and cursor", 12),
    "VERIF": ("Verification of a restore", 6),
    "OBS": ("Observability, alerts, accounting", 15),
    "LIFE": ("Lifecycle gates, drills, cancel, completion", 12),
    "SHAPE": ("Plugin shape and adoption", 9),
}
#: A note says which of these it is; only a requirement of the first two kinds may have no test.
OUT_OF_SCOPE, OTHER_WORK, PARTLY = "out of scope: ", "other work: ", "partly: "


@dataclass(frozen=True)
class Requirement:
    id: str
    title: str
    tests: tuple[str, ...]
    note: str = ""

    @property
    def group(self) -> str:
        return self.id.rpartition("-")[0]


def load(path: Path = TABLE) -> tuple[Requirement, ...]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return tuple(
        Requirement(id, row["title"], tuple(row["tests"]), row.get("note", ""))
        for id, row in document.items()
    )


def faults(requirements: tuple[Requirement, ...], root: Path = ROOT) -> Iterator[str]:
    """What is wrong with the table, a line for each."""
    due = [f"{group}-{number:02d}" for group, (_, count) in GROUPS.items() for number in range(1, count + 1)]
    found = [requirement.id for requirement in requirements]
    yield from (f"{id}: is missing from the table" for id in due if id not in found)
    yield from (f"{id}: is no requirement" for id in found if id not in due)
    for requirement in requirements:
        note = requirement.note
        if note and not note.startswith((OUT_OF_SCOPE, OTHER_WORK, PARTLY)):
            yield f"{requirement.id}: its note begins with none of {(OUT_OF_SCOPE, OTHER_WORK, PARTLY)}"
        if not requirement.tests and not note.startswith((OUT_OF_SCOPE, OTHER_WORK)):
            yield f"{requirement.id}: has no test, and no reason why"
        if len(set(requirement.tests)) != len(requirement.tests):
            yield f"{requirement.id}: names a test twice"
        yield from (
            f"{requirement.id}: there is no {test}" for test in requirement.tests if not exists(test, root)
        )


def exists(test: str, root: Path = ROOT) -> bool:
    """Whether the file is there, and the test in it."""
    name, _, wanted = test.partition("::")
    path = root / name
    return path.is_file() and (not wanted or wanted in functions(path))


@functools.cache
def functions(path: Path) -> frozenset[str]:
    """``test`` and ``Class::test`` of a file."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return frozenset(found)


def written(requirements: tuple[Requirement, ...]) -> str:
    """The table for people."""
    covered = sum(bool(each.tests) for each in requirements)
    partly = sum(each.note.startswith(PARTLY) for each in requirements)
    lines = [
        "# Traceability",
        "",
        "Made by `python tools/traceability.py` from `tests/traceability/requirements.json`;",
        "a test checks that the two agree and that every test named here exists.",
        "",
        f"{len(requirements)} requirements: {covered} with tests, {partly} of them in part; "
        f"{len(requirements) - covered} without, with the reason.",
    ]
    for group, (title, _) in GROUPS.items():
        lines += ["", f"## {group}: {title}", "", "| id | what | tests | note |", "|---|---|---|---|"]
        for each in requirements:
            if each.group == group:
                tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in each.tests)
                lines.append(f"| {each.id} | {each.title} | {tests} | {each.note} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    requirements = load()
    wrong = list(faults(requirements))
    if arguments == ["--check"]:
        if not WRITTEN.is_file() or WRITTEN.read_text(encoding="utf-8") != written(requirements):
            wrong.append(f"{WRITTEN.relative_to(ROOT)} is out of date: python tools/traceability.py")
    elif not wrong:
        WRITTEN.write_text(written(requirements), encoding="utf-8")
    for each in wrong:
        sys.stderr.write(f"{each}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
