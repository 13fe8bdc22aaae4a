"""L6. ``durable report``: what failed, how often, and what it cost, from the journal (DETECT-12)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import mean

from durable_core.cli.output import Answer, Table
from durable_core.commit.state import Failure, RunState
from durable_core.engine.inspect import open_run
from durable_core.format.record import Kind
from durable_core.launch.classes import TABLE, F
from durable_core.launch.machine import State
from durable_core.session.cadence import read_history

#: A generation that was replaced, and of which nobody recorded why.
UNRECORDED = ""
#: One that another launch took the run from.
TAKEN_OVER = "takeover"
_UNCLASSED = {UNRECORDED: "not recorded", TAKEN_OVER: "taken over by another launch"}


@dataclass(frozen=True)
class Line:
    """One class. ``count``: generations that it ended; ``share``: of all those; ``mtbf_s``: uptime by one
    of them.

    ``detect_s``: mean from the last sign of life to the record of it, where it was measured; ``repair_s``:
    mean from that record until a later generation was seen to train (RUNNING, or its first commit);
    ``automatic``: the part that the launch which suffered it mended itself; ``lost_steps``: trained, and
    not restored; ``None`` where no record says how far it had come.
    """

    failure: str
    title: str
    count: int
    share: float
    mtbf_s: float | None
    detect_s: float | None
    repair_s: float | None
    automatic: float | None
    lost_steps: int | None


@dataclass(frozen=True)
class _Case:
    failure: str
    detect_s: float | None
    repair_s: float | None
    automatic: bool | None
    lost_steps: int | None


def report(root: str) -> Answer:
    reader = open_run(root)
    trained: dict[int, float] = {}
    launches: dict[int, str] = {}
    taken: set[int] = set()
    for entry in reader.entries():
        record = entry.record
        if entry.void:
            continue
        if record.kind is Kind.GENERATION_STARTED:
            launches[record.generation] = record.launch_id
            if record.payload["takeover"]:
                taken.add(record.generation - 1)
        elif record.kind is Kind.RUN_STATE and record.payload["state"] == State.RUNNING.value:
            trained.setdefault(record.generation, record.time)
    lines = tally(reader.state, trained, launches, taken)
    history = read_history(reader.state)
    interruptions = len(history.interruptions)
    mtbf = history.uptime / interruptions if interruptions else None
    document = {
        "run": reader.state.run_id,
        "uptime_s": history.uptime,
        "interruptions": interruptions,
        "planned": history.planned,
        "mtbf_s": mtbf,
        "classes": [asdict(line) for line in lines],
    }
    head = (
        f"run {reader.state.run_id}: up {_time(history.uptime)}, {interruptions} interruptions, "
        f"{history.planned} planned stops, MTBF {_time(mtbf) or '-'}"
    )
    columns = (
        "class", "what", "count", "share", "MTBF", "until known", "until trained again", "without a person",
        "steps lost",
    )  # fmt: skip
    return Answer(
        document, [head, Table(columns, [_row(line) for line in lines]) if lines else "nothing has failed"]
    )


def tally(
    run: RunState, trained: Mapping[int, float], launches: Mapping[int, str], taken: Collection[int] = ()
) -> tuple[Line, ...]:
    """By class, the most frequent first. ``trained``: when each generation was first seen to train;
    ``launches``: whose it was; ``taken``: those that another launch took the run from."""
    cases: dict[str, list[_Case]] = defaultdict(list)
    for case in _cases(run, _first_signs(run, trained), launches, taken):
        cases[case.failure].append(case)
    total = sum(map(len, cases.values()))
    uptime = read_history(run).uptime
    lines = [_line(failure, found, total, uptime) for failure, found in cases.items()]
    return tuple(sorted(lines, key=lambda line: (-line.count, line.failure)))


def _first_signs(run: RunState, trained: Mapping[int, float]) -> dict[int, float]:
    """When each generation was first known to train."""
    signs = dict(trained)
    for info in run.checkpoints.values():
        if info.was_committed and info.adopted is None:
            signs[info.generation] = min(signs.get(info.generation, info.time), info.time)
    return signs


def _cases(
    run: RunState, signs: Mapping[int, float], launches: Mapping[int, str], taken: Collection[int]
) -> Iterable[_Case]:
    """One for each generation that another replaced, or that failed last; of planned stops only those with
    a record."""
    lines: dict[int, list[Failure]] = defaultdict(list)
    for failure in run.failures:
        if failure.payload["class"] in F.__members__ and "charged" in failure.payload:
            lines[failure.generation].append(failure)
    for life in run.lives:
        g, recorded = life.generation, lines[life.generation]
        over = g != run.generation
        if not recorded and (not over or life.ended or life.drain_step is not None):
            continue
        last = recorded[-1] if recorded else None
        known = life.began if last is None else last.time
        later = [time for other, time in signs.items() if other > g]
        yield _Case(
            str(last.payload["class"]) if last is not None else TAKEN_OVER if g in taken else UNRECORDED,
            None if last is None else _seconds(last.payload.get("detect_s")),
            min(later) - known if later and last is not None else None,
            launches.get(g + 1) == launches.get(g) if over else None,
            _lost(run, g, last),
        )


def _lost(run: RunState, generation: int, last: Failure | None) -> int | None:
    """Steps from the next generation's restore point to where this one was, as far as is known: of one that
    nobody recorded, only that it had come to its last checkpoint."""
    after = next((life for life in run.lives if life.generation == generation + 1), None)
    if after is None:
        return 0
    reached = [
        info.step for info in run.checkpoints.values() if info.generation == generation and info.was_committed
    ]
    step = None if last is None else last.payload["step"]
    was = max((*reached, -1 if step is None else step), default=-1)
    back = 0 if after.restore_point is None else run.checkpoints[after.restore_point].step
    return was - back if was > back else None if last is None else 0


def _line(failure: str, cases: list[_Case], total: int, uptime: float) -> Line:
    automatic = [case.automatic for case in cases if case.automatic is not None]
    lost = [case.lost_steps for case in cases if case.lost_steps is not None]
    title = _UNCLASSED.get(failure) or TABLE[F(failure)].title
    return Line(
        failure,
        title,
        len(cases),
        len(cases) / total,
        uptime / len(cases) if uptime > 0 else None,
        _mean(case.detect_s for case in cases),
        _mean(case.repair_s for case in cases),
        mean(automatic) if automatic else None,
        sum(lost) if lost else None,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _row(line: Line) -> tuple[object, ...]:
    return (
        line.failure or None, line.title, line.count, f"{line.share:.0%}", _time(line.mtbf_s),
        _time(line.detect_s), _time(line.repair_s),
        None if line.automatic is None else f"{line.automatic:.0%}", line.lost_steps,
    )  # fmt: skip


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"
