"""One history of many lives, held line by line against the uninterrupted run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.lives import Death, Strike, live, log_of, output_of
from tests.torture.subject import Cell
from tests.torture.tiers_places import Places

Line = dict[str, Any]
FAULTS_PER_LIFE = 3  # one departure makes every later line depart
EMPTY: Mapping[str, str] = {}


def read_log(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


@dataclass
class Told:
    """What one rank of the uninterrupted run wrote: batches in order, the state after each step."""

    batches: list[Line]
    states: dict[int, str]
    end: Line

    @staticmethod
    def of(lines: list[Line]) -> Told:
        return Told(
            [line for line in lines if line["kind"] == "batch"],
            {line["step"]: line["state"] for line in lines if line["kind"] == "step"},
            lines[-1],
        )

    def faults(self, lines: list[Line], head: int) -> list[str]:
        """Where a life that began from the commit of step ``head`` departs from this run, at first."""
        found = []
        rest = iter([line for line in self.batches if line["step"] >= head])
        for line in lines:
            step = line["step"]
            if line["kind"] == "batch":
                expected = next(rest, "no further batch")
                if line != expected:
                    found.append(f"{line}, expected {expected}")
            elif line["kind"] == "start" and step != head:
                found.append(f"started from step {step}, the newest commit was of {head}")
            elif line["kind"] != "start" and line["state"] != self.states.get(step):
                found.append(f"{line['kind']}: state after step {step} differs")
        return found[:FAULTS_PER_LIFE]


@dataclass
class Reference:
    """The uninterrupted run of a cell: per rank what it did; how long it took; points it passed."""

    cell: Cell
    ranks: list[Told]
    seconds: float

    @property
    def samples(self) -> int:
        """Samples that the whole run consumes."""
        return sum(len(batch["ids"]) for told in self.ranks for batch in told.batches)

    def arrivals(self, rank: int) -> dict[str, int]:
        return dict(self.ranks[rank].end["arrivals"])


@dataclass
class History:
    """What became of one run: its deaths and every fault found."""

    cell: Cell
    root: Path
    deaths: list[tuple[Strike, Death]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)

    @property
    def kills(self) -> Counter[str]:
        return Counter(strike.label for strike, death in self.deaths if death.struck)


def committed_step(root: Path) -> int | None:
    """Read straight from the journal's files, not through the code under test."""
    steps = []
    for path in sorted((root / "journal").glob("*.json")):
        record = json.loads(path.read_bytes())
        if record["kind"] == "checkpoint.committed":
            steps.append(int(record["payload"]["step"]))
    return max(steps, default=None)


def reference_root(cell: Cell, base: Path) -> Path:
    return base / f"reference-{cell.name}-{cell.steps}"


def refer(cell: Cell, base: Path, places: Places | None = None) -> Reference:
    """Runs the cell uninterrupted. ``RuntimeError`` with the output when even that fails."""
    root = reference_root(cell, base)
    death = live(cell, root, 0, Strike(), places)
    if not death.finished:
        raise RuntimeError(f"{cell.name}: the uninterrupted run failed\n{output_of(cell, root, 0)}")
    ranks = [Told.of(read_log(log_of(root, rank, 0))) for rank in range(cell.world)]
    return Reference(cell, ranks, death.seconds)


def suffer(reference: Reference, root: Path, strikes: Iterable[Strike]) -> History:
    """Starts the run again after each strike until it finishes, and checks every life."""
    cell = reference.cell
    history = History(cell, root)
    for life, strike in enumerate([*strikes, Strike()]):
        head = committed_step(root) or 0
        death = live(cell, root, life, strike)
        history.deaths.append((strike, death))
        for rank, told in enumerate(reference.ranks):
            lines = read_log(log_of(root, rank, life))
            history.faults += [
                f"life {life} rank {rank} ({strike.label}): {fault}" for fault in told.faults(lines, head)
            ]
        if death.finished:
            break
        if death.hung or not death.struck:
            how = "hung" if death.hung else f"ended with {death.statuses} unstruck"
            history.faults.append(f"life {life} {how}\n{output_of(cell, root, life)}")
            break
    if not history.faults:
        _judge_the_end(history, reference)
    return history


def _judge_the_end(history: History, reference: Reference) -> None:
    life = len(history.deaths) - 1
    faults, history.audit = judge_the_end(reference, history.root, life)
    history.faults += faults


def judge_the_end(
    reference: Reference, root: Path, life: int, *, home: str | None = None, env: Mapping[str, str] = EMPTY
) -> tuple[list[str], dict[str, Any]]:
    """The final state, ``durable verify`` and ``durable audit`` of a run that ended with ``life``: faults,
    and what the audit said. ``home``: where the run lies when that is not ``root``; ``env`` opens it."""
    cell, faults = reference.cell, []
    for rank, told in enumerate(reference.ranks):
        end = read_log(log_of(root, rank, life))[-1]
        if (end["kind"], end["step"], end["state"]) != ("end", cell.steps, told.end["state"]):
            faults.append(f"rank {rank} ended as {end}, expected {told.end}")
    status, verified = _durable("verify", home or str(root), env)
    if status != 0:
        faults.append(f"durable verify: exit {status}: {verified}")
    status, audit = _durable("audit", home or str(root), env)
    expected = {"samples": reference.samples, "repeated": 0, "skipped": 0}
    if status != 0 or any(audit.get(key) != value for key, value in expected.items()):
        faults.append(f"durable audit: exit {status}: {audit}, expected {expected}")
    return faults, audit


def _durable(command: str, root: str, env: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    call = [sys.executable, "-m", "durable_core.cli", command, root, "--json"]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env={**os.environ, **env})
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode or 1, {"output": done.stdout + done.stderr}
