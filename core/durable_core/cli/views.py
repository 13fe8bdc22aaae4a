"""L6. Commands that only look: ``ls``, ``show``, ``journal``; ``status`` is a module of its own."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from durable_core.cli.output import Answer, Table, human_bytes
from durable_core.commit.state import CheckpointInfo, RunState
from durable_core.engine.inspect import Reader, open_run
from durable_core.format.manifest import Manifest
from durable_core.types import CheckpointState


def ls(root: str) -> Answer:
    reader = open_run(root)
    lineage = frozenset(reader.state.lineage())
    rows = [_row(reader, info, lineage) for info in reader.committed()]
    document = {
        "run": reader.state.run_id,
        "generation": reader.state.generation,
        "head": reader.state.head,
        "checkpoints": rows,
    }
    table = Table(
        ("c", "step", "gen", "state", "bytes", "written", "tiers", "time"),
        [
            (
                row["c"], row["step"], row["generation"], _marks(row), human_bytes(row["bytes"]),
                human_bytes(row["bytes_written"]), ",".join(row["tiers"]), when(row["time"]),
            )
            for row in rows
        ],
    )  # fmt: skip
    return Answer(document, [_headline(reader.state), table if rows else "nothing committed yet"])


def show(root: str, c: int | None) -> Answer:
    reader = open_run(root)
    info = reader.checkpoint(c)
    lineage = frozenset(reader.state.lineage())
    manifest = reader.manifest(info)
    document = {
        **_row(reader, info, lineage),
        "parent": info.parent,
        "reuses": list(info.reuses),
        "manifest_digest": info.manifest_digest,
        "note": info.note,
        **manifest_json(manifest),
    }
    tensors = [
        (
            t["key"],
            t["dtype"],
            "x".join(map(str, t["shape"])) or "scalar",
            human_bytes(t["bytes"]),
            t["slices"],
        )
        for t in document["tensors"]
    ]
    objects = [(o["key"], human_bytes(o["bytes"])) for o in document["objects"]]
    return Answer(
        document,
        [
            f"c{info.c}  step {info.step}  generation {info.generation}  {_marks(document)}",
            Table(("tensor", "dtype", "shape", "bytes", "slices"), tensors),
            Table(("object", "bytes"), objects),
        ],
    )


def journal(root: str) -> Answer:
    reader = open_run(root)
    entries = list(reader.entries())
    document = {
        "run": reader.state.run_id,
        "records": [
            {
                "seq": e.record.seq, "kind": e.record.kind.value, "generation": e.record.generation,
                "epoch": e.record.epoch, "launch_id": e.record.launch_id, "op_id": e.record.op_id,
                "time": e.record.time, "payload": dict(e.record.payload), "void": e.void or None,
            }
            for e in entries
        ],
    }  # fmt: skip
    rows = [
        (
            e.record.seq, when(e.record.time), e.record.generation, e.record.kind.value,
            f"VOID: {e.void}" if e.void else _gist(e.record.payload),
        )
        for e in entries
    ]  # fmt: skip
    return Answer(document, [Table(("seq", "time", "gen", "kind", "payload"), rows)])


# --- words -----------------------------------------------------------------------------------


def run_state(state: RunState, alive: bool) -> str:
    """One word for where a run stands."""
    if state.terminal is not None:
        return state.terminal.outcome
    if state.generation == 0:
        return "created"
    if alive:
        return "running"
    if state.draining is None or state.head_step is None:
        return "stopped"
    return "drained" if state.head_step >= state.draining["step"] else "stopped"


def checkpoint_state(info: CheckpointInfo, lineage: frozenset[int]) -> str:
    """``committed``, ``corrupt``, ``retired`` or ``abandoned`` (committed, off the head's lineage)."""
    if info.usable and info.c not in lineage:
        return "abandoned"
    return info.state.value


def _row(reader: Reader, info: CheckpointInfo, lineage: frozenset[int]) -> dict[str, Any]:
    return {
        "c": info.c,
        "step": info.step,
        "generation": info.generation,
        "state": checkpoint_state(info, lineage),
        "tiers": list(info.tiers),
        "elsewhere": reader.is_elsewhere(info) and info.state is not CheckpointState.RETIRED,
        "bytes": info.bytes,
        "bytes_written": info.bytes_written,
        "manifest": info.manifest,
        "time": info.time,
        "pinned": info.pinned,
        "known_good": info.known_good,
    }


def _marks(row: dict[str, Any]) -> str:
    marks = [name.replace("_", " ") for name in ("pinned", "known_good", "elsewhere") if row[name]]
    return str(row["state"]) + (f" ({', '.join(marks)})" if marks else "")


def _headline(state: RunState) -> str:
    head = "nothing committed" if state.head is None else f"head c{state.head} at step {state.head_step}"
    ended = f", {state.terminal.outcome}" if state.terminal else ""
    return f"run {state.run_id}  generation {state.generation}  {head}{ended}"


def _gist(payload: Any) -> str:
    """A payload in a line: scalars as they are, the rest by its name only."""
    parts = []
    for name, value in payload.items():
        if isinstance(value, (dict, list)) and value:
            parts.append(f"{name}=…")
        elif value not in (None, "", [], {}):
            parts.append(f"{name}={str(value)[:40]}")
    return " ".join(parts)


def brief(value: Any) -> str | None:
    """A value of a document as one cell."""
    if isinstance(value, dict):
        return _gist(value)
    if isinstance(value, list):
        return ", ".join(brief(item) or "-" for item in value[-3:]) + (
            " (newest 3)" if len(value) > 3 else ""
        )
    return None if value is None else str(value)


def when(seconds: float) -> str:
    """Wall-clock seconds as local time, for people."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    """What a manifest names: tensors, objects and values, without the digests."""
    return {
        "run": manifest.run_id,
        "promise": manifest.promise.value,
        "roles": list(manifest.roles),
        "cursor": manifest.cursor,
        "counters": dict(manifest.counters),
        "fingerprint": dict(manifest.fingerprint),
        "dataset": manifest.dataset,
        "integrity_level": manifest.integrity_level,
        "consistent": manifest.consistent,
        "documents": [{"name": name, "role": role} for name, role in sorted(manifest.documents)],
        "objects": [{"key": o.key, "bytes": o.nbytes} for o in manifest.objects],
        "tensors": [
            {
                "key": key,
                "dtype": entry.dtype,
                "shape": list(entry.global_shape),
                "bytes": sum(piece.info.nbytes for piece in entry.slices),
                "slices": len(entry.slices),
            }
            for key, entry in sorted(manifest.tensors.items())
        ],
    }
