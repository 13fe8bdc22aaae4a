"""L6. What must hold after a scenario, read from what is left of it: journal, ledger, marks, processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from durable_core.commit.state import RunState
from durable_core.engine import audit
from durable_core.engine.inspect import Reader
from durable_core.errors import DurableError
from durable_core.testing.drills.ground import POLL_S, Ground
from durable_core.testing.drills.orders import Mark


@dataclass(frozen=True)
class Expected:
    """What a scenario must come to. ``classes``: failure classes of which one must be in the journal,
    ``()``: none may be; ``generations``: at most so many; ``lost_steps``: the goal for RPO; ``rto_s``: that
    for RTO; ``outcome``: how the run ends (``""``: not yet); ``names``: what the evidence of the failure
    must name. ``same``: as what the undisturbed run is, by its weights, or by the order of its samples
    alone, which the ledger shows."""

    classes: tuple[str, ...] = ()
    generations: int = 2
    lost_steps: int = 10  # two intervals: the newest checkpoint may not be durable yet
    rto_s: float = 60.0
    outcome: str = "succeeded"
    names: str = ""
    same: Literal["bits", "order"] = "bits"


@dataclass(frozen=True)
class Incident:
    """``began``: when the fault happened (monotonic seconds). ``exits``: of the launchers, in order, with
    what each had to be. ``notes``: findings of the scenario's own, by check."""

    began: float
    exits: tuple[tuple[int, int], ...] = ()
    notes: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Measured:
    """``rpo_steps``: steps done, undone and done again; ``rto_s``: from the fault to the next step of a new
    generation, ``mtr_s``: to the first step that had not been reached before. ``None``: nothing was
    restarted."""

    rpo_steps: int | None
    rto_s: float | None
    mtr_s: float | None


@dataclass(frozen=True)
class Finding:
    """One check: ``fault`` is ``""`` where it holds."""

    check: str
    fault: str


def measure(marks: Sequence[Mark], began: float) -> Measured:
    """RPO, RTO and MTR of the restart that followed ``began``."""
    before = [mark for mark in marks if mark.time <= began]
    after = [mark for mark in marks if mark.time > began]
    opened = next((mark for mark in after if mark.what == "opened"), None)
    if opened is None:
        return Measured(None, None, None)
    reached = max((mark.step for mark in marks if mark.what == "step" and mark.time < opened.time), default=0)
    pids = {mark.pid for mark in before}
    fresh = [
        mark for mark in after if mark.what == "step" and mark.pid not in pids and mark.time > opened.time
    ]
    first = next(iter(fresh), None)
    further = next((mark for mark in fresh if mark.step > reached), None)
    return Measured(
        max(0, reached - opened.step),
        None if first is None else first.time - began,
        None if further is None else further.time - began,
    )


def judge(
    ground: Ground, expected: Expected, incident: Incident, control: Callable[[int], Mapping[str, Any]]
) -> Iterator[Finding]:
    """Every check on what is left. ``control(steps)``: step and digest of a run that nothing happened to."""
    reader = ground.reader
    state = reader.state
    measured = measure(ground.marks(), incident.began)
    for launched, (found, wanted) in enumerate(incident.exits):
        yield Finding(f"exit of launch {launched}", "" if found == wanted else f"{found}, not {wanted}")
    outcome = "" if state.terminal is None else state.terminal.outcome
    yield Finding(
        "outcome", "" if outcome == expected.outcome else f"{outcome or 'none'}, not {expected.outcome}"
    )
    if expected.outcome == "succeeded":
        fault = _same(ground.final(), control(ground.orders.steps), expected.same == "bits")
        yield Finding("same run", fault)
    yield Finding("cursor", _continuous(reader))
    yield Finding("fencing", _fenced(reader))
    yield Finding("retries", _bounded(state, expected))
    yield Finding("classified", _classified(state, expected))
    yield Finding("fallback", _fallback(state))
    yield Finding("orphans", left_of(ground))
    if measured.rpo_steps is not None:
        lost = measured.rpo_steps
        yield Finding(
            "rpo", "" if lost <= expected.lost_steps else f"{lost} steps, not {expected.lost_steps}"
        )
    if measured.rto_s is not None:
        late = measured.rto_s > expected.rto_s
        yield Finding("rto", f"{measured.rto_s:.1f} s, not {expected.rto_s:.1f}" if late else "")
    for check, fault in (incident.notes or {}).items():
        yield Finding(check, fault)


def _same(final: Mapping[str, Any] | None, control: Mapping[str, Any], bits: bool) -> str:
    if final is None:
        return "it never came to its end"
    equal = final == control if bits else final["step"] == control["step"]
    return "" if equal else f"ended with {final}, and undisturbed with {dict(control)}"


def _continuous(reader: Reader) -> str:
    """VERIF by the ledger: no sample twice, none left out."""
    try:
        found = audit.audit(reader)
    except DurableError as error:
        return str(error)
    return "" if found.sound else f"{found.to_json()}"


def _fenced(reader: Reader) -> str:
    """Nothing of a replaced generation counts, and no commit of one was even written."""
    voids = [
        f"{entry.record.kind.value} of generation {entry.record.generation}"
        for entry in reader.entries()
        if entry.void and entry.record.kind.value == "checkpoint.committed"
    ]
    return ", ".join(voids)


def _bounded(state: RunState, expected: Expected) -> str:
    count = state.generation
    return "" if count <= expected.generations else f"{count} generations, at most {expected.generations}"


def _classified(state: RunState, expected: Expected) -> str:
    found = {str(failure.payload["class"]): failure for failure in state.failures}
    if not expected.classes:
        return f"failures {sorted(found)}, and none was expected" if found else ""
    known = [found[name] for name in expected.classes if name in found]
    if not known:
        return f"failures {sorted(found)}, none of them {' or '.join(expected.classes)}"
    if expected.names and not any(expected.names in str(failure.payload) for failure in known):
        return f"the evidence does not name {expected.names}: {known[0].payload}"
    return ""


def _fallback(state: RunState) -> str:
    """Every generation began from a checkpoint that was committed, and is whole or was found damaged
    since."""
    point = None if state.restore_point is None else state.checkpoints[state.restore_point]
    if point is not None and not point.was_committed:
        return f"generation {state.generation} began from c{point.c}, which was never committed"
    return ""


def left_of(ground: Ground, within_s: float = 10.0) -> str:
    """Processes that are left of the drill, given that time to end; ``""`` for none."""
    deadline = ground.clock.monotonic() + within_s
    while (left := ground.processes()) and ground.clock.monotonic() < deadline:
        ground.clock.sleep(POLL_S)
    return f"processes {left} are left" if left else ""
