"""L6. ``durable status``: where a run stands, and whether it is slow or damaged.

Three sources, and each says what it knows: the journal, which is true and may be behind; the controller's
last report, a hint that may be stale; the owner's heartbeat. What is not known is said to be unknown.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from durable_core.cli import standing
from durable_core.cli.output import Answer
from durable_core.cli.views import run_state
from durable_core.clock import SystemClock
from durable_core.commit.state import CheckpointInfo, RunState
from durable_core.detect.policy import LIMITS, Integrity, coverage
from durable_core.engine import heartbeat
from durable_core.engine.inspect import Reader, open_run
from durable_core.errors import DurableError
from durable_core.launch import declared, past, retry
from durable_core.launch.classes import Unit
from durable_core.launch.controller import report
from durable_core.launch.controller.report import Report
from durable_core.launch.machine import ACTIVE, State, current
from durable_core.launch.quarantine import quarantined
from durable_core.spec.codec import decode


def status(root: str) -> Answer:
    reader = open_run(root)
    state, now = reader.state, SystemClock().now()
    owner = heartbeat.read(reader.tier)
    alive, why = owner.alive(now) if owner else (False, "no heartbeat")
    told = _report(reader, now)
    word = _word(state, told, alive, now)
    document = {
        "run": state.run_id,
        "state": word,
        "health": _health(state, told, word, now),
        "generation": state.generation,
        "launch_id": state.launch_id,
        "members": list(state.members),
        "owner": {"alive": alive, "reason": why},
        "promise": state.promise.value,
        "seed": state.seed,
        "target": state.target,
        "head": state.head,
        "step": state.head_step,
        "newest_durable": _newest(state, now),
        "recoverable": _recoverable(state),
        "restore_point": state.restore_point,
        "commits": state.commits,
        "failures": [
            {"seq": f.seq, "generation": f.generation, "time": f.time, **f.payload} for f in state.failures
        ],
        "budget": _budget(state),
        "quarantined": {
            unit.value: sorted(quarantined(state)[unit]) for unit in Unit if quarantined(state)[unit]
        },
        "draining": state.draining,
        "terminal": state.terminal and {"outcome": state.terminal.outcome, **state.terminal.detail},
        "summary": state.summary and {"key": state.summary.key, "digest": state.summary.digest},
        "in_doubt": reader.view.doubt.seq if reader.view.doubt else None,
        "voids": len(reader.view.voids),
        "data": _data(state),
        "integrity": _integrity(state),
        "controller": None if told is None else _controller(state, told, now),
    }
    human = standing.shown(document)
    try:
        sources = _mixture(reader)
    except (
        DurableError
    ) as error:  # a status is asked for when something is wrong: it tells, and does not fail
        return Answer({**document, "unreadable": error.message}, [*human, f"unreadable: {error.message}"])
    if sources is None:
        return Answer(document, human)
    return Answer({**document, "mixture": sources}, [*human, standing.mixture(sources)])


# --- where it stands -------------------------------------------------------------------------


def _report(reader: Reader, now: float) -> Report | None:
    """The controller's, if it is about the launch that has the run; ``None`` for runs without one."""
    state = reader.state
    told = report.read(reader.tier) if state.reconciler else None
    if told is not None and told.document.get("launch_id") == state.launch_id:
        return told
    # it has looked after this generation, and its report is gone
    return None if state.phase is None else Report({"launch_id": state.launch_id}, state.phase.time)


def _is_watched(told: Report | None, now: float) -> bool:
    """A report outlives the controller that wrote it; on its own host, it is seen that that one is gone."""
    return told is not None and not told.stale(now) and not _orphaned(told.document)


def _orphaned(report: Mapping[str, Any]) -> bool:
    pid = report.get("pid")
    if not isinstance(pid, int) or report.get("host") != socket.gethostname():
        return False
    return heartbeat.process_start(pid) is None


def _word(state: RunState, told: Report | None, alive: bool, now: float) -> str:
    """The state of the machine while somebody looks after it; else what the heartbeat shows."""
    if told is None or not (alive or _is_watched(told, now)):
        return run_state(state, alive)
    return current(state).value


#: What each word means, for people.
_HEALTH = {
    "healthy": "every invariant holds",
    "slow": "every invariant holds, and some rank holds the others up",
    "damaged": "an invariant is violated, or the group is being ended or started again",
    "starting": "the group is coming up; nothing is proven yet",
    "stopping": "a planned stop is under way",
    "unknown": "nobody reports on it",
    "unwatched": "no controller looks after it",
    "stopped": "nobody trains it",
    "over": "the run has ended",
}
_GO_ON = "start the same command to go on"


def _health(state: RunState, told: Report | None, word: str, now: float) -> dict[str, Any]:
    """Slow or damaged (REC-07). ``word``: where it stands."""
    found, why = _judged(state, told, word, now)
    return {"is": found, "means": _HEALTH[found], "because": why}


