"""L6. ``durable doctor``: the operator's checklist of ten lines, each with its evidence.

A line passes on what is found in the run, never on what somebody says; what does not apply, or was waived
in the run's spec, says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import click

from durable_core.cli.options import takes_root
from durable_core.cli.output import FAILED, OK, Answer, Table, epilog, show
from durable_core.clock import SystemClock
from durable_core.commit.state import RunState
from durable_core.engine.held import NEEDED, classes_held
from durable_core.engine.inspect import Reader, open_run
from durable_core.errors import NotFoundError, TierError, UnsupportedError
from durable_core.format.manifest import Manifest
from durable_core.format.record import Kind

WEEK_S = 7 * 86400.0


@dataclass(frozen=True)
class Line:
    """One line of the checklist. ``passed`` is ``None`` where it does not apply; ``shown``: ``False`` where
    nothing speaks against it, and nothing for it: what would was never tried or declared."""

    number: int
    what: str
    passed: bool | None
    evidence: str
    hint: str = ""
    shown: bool = True


@dataclass(frozen=True)
class Patient:
    """What there is to look at. ``drills``: scenario -> its last result; ``now``: seconds since the epoch."""

    reader: Reader
    manifest: Manifest | None
    drills: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    now: float = 0.0
    max_age_s: float = WEEK_S

    @property
    def state(self) -> RunState:
        return self.reader.state


#: A verdict: nothing speaks against it, and nothing for it.
_UNSHOWN: Final = "not shown"
Verdict = bool | Literal["not shown"] | None
Finding = tuple[Verdict, str, str]
Check = Callable[[Patient], Finding]


def _state_classes(patient: Patient) -> Finding:
    """Seven classes of state; of those that a program may not have, it is said that there is none."""
    if patient.manifest is None:
        return False, "nothing is committed yet", "let it train to its first checkpoint"
    found = classes_held(patient.manifest)
    absent = [name for name in NEEDED if not found[name]]
    told = ", ".join(name if there else f"no {name}" for name, there in found.items())
    return not absent, told, "put them into the state of the session" if absent else ""


def _sharded(patient: Patient) -> Finding:
    """Tensors in objects of their own, and a manifest that says where each lies."""
    found = patient.manifest
    if found is None:
        return False, "nothing is committed yet", ""
    writers = len(found.roles)
    told = f"{len(found.tensors)} tensors in {len(found.objects)} objects of {writers} writers"
    return bool(found.objects), f"{told}; the manifest names each", ""


def _atomic(patient: Patient) -> Finding:
    """The store proves that it can create an object if, and only if, there is none."""
    try:
        patient.reader.tier.probe()
    except (UnsupportedError, TierError) as error:
        return False, str(error), "use a store that can; see `durable preflight`"
    return True, "create-if-absent was tried on this store, and holds", ""


def _alerts(patient: Patient) -> Finding:
    """A failed save is told, and how much may be unrecoverable is declared; both were tried."""
    declared = _declared(patient.state, "checkpoint", "rpo_steps") or _declared(
        patient.state, "recovery", "goals"
    )
    tried, told = _drilled(patient, ("full-disk", "read-only"))
    goal = f"RPO {declared}" if declared else "no RPO is declared"
    hint = "declare rpo_steps; durable drill all --record ROOT"
    return tried if declared or tried is False else _UNSHOWN, f"{goal}; {told}", hint


def _detection(patient: Patient) -> Finding:
    """Hangs and slow workers are found; a collective has a limit below that."""
    tried, told = _drilled(patient, ("hang", "straggler"))
    limit = _declared(patient.state, "failure", "collective_timeout_seconds")
    told += f"; collective timeout {limit} s" if limit else "; no collective timeout is declared"
    hint = "set failure.collective_timeout_seconds; durable drill all --record ROOT"
    return tried if limit or tried is False else _UNSHOWN, told, hint


def _drain(patient: Patient) -> Finding:
    tried, told = _drilled(patient, ("preemption",))
    return tried, told, "durable drill preemption --record ROOT"


def _spares(patient: Patient) -> Finding:
    """Processes that wait to step in; an option, which the spec may waive."""
    waived = _declared(patient.state, "failure", "standbys_waived")
    if waived:
        return None, "waived by the spec", ""
    report = _report(patient)
    agents = {} if report is None else report.get("agents") or {}
    count = sum(int(each.get("standbys", 0)) for each in agents.values())
    told = "no controller has reported" if report is None else f"{count} standbys at the last report"
    return count > 0, told, "durable launch --standby 1, or waive it in the spec"


def _probation(patient: Patient) -> Finding:
    """Every restart was proven by steps before it was called running."""
    from durable_core.launch.machine import State

    restarts = [life for life in patient.state.lives if life.generation > 1]
    proven = {
        entry.record.generation
        for entry in patient.reader.entries()
        if not entry.void
        and entry.record.kind is Kind.RUN_STATE
        and entry.record.payload["state"] == State.RUNNING.value
    }
    if not restarts:
        return None, "the run was never restarted", ""
    newest = restarts[-1].generation
    told = f"of {len(restarts)} restarts {len(proven & {r.generation for r in restarts})} were proven"
    return newest in proven, f"{told}; the newest is generation {newest}", "run it under `durable launch`"


def _regular(patient: Patient) -> Finding:
    """Faults are injected regularly, and what they cost is within the goals."""
    if not patient.drills:
        return _UNSHOWN, "no drill was ever noted here", "durable drill all --record ROOT"
    age = patient.now - min(float(each["time"]) for each in patient.drills.values())
    failed = [name for name, each in patient.drills.items() if not each["passed"]]
    told = f"{len(patient.drills)} drills, the oldest {age / 86400:.1f} days ago"
    return (
        not failed and age <= patient.max_age_s,
        told + "".join(f", {name} failed" for name in failed),
        ("durable drill all --record ROOT"),
    )


def _controller(patient: Patient) -> Finding:
    tried, told = _drilled(patient, ("controller-kill",))
    return tried, told, "durable drill controller-kill --record ROOT"


CHECKS: tuple[tuple[str, Check], ...] = (
    ("parameters, optimizer, random streams, data position, learning rate, averages, scaler", _state_classes),
    ("sharded writes, metadata apart", _sharded),
    ("a commit is one atomic act", _atomic),
    ("failed saves are told, the lag has a limit", _alerts),
    ("hangs and slow workers are found; collectives have a limit", _detection),
    ("a planned stop saves first and loses nothing", _drain),
    ("standbys with the whole environment", _spares),
    ("a restore is proven by numbers", _probation),
    ("faults are injected regularly; RPO and RTO hold", _regular),
    ("the control plane may die", _controller),
)


def examine(patient: Patient) -> tuple[Line, ...]:
    """The ten lines."""
    lines = []
    for number, (what, check) in enumerate(CHECKS, 1):
        passed, evidence, hint = check(patient)
        shown, verdict = passed != _UNSHOWN, None if passed is None else passed is True
        lines.append(Line(number, what, verdict, evidence, hint if verdict is False else "", shown))
    return tuple(lines)


def _drilled(patient: Patient, scenarios: tuple[str, ...]) -> tuple[Verdict, str]:
    """Whether all of these drills passed when they were last played; not shown: none failed, not all were."""
    told = []
    for name in scenarios:
        found = patient.drills.get(name)
        if found is None:
            told.append(f"{name} was never drilled")
        else:
            told.append(f"{name} {'passed' if found['passed'] else 'FAILED'} {_ago(patient, found)}")
    results = [patient.drills[name]["passed"] for name in scenarios if name in patient.drills]
    whole = len(results) == len(scenarios)
    return (_UNSHOWN if all(results) and not whole else all(results)), ", ".join(told)


def _ago(patient: Patient, found: Mapping[str, Any]) -> str:
    return f"{(patient.now - float(found['time'])) / 86400:.1f} days ago"


def _declared(state: RunState, section: str, name: str) -> Any:
    return (state.spec.get(section) or {}).get(name)


def _report(patient: Patient) -> Mapping[str, Any] | None:
    """The controller's last, if there is one."""
    from durable_core.launch.controller.report import read

    found = read(patient.reader.tier)
    return None if found is None else found.document


