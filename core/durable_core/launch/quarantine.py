"""L5. What later attempts leave out, and which checkpoint has lost its trust: read from the journal, and what
is still to be recorded of it. Pure, and level-triggered: what has been recorded is due no more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from durable_core.commit.state import Failure, RunState
from durable_core.launch.classes import UNITS, F, Unit
from durable_core.launch.retry import suspects

#: Failures that speak against what was restored; a crash of another kind says nothing of it.
AGAINST_STATE = frozenset({F.F11.value, F.F12.value, F.F13.value})
#: So many of them while the restore was not proven yet demote the checkpoint.
STRIKES = 2


@dataclass(frozen=True)
class Quarantined:
    """By unit, the names that are left out (RECOV-02)."""

    names: Mapping[Unit, frozenset[str]]

    def __getitem__(self, unit: Unit) -> frozenset[str]:
        return self.names.get(unit, frozenset())

    def __contains__(self, item: tuple[Unit, str]) -> bool:
        return item[1] in self[item[0]]


def quarantined(run: RunState) -> Quarantined:
    """What is in quarantine now; a record with ``lifted`` ends it."""
    names: dict[Unit, frozenset[str]] = {}
    known: Mapping[str, Unit] = {unit.value: unit for unit in Unit}
    for line in run.quarantines:
        unit, name = known.get(str(line.get("unit", ""))), line.get("name")
        if unit is None or not isinstance(name, str):
            continue
        before = names.get(unit, frozenset())
        names[unit] = before - {name} if line.get("lifted") else before | {name}
    return Quarantined(names)


@dataclass(frozen=True)
class Standing:
    """One that is left out. ``since``: wall clock of the failure it follows, ``None``: it follows none."""

    unit: Unit
    name: str
    reason: str
    since: float | None

    def __str__(self) -> str:
        return f"{self.unit.value} {self.name} is in quarantine{_at(self.since)}: {self.reason}"


def _at(time: float | None) -> str:
    if time is None:
        return ""
    return f" since {datetime.fromtimestamp(time, timezone.utc).isoformat(timespec='seconds')}"


def standing(run: RunState) -> tuple[Standing, ...]:
    """What is in quarantine now, by unit and name: why, and since when."""
    out = quarantined(run)
    times = {failure.op_id: failure.time for failure in run.failures}
    found: dict[tuple[Unit, str], Standing] = {}
    for line in run.quarantines:
        unit, name = str(line.get("unit", "")), str(line.get("name", ""))
        if unit in {known.value for known in Unit} and (Unit(unit), name) in out and not line.get("lifted"):
            reason, since = str(line.get("reason", "")), times.get(str(line.get("failure", "")))
            found[Unit(unit), name] = Standing(Unit(unit), name, reason, since)
    return tuple(sorted(found.values(), key=lambda one: (one.unit, one.name)))


def lifting(run: RunState, unit: Unit, name: str, reason: str) -> dict[str, Any]:
    """The payload of ``quarantine`` that takes one back in. What has failed until now speaks against it no
    more; what fails later does."""
    return {
        "unit": unit.value, "name": name, "lifted": True, "reason": reason, "failures": len(run.failures),
    }  # fmt: skip


def barred(run: RunState, host: str, *, most: int) -> Standing | None:
    """Why the agent on ``host`` does not take part; ``None``: it may. ``most``: nodes that its group may
    have. A group of one node has no other, and trains there or not at all."""
    if most == 1:
        return None
    of_host = (one for one in standing(run) if (one.unit, one.name) == (Unit.NODE, host))
    return next(of_host, None)


def unrecorded(run: RunState, permitted: Collection[Unit] = UNITS) -> Iterator[dict[str, Any]]:
    """The quarantines that are due and no record speaks of: payloads of ``quarantine``.

    Those that failures were decided with (the agent that decides records them too; this is for the one that
    was killed before it could), and nodes that a replay has shown to compute wrong, where nodes are among
    what is ``permitted`` to be left out.
    """
    out = quarantined(run)
    said = {(line.get("unit"), line.get("name")) for line in run.quarantines}
    settled = {
        (line.get("unit"), line.get("name")): int(line.get("failures", 0))
        for line in run.quarantines
        if line.get("lifted")
    }
    due = set()
    for at, failure in enumerate(run.failures):
        reason = failure.payload["class"]
        for one in _decided(failure):
            unit, name = one.get("unit", ""), one.get("name", "")
            if not (unit and name) or (Unit(unit), name) in out or at < settled.get((unit, name), 0):
                continue
            if (unit, name) not in due:
                due.add((unit, name))
                yield {"unit": unit, "name": name, "reason": reason, "failure": failure.op_id}
    for suspect in suspects(run):
        if suspect.unit in permitted and (suspect.unit.value, suspect.name) not in said | due:
            reason = "a replay came past what was found there: it computed wrong"
            yield {"unit": suspect.unit.value, "name": suspect.name, "reason": reason}


def _decided(failure: Failure) -> list[Mapping[str, Any]]:
    evidence = failure.payload["evidence"]
    found = evidence.get("quarantine", ()) if isinstance(evidence, Mapping) else ()
    return [one for one in found if isinstance(one, Mapping)]


def demotable(run: RunState, probation_steps: int) -> tuple[int, str] | None:
    """A checkpoint that was restored again and again, each time to fail at once of a cause that speaks
    against the state; and why. ``None``: there is none.

    Never the last one that is left, and none known to be good: then the machine is wrong, not the state.
    """
    strikes: dict[int, list[Failure]] = {}
    points = {life.generation: life.restore_point for life in run.lives}
    for failure in run.failures:
        c = points.get(failure.generation)
        if c is None or failure.payload["class"] not in AGAINST_STATE:
            continue
        step = failure.payload["step"]
        if step is None or step <= run.checkpoints[c].step + probation_steps:
            strikes.setdefault(c, []).append(failure)
    for c, against in strikes.items():
        info = run.checkpoints[c]
        lives = {failure.generation for failure in against}
        if len(lives) < STRIKES or not info.usable or info.known_good or not _has_older(run, c):
            continue
        if any(other.generation in lives for other in run.checkpoints.values() if other.was_committed):
            continue  # one of them had come to a commit: it had been proven then
        what = ", ".join(f"{failure.payload['class']} in g{failure.generation}" for failure in against)
        return c, f"failed its probation {len(lives)} times ({what})"
    return None


def _has_older(run: RunState, c: int) -> bool:
    older = run.checkpoints[c].parent
    while older is not None:
        if run.checkpoints[older].usable:
            return True
        older = run.checkpoints[older].parent
    return False
