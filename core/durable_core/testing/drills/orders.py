"""L6. What a drill tells its training job: frozen values that travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from durable_core.errors import UsageError

Kind = Literal["kill", "point", "hang", "slow", "raise", "nan", "flip", "leave", "stubborn", "disk"]

#: What can be taken away, to see the drill fail without it.
DEFENCES = ("fencing", "verification", "detectors")


@dataclass(frozen=True)
class Injection:
    """``kind`` happens on ``rank`` in optimizer step ``step`` (1 is the first), in the first life that comes
    there only (``once``) or in every one.

    ``argument``: of ``point`` the crash point (``K6``); of ``slow`` the seconds that each step from there on
    takes longer; of ``disk`` what the storage does (``readonly``, ``full``, ``slow``); of ``leave`` the exit
    status.
    """

    kind: Kind
    step: int
    rank: int = 0
    argument: str = ""
    once: bool = True


@dataclass(frozen=True)
class Orders:
    """One job: ``steps`` optimizer steps, a checkpoint every ``every``, each step ``step_seconds`` long at
    least.

    ``marks``: a directory, where each rank says how far it is; ``data``: the directory with the records.
    ``memory``: a directory in memory for snapshots of every step, ``""`` for none. ``agree_every``: how often
    replicas are compared; ``wait``: every step waits until it is saved; ``promise``: ``""`` for the default;
    ``noted``: the digest of the weights is written down after every step.
    """

    root: str
    marks: str
    data: str
    steps: int = 40
    every: int = 5
    step_seconds: float = 0.05
    memory: str = ""
    width: int = 64
    agree_every: int = 0
    promise: str = ""
    on_breach: Literal["continue", "pause", "abort"] = "continue"
    rpo_steps: int | None = None
    wait: bool = False
    noted: bool = False
    injections: tuple[Injection, ...] = ()
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.without:
            if name not in DEFENCES:
                raise UsageError(f"no defence {name!r}", hint="one of " + ", ".join(DEFENCES))

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @staticmethod
    def read(path: Path) -> Orders:
        doc: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        doc["injections"] = tuple(Injection(**row) for row in doc["injections"])
        doc["without"] = tuple(doc["without"])
        return Orders(**doc)


@dataclass(frozen=True)
class Mark:
    """What a rank said: ``opened`` (the run is restored, at ``step``), ``step`` (that one is done),
    ``injected`` (a fault of kind ``detail``, in that step), ``ended``. ``time``: monotonic seconds."""

    time: float
    what: str
    rank: int
    pid: int
    generation: int
    step: int
    detail: str = ""

    @staticmethod
    def of(line: str) -> Mark:
        doc: Mapping[str, Any] = json.loads(line)
        return Mark(**doc)


def read_marks(directory: Path) -> list[Mark]:
    """All marks of all ranks by time. A last line that is torn, of a rank that was killed, does not count."""
    found = []
    for path in directory.glob("*.marks"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        found += [Mark.of(line) for line in lines if line.endswith("\n")]
    return sorted(found, key=lambda mark: mark.time)