@click.command("doctor", epilog=epilog())
@takes_root
@click.option("--max-age-days", type=click.FloatRange(min=0, min_open=True), default=7.0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def doctor(root: str, max_age_days: float, as_json: bool) -> int:
    """Go through the operator's checklist.

    Ten lines, each passed or failed on evidence from the run at ROOT and from the drills that were noted
    there (durable drill all --record ROOT). Ends with 1 when a line fails.
    """
    from durable_core.testing.drills.record import noted

    reader = open_run(root)
    try:
        manifest = reader.manifest(reader.newest_usable())
    except NotFoundError:
        manifest = None
    patient = Patient(reader, manifest, noted(root), SystemClock().now(), max_age_days * 86400)
    return show(answer(examine(patient)), as_json=as_json)


def answer(lines: tuple[Line, ...]) -> Answer:
    verdict = {True: "pass", False: "FAIL", None: "n/a"}
    rows = [
        (
            each.number,
            verdict[each.passed] if each.shown else _UNSHOWN,
            each.what,
            each.evidence,
            each.hint or None,
        )
        for each in lines
    ]
    failed = any(each.passed is False for each in lines)
    document = {"passed": not failed, "lines": [vars(each) for each in lines]}
    return Answer(document, [Table(("", "", "what", "evidence", "way out"), rows)], FAILED if failed else OK)