def _judged(state: RunState, told: Report | None, word: str, now: float) -> tuple[str, str]:
    where = current(state)
    if state.terminal is not None:
        return "over", state.terminal.outcome
    if word == "drained":
        return "stopped", f"stopped as planned at step {state.head_step}; {_GO_ON}"
    if word == "stopped":
        return "stopped", f"nobody trains it; {_GO_ON}"
    if told is None:
        return "unwatched", "the launcher keeps one"
    if told.stale(now) or not told.about(state.generation):
        return "unknown", f"the controller has not reported for {told.age_s(now):.0f} s"
    violated = told.rows("violations")
    if violated:
        return "damaged", str(violated[0].get("reason", ""))
    said = "" if state.phase is None else str(state.phase.payload["reason"])
    if where is State.DRAINING:
        return "stopping", said
    if where not in ACTIVE or where is State.SUSPECT:
        return "damaged", f"{where.value}: {said}"
    if where is not State.RUNNING:
        return "starting", where.value
    slow = told.rows("stragglers")
    return ("slow", str(slow[0].get("reason", ""))) if slow else ("healthy", "")


def _controller(state: RunState, told: Report, now: float) -> dict[str, Any]:
    document, phase = told.document, state.phase
    since = phase.time if phase is not None else document.get("since")
    return {
        "state": current(state).value,
        "since": since if state.terminal is None else None,
        "reason": "" if phase is None else phase.payload["reason"],
        "evidence": {} if phase is None else phase.payload["evidence"],
        "report_age_s": round(told.age_s(now), 1),
        "stale": told.stale(now),
        "trouble": document.get("trouble", ""),
        "violations": told.rows("violations"),
        "stragglers": told.rows("stragglers"),
        "ranks": told.rows("members"),
        "agents": document.get("agents", {}),
        "standbys": sum(
            int(agent.get("standbys", 0))
            for agent in dict(document.get("agents", {})).values() if isinstance(agent, Mapping)
        ),
    }  # fmt: skip


# --- what is kept ----------------------------------------------------------------------------


def _usable(state: RunState) -> list[CheckpointInfo]:
    """On the lineage of the head, newest first."""
    return [info for c in reversed(state.lineage()) if (info := state.checkpoints[c]).usable]


def _newest(state: RunState, now: float) -> dict[str, Any] | None:
    usable = _usable(state)
    if not usable:
        return None
    info = usable[0]
    return {"c": info.c, "step": info.step, "time": info.time, "age_s": round(max(0.0, now - info.time), 1)}


def _recoverable(state: RunState) -> dict[str, int]:
    """By tier, the newest step that the journal knows there."""
    found: dict[str, int] = {}
    for info in _usable(state):
        for tier in info.tiers:
            found.setdefault(tier, info.step)
    return found


def _budget(state: RunState) -> dict[str, Any]:
    """What failures cost, and what is left: a failure is forgiven once the run has come beyond it."""
    standing = past.streak(state)
    policy, source = retry.Policy(), "default"
    # A run of an older or newer library keeps the default; its launcher's flags are not in the journal.
    with suppress(DurableError):
        policy, source = declared.policy(decode(state.spec)), "spec"
    return {
        "failures": len(state.failures),
        "by_class": dict(sorted(Counter(str(f.payload["class"]) for f in state.failures).items())),
        "unforgiven": len(standing),
        "charged": sum(one.charged for one in standing),
        "restarts": policy.restarts,
        "from": source,
    }


def _data(state: RunState) -> dict[str, Any]:
    """Whether what was consumed can be proved; progress and a smooth loss prove nothing of it (OBS-06)."""
    lineage = [state.checkpoints[c] for c in state.lineage()]
    without = [info.c for info in lineage if info.ledger is None and info.step > 0]
    return {
        "ledger": bool(lineage) and not without, "without_ledger": without, "through_step": state.head_step,
        "proved_by": "durable audit",
    }  # fmt: skip


def _integrity(state: RunState) -> dict[str, Any]:
    """What speaks for the values, and what was looked for at all (SDC-07)."""
    rows = list(state.checkpoints.values())
    good = [info for info in rows if info.known_good]
    newest = good[-1] if good else None
    evidence = newest.evidence if newest is not None and isinstance(newest.evidence, Mapping) else {}
    named = [dict(one) for one in evidence.get("detectors", ()) if isinstance(one, Mapping)]
    on = {one.get("name") for one in named}
    return {
        "corrupt": [info.c for info in rows if info.state.value == "corrupt"],
        "numeric_findings": [f.seq for f in state.failures if f.payload["class"] in ("F12", "F13")],
        "known_good": None if newest is None else {"c": newest.c, "step": newest.step},
        "scrubs": state.scrubs,
        "detectors": [
            # one without a window vindicates nothing, so that no mark names it
            {**asdict(row), "on": row.on if not row.window else row.detector in on if on else None}
            for row in coverage(Integrity())
        ],
        "limits": LIMITS,
    }  # fmt: skip


# --- mixtures --------------------------------------------------------------------------------


def _mixture(reader: Reader) -> dict[str, dict[str, Any]] | None:
    """By source, what the mixture was to draw and had drawn at the newest checkpoint; None without one."""
    if reader.state.head is None:
        return None
    position = reader.manifest(reader.checkpoint(reader.state.head)).cursor or {}
    if "plan" not in position:
        return None
    from durable_core.data.mixture.report import mixture_in  # numpy takes longer than all the rest
    from durable_core.data.mixture.report import report as drawn

    found = mixture_in(position)
    if found is None:
        return None
    policy, state = found
    return {
        name: {**vars(source), "unit": policy.unit, "tokens": source.units if policy.counts_tokens else None}
        for name, source in drawn(policy, state).items()
    }
