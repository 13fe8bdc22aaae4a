"""L5. What has failed before, read from the journal: the lines that a launcher wrote, and which are
forgiven.

A failure is forgiven once a later generation has committed a step beyond it: then its cause was gone
around. So a run that makes progress is never given up for its age, and one that makes none always comes to
its budget's end.

What ends a group is seen by the agents of all its nodes, and each may record it. The k-th lines that
different recorders wrote of one generation are one incident: the line that says most of its cause counts, and
the others are its echoes. (One recorder may write several of a generation: of a rendezvous that failed after
it, none is claimed.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from durable_core.commit.state import Failure, RunState
from durable_core.launch.classes import PRECEDENCE, F
from durable_core.launch.evidence import Numeric


@dataclass(frozen=True)
class Past:
    """One failure that a launcher acted on. ``beyond``: a commit of a step larger than this forgives it;
    ``time``: wall clock of the record; ``by``: who recorded it; ``secondary``: it tells of a peer's end;
    ``echo``: of an incident that another line stands for, so it is charged to nobody."""

    failure: F
    signature: str
    step: int | None
    beyond: int
    generation: int
    time: float
    charged: bool
    place: str = ""
    domain: str = ""
    object: str = ""
    forgiven: bool = False
    by: str = ""
    secondary: bool = False
    echo: bool = False


def past(state: RunState, by: str | None = None) -> tuple[Past, ...]:
    """The failures that launchers recorded, oldest first. What workers recorded of themselves (a save that
    failed, a finding) ended no generation, and is not among them.

    ``by``: who is about to record what ended the live generation; what others have recorded of the same
    incident is an echo of that.
    """
    best = _best_after(state)
    lines = [_line(line, best) for line in state.failures if _is_ours(line)]
    incidents: dict[tuple[int, int], list[int]] = defaultdict(list)
    written: dict[tuple[int, str], int] = defaultdict(int)
    for at, one in enumerate(lines):
        of = (one.generation, one.by)
        incidents[one.generation, written[of]].append(at)
        written[of] += 1
    now = None if by is None else (state.generation, written[state.generation, by])
    for incident, seen in incidents.items():
        counts = None if incident == now else min(seen, key=lambda at: _order(lines[at]))
        for at in seen:
            if at != counts:
                lines[at] = replace(lines[at], echo=True, charged=False)
    return tuple(lines)


def streak(state: RunState) -> tuple[Past, ...]:
    """Those that are not forgiven, one for each incident."""
    return tuple(one for one in past(state) if not (one.forgiven or one.echo))


def _order(one: Past) -> tuple[bool, int]:
    """As ``classify`` chooses among the ends of one node; of equal ones the first counts."""
    return one.secondary, PRECEDENCE.index(one.failure)


def threshold(state: RunState, step: int | None) -> int:
    """The step that must be passed for a failure at ``step`` to be forgiven; of one at no known step, the
    head's."""
    if step is not None:
        return step
    return -1 if state.head_step is None else state.head_step


def finding(state: RunState) -> Numeric | None:
    """What workers of the live generation found in their numbers and ended for, the earliest onset first;
    it is in the journal before they end. What a launcher has acted on since is over."""
    found: list[Numeric] = []
    for line in state.failures:
        if line.generation != state.generation:
            continue
        if _is_ours(line):
            found.clear()
        elif _stops(line):
            proof = line.payload["class"] == F.F13.value
            found.append(Numeric(str(line.payload["signature"]), line.payload["step"], proof=proof))
    return min(found, key=lambda one: (one.step, not one.proof), default=None)


def _stops(line: Failure) -> bool:
    payload = line.payload
    numeric = payload["class"] in (F.F12.value, F.F13.value) and payload["step"] is not None
    evidence = payload["evidence"]
    return (
        numeric and not _is_ours(line) and isinstance(evidence, Mapping) and evidence.get("action") == "stop"
    )


def _line(record: Failure, best: Mapping[int, int]) -> Past:
    payload = record.payload
    beyond = int(payload["beyond"])
    return Past(
        F(payload["class"]),
        str(payload["signature"]),
        payload["step"],
        beyond,
        record.generation,
        record.time,
        bool(payload.get("charged", True)),
        str(payload.get("placement", "")),
        str(payload.get("domain", "")),
        str(payload.get("object", "")),
        best.get(record.generation, -1) > beyond,
        str(payload.get("by", "")),
        payload.get("secondary") is True,
    )


def _is_ours(record: Failure) -> bool:
    return type(record.payload.get("beyond")) is int and record.payload["class"] in F.__members__


def _best_after(state: RunState) -> dict[int, int]:
    """For each generation: the largest step that any later one has committed."""
    best: dict[int, int] = {}
    largest = -1
    committed = dict(_committed(state))
    for generation in range(state.generation, -1, -1):
        best[generation] = largest
        largest = max(largest, committed.get(generation, -1))
    return best


def _committed(state: RunState) -> Iterator[tuple[int, int]]:
    steps: dict[int, int] = {}
    for info in state.checkpoints.values():
        if info.was_committed:
            steps[info.generation] = max(steps.get(info.generation, -1), info.step)
    yield from steps.items()
