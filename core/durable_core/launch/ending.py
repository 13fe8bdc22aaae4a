"""L5. What is left of a run when it has ended: one document that says what came of it (LIFE-08).

It is written under the digest of its bytes, then named by ``run.summarized``. Killed in between, there is an
object that nothing names; the next who looks writes it again and names it. So twice is once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from durable_core.clock import Clock
from durable_core.commit.claim import maintain
from durable_core.commit.journal import replay
from durable_core.commit.state import CheckpointInfo, Failure, Life, RunState, Summary
from durable_core.engine.audit import audit
from durable_core.engine.inspect import Reader, open_tier
from durable_core.engine.performer import Performer
from durable_core.errors import CorruptError, DigestMismatchError, NotFoundError, RecordRefused
from durable_core.format import canonical, digests, layout
from durable_core.format.record import Kind, decode
from durable_core.tier.base import Tier

VERSION = 1
#: A longer lineage is not audited here: each checkpoint costs a few reads, and somebody waits.
AUDITED = 1000


@dataclass(frozen=True)
class Times:
    """Wall-clock seconds of the records that began and ended the run."""

    begun: float
    ended: float


def complete(tier: Tier, clock: Clock, launch: str) -> Summary | None:
    """Write the post-run manifest of a run that has ended, unless there is one; ``None``: it has not ended.

    ``launch``: the ``launch_id`` of the record. Raises ``RunNotFoundError``, ``LostSlot`` and the tier's
    errors.
    """
    reader = open_tier(tier, clock=clock)
    over = reader.state.terminal
    if over is None or reader.state.summary is not None:
        return reader.state.summary
    data = canonical.dumps(document(reader.state, _times(reader), _artifact(reader), _data(reader)))
    digest = digests.sha256(data)
    key = layout.summary_key(digest)
    tier.put_if_absent(key, data)
    performer, payload = Performer(tier, clock), {"end": over.seq, "key": key, "digest": digest}
    try:
        return performer.run(maintain(reader.view, Kind.RUN_SUMMARIZED, payload, launch)).state.summary
    except RecordRefused:  # another was quicker, or the run goes on
        return performer.run(replay(reader.view)).state.summary


def read(reader: Reader) -> dict[str, Any] | None:
    """The post-run manifest that the journal names. Raises ``ObjectNotFoundError``,
    ``DigestMismatchError``."""
    named = reader.state.summary
    if named is None:
        return None
    data = reader.tier.get(named.key)
    if digests.sha256(data) != named.digest:
        raise DigestMismatchError(named.key, f"is not the one that the journal names ({named.digest})")
    found: dict[str, Any] = canonical.loads(data, key=named.key)
    return found


def document(
    state: RunState, times: Times, artifact: Mapping[str, Any] | None, data: Mapping[str, Any]
) -> dict[str, Any]:
    """What it says. ``artifact``: the final checkpoint; ``data``: what was consumed."""
    over = state.terminal
    assert over is not None
    return {
        "v": VERSION,
        "run": state.run_id,
        "outcome": over.outcome,
        "detail": dict(over.detail),
        "end": over.seq,
        "spec_digest": state.spec_digest,
        "forks": [{"generation": fork.generation, "spec_digest": fork.spec_digest} for fork in state.forks],
        "promise": state.promise.value,
        "seed": state.seed,
        "target": state.target,
        "artifact": artifact,
        "data": data,
        "incidents": [_incident(failure) for failure in state.failures],
        "quarantines": [dict(each) for each in state.quarantines],
        "generations": [_generation(life) for life in state.lives],
        "retained": [_retained(info) for info in state.checkpoints.values() if info.held],
        "cost": {
            "begun": times.begun,
            "ended": times.ended,
            "wall_s": times.ended - times.begun,  # also what lies between a stop and the next start
            "up_s": sum(seconds for _, seconds in _lived(state, times.ended)),
            "device_s": device_seconds(state, times.ended),
            "bytes_written": sum(info.bytes_written for info in state.checkpoints.values()),
        },
    }


def device_seconds(state: RunState, ended: float) -> float:
    """Seconds that members held their devices: of each generation from its claim to its last sign in the
    journal (a commit, a failure, its success), times its members. What a generation did after that is not
    seen: a run may be cancelled long after it was stopped. ``ended``: when the run was."""
    return sum(seconds * len(life.members) for life, seconds in _lived(state, ended))


def wall_seconds(state: RunState, ended: float) -> float:
    """Seconds that the run had workers, seen as in ``device_seconds``; not what lies between a stop and the
    next start."""
    return sum(seconds for _, seconds in _lived(state, ended))


def _lived(state: RunState, ended: float) -> list[tuple[Life, float]]:
    last = {life.generation: life.began for life in state.lives}
    signs = [(info.generation, info.time) for info in state.checkpoints.values() if info.was_committed]
    signs += [(failure.generation, failure.time) for failure in state.failures]
    if state.terminal is not None and state.terminal.outcome == "succeeded":
        signs.append((state.generation, ended))
    for generation, time in signs:
        if generation in last:
            last[generation] = max(last[generation], time)
    return [(life, last[life.generation] - life.began) for life in state.lives]


def _incident(failure: Failure) -> dict[str, Any]:
    """In a line; the evidence stays in the journal."""
    told = {name: value for name, value in failure.payload.items() if name != "evidence"}
    return {"seq": failure.seq, "generation": failure.generation, "time": failure.time, **told}


def _generation(life: Life) -> dict[str, Any]:
    return {
        "generation": life.generation, "began": life.began, "members": list(life.members),
        "drained_at": life.drain_step,
    }  # fmt: skip


def _retained(info: CheckpointInfo) -> dict[str, Any]:
    return {
        "c": info.c, "step": info.step, "known_good": info.known_good, "pinned": info.pinned,
        "tiers": list(info.tiers),
    }  # fmt: skip


def _times(reader: Reader) -> Times:
    over = reader.state.terminal
    assert over is not None
    begun, ended = (
        decode(reader.tier.get(key), key=key).time
        for key in (layout.journal_key(0), layout.journal_key(over.seq))
    )
    return Times(begun, ended)


def _artifact(reader: Reader) -> dict[str, Any] | None:
    """The final checkpoint: of a run that succeeded the one it named, else the newest of its lineage."""
    state = reader.state
    c = state.terminal.c if state.terminal is not None and state.terminal.c is not None else state.head
    if c is None:
        return None
    info = state.checkpoints[c]
    named = {
        "c": c, "step": info.step, "generation": info.generation, "manifest": info.manifest,
        "manifest_digest": info.manifest_digest, "bytes": info.bytes, "tiers": list(info.tiers),
        "state": info.state.value, "known_good": info.known_good,
    }  # fmt: skip
    try:
        manifest = reader.manifest(info)
    except (CorruptError, NotFoundError) as error:
        return {**named, "unreadable": error.message}
    return {
        **named, "software": dict(manifest.fingerprint), "dataset": manifest.dataset,
        "counters": dict(manifest.counters), "roles": list(manifest.roles),
    }  # fmt: skip


def _data(reader: Reader) -> dict[str, Any]:
    """What the ledger of the lineage proves of the samples; why not, where it is not asked."""
    length = len(reader.state.lineage())
    if not length:
        return {"audited": False, "why": "nothing is committed"}
    if length > AUDITED:
        return {"audited": False, "why": f"{length} checkpoints; durable audit tells"}
    try:
        found = audit(reader)
    except (CorruptError, NotFoundError) as error:
        return {"audited": False, "why": error.message}
    return {
        "audited": True, "steps": found.steps, "samples": found.consumption.samples,
        "by_source": dict(found.by_source), "repeated": found.consumption.repeated,
        "skipped": found.consumption.skipped, "proven": found.proven, "unverified": found.unverified,
        "notes": list(found.notes),
    }  # fmt: skip
