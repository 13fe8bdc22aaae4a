"""L2. A journal record and its bytes.

Which fields a kind carries is one table, ``PAYLOADS``; who may write it is the fold's business.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from durable_core.errors import FormatError, UnknownVersionError, UsageError
from durable_core.format import canonical, digests, layout
from durable_core.format.fields import UPGRADE

VERSION = 1
#: Bytes of a record; a spec is the largest thing in one.
MAX_BYTES = 4 * 1024 * 1024


class Kind(str, enum.Enum):
    RUN_CREATED = "run.created"
    GENERATION_STARTED = "generation.started"
    CONTROLLER_CLAIMED = "controller.claimed"
    RUN_STATE = "run.state"
    CHECKPOINT_ALLOCATED = "checkpoint.allocated"
    CHECKPOINT_COMMITTED = "checkpoint.committed"
    CHECKPOINT_ABORTED = "checkpoint.aborted"
    FAILURE = "failure"
    PROMISE_LOWERED = "promise.lowered"
    RUN_DRAINING = "run.draining"
    RUN_SUCCEEDED = "run.succeeded"
    RUN_FAILED = "run.failed"
    RUN_FORKED = "run.forked"
    RUN_EXTENDED = "run.extended"
    RUN_CANCELLED = "run.cancelled"
    RUN_SUMMARIZED = "run.summarized"
    TIER_ADDED = "tier.added"
    CHECKPOINT_CORRUPT = "checkpoint.corrupt"
    CHECKPOINT_KNOWN_GOOD = "checkpoint.known_good"
    CHECKPOINT_KNOWN_GOOD_REVOKED = "checkpoint.known_good_revoked"
    CHECKPOINT_PINNED = "checkpoint.pinned"
    CHECKPOINT_UNPINNED = "checkpoint.unpinned"
    CHECKPOINT_RETIRED = "checkpoint.retired"
    QUARANTINE = "quarantine"
    SCRUBBED = "scrubbed"
    NOOP = "noop"


@dataclass(frozen=True)
class Record:
    """One slot of the journal.

    ``seq`` from 0; ``generation`` and ``epoch`` (of the controller) are the tokens it was written
    under; ``launch_id`` names the launch, ``op_id`` (32 hex digits) this one operation over all its
    retries; ``prev`` is the sha256 digest of the bytes of the record before (``""`` for seq 0);
    ``time`` seconds since the epoch, for people.
    """

    seq: int
    generation: int
    epoch: int
    launch_id: str
    op_id: str
    kind: Kind
    payload: Mapping[str, Any] = field(default_factory=dict)
    prev: str = ""
    time: float = 0.0


@dataclass(frozen=True)
class Type:
    """What a field may hold: ``accepts`` decides, ``name`` says it in words."""

    name: str
    accepts: Callable[[Any], bool]

    def or_null(self) -> Type:
        return Type(f"{self.name} or null", lambda value: value is None or self.accepts(value))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_list(value: Any, item: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and all(map(item, value))


def _is_ledger(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return not layout.key_fault(value.get("key")) and _is_digest(value.get("digest"))


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and digests.SHA256.fullmatch(value) is not None


ANY = Type("any JSON value", lambda value: True)
BOOL = Type("true or false", lambda value: isinstance(value, bool))
INT = Type("an integer", lambda value: type(value) is int)
COUNT = Type("an integer >= 0", _is_count)
COUNTS = Type("a list of integers >= 0", lambda value: _is_list(value, _is_count))
TEXT = Type("a string", lambda value: isinstance(value, str))
TEXTS = Type("a list of strings", lambda value: _is_list(value, TEXT.accepts))
OBJECT = Type("an object", lambda value: isinstance(value, Mapping))
DIGEST = Type("sha256:<64 hex digits>", _is_digest)
KEY = Type("a key", lambda value: not layout.key_fault(value))
ROLES = Type("a list of roles", lambda value: _is_list(value, layout.is_role))
LEDGER = Type("{key, digest}", _is_ledger)

_CHECKPOINT = {"c": COUNT}

#: kind -> required field -> type. Further fields are allowed, and kept.
PAYLOADS: dict[Kind, dict[str, Type]] = {
    Kind.RUN_CREATED: {
        "run_id": TEXT, "spec": OBJECT, "spec_digest": DIGEST, "seed": INT, "promise": TEXT,
    },
    Kind.GENERATION_STARTED: {
        "restore_point": COUNT.or_null(), "manifest_digest": DIGEST.or_null(), "members": ROLES,
        "takeover": BOOL,
    },
    Kind.CONTROLLER_CLAIMED: {},
    Kind.RUN_STATE: {"state": TEXT, "reason": TEXT, "evidence": OBJECT},
    Kind.CHECKPOINT_ALLOCATED: {"c": COUNT, "step": COUNT, "parent": COUNT.or_null()},
    Kind.CHECKPOINT_COMMITTED: {
        "c": COUNT, "step": COUNT, "parent": COUNT.or_null(), "manifest": KEY, "manifest_digest": DIGEST,
        "bytes": COUNT, "bytes_written": COUNT, "tiers": TEXTS, "cursor_digest": DIGEST,
        "reuses": COUNTS, "ledger": LEDGER.or_null(),
    },
    Kind.CHECKPOINT_ABORTED: {"c": COUNT, "reason": TEXT},
    Kind.FAILURE: {"class": TEXT, "signature": TEXT, "evidence": ANY, "step": COUNT.or_null()},
    Kind.PROMISE_LOWERED: {"from": TEXT, "to": TEXT, "reason": TEXT},
    Kind.RUN_DRAINING: {"reason": TEXT, "step": COUNT},
    Kind.RUN_SUCCEEDED: {"c": COUNT.or_null(), "target": ANY},
    Kind.RUN_FAILED: {"reason": TEXT},
    Kind.RUN_FORKED: {
        "parent_spec": ANY, "spec": OBJECT, "spec_digest": DIGEST, "diff": ANY, "from": COUNT.or_null(),
        "external": ANY,
    },
    Kind.RUN_EXTENDED: {"target": ANY},
    Kind.RUN_CANCELLED: {"principal": TEXT, "reason": TEXT},
    Kind.RUN_SUMMARIZED: {"end": COUNT, "key": KEY, "digest": DIGEST},
    Kind.TIER_ADDED: _CHECKPOINT,
    Kind.CHECKPOINT_CORRUPT: _CHECKPOINT,
    Kind.CHECKPOINT_KNOWN_GOOD: _CHECKPOINT,
    Kind.CHECKPOINT_KNOWN_GOOD_REVOKED: _CHECKPOINT,
    Kind.CHECKPOINT_PINNED: _CHECKPOINT,
    Kind.CHECKPOINT_UNPINNED: _CHECKPOINT,
    Kind.CHECKPOINT_RETIRED: _CHECKPOINT,
    Kind.QUARANTINE: {},
    Kind.SCRUBBED: _CHECKPOINT,
    Kind.NOOP: {"reason": TEXT},
}

_FIELDS = ("v", "seq", "generation", "epoch", "launch_id", "op_id", "kind", "payload", "prev", "time")


def encode(record: Record) -> bytes:
    """Canonical bytes. ``UsageError`` for a record that ``decode`` would refuse."""
    if fault := _fault(record):
        raise UsageError(f"bad record {record.kind.value}: {fault}")
    data = canonical.dumps(
        {
            "v": VERSION,
            "seq": record.seq,
            "generation": record.generation,
            "epoch": record.epoch,
            "launch_id": record.launch_id,
            "op_id": record.op_id,
            "kind": record.kind.value,
            "payload": dict(record.payload),
            "prev": record.prev,
            "time": record.time,
        }
    )
    if len(data) > MAX_BYTES:
        raise UsageError(f"record {record.kind.value} has {len(data)} bytes, more than {MAX_BYTES}")
    return data


def decode(data: bytes, *, key: str) -> Record:
    """The record in the slot ``key``.

    Raises ``UnknownVersionError`` for a version or kind this code does not know, ``FormatError`` for
    everything else that is wrong, a ``seq`` other than the slot's included.
    """
    document = canonical.loads(data, key=key, limit=MAX_BYTES)
    if not isinstance(document, dict):
        raise FormatError(key, "not an object")
    if document.get("v") != VERSION or type(document["v"]) is not int:
        raise UnknownVersionError(key, f"record version {document.get('v')!r}", hint=UPGRADE)
    if set(document) != set(_FIELDS):
        raise FormatError(key, f"fields {sorted(set(document) ^ set(_FIELDS))} missing or unknown")
    try:
        kind = Kind(document["kind"])
    except ValueError:
        raise UnknownVersionError(key, f"record kind {document['kind']!r}", hint=UPGRADE) from None
    record = Record(**{name: document[name] for name in _FIELDS if name not in ("v", "kind")}, kind=kind)
    if fault := _fault(record):
        raise FormatError(key, fault)
    slot = layout.parse_journal_key(key)
    if slot is not None and slot != record.seq:
        raise FormatError(key, f"holds record {record.seq}")
    return record


def record_digest(data: bytes) -> str:
    """What the next record's ``prev`` must say, for the bytes of this one."""
    return digests.sha256(data)


def _fault(record: Record) -> str:
    """What is wrong with the fields of ``record``; ``""`` when nothing is."""
    for name in ("seq", "generation", "epoch"):
        if not _is_count(getattr(record, name)):
            return f"{name} is not an integer >= 0"
    if not isinstance(record.launch_id, str) or not 0 < len(record.launch_id) <= 128:
        return "launch_id is not a string of 1 to 128 characters"
    if not layout.is_op_id(record.op_id):
        return "op_id is not 32 hex digits"
    if not isinstance(record.time, (int, float)) or isinstance(record.time, bool):
        return "time is not a number"
    if not math.isfinite(record.time):
        return "time is not finite"
    if (record.prev != "") if record.seq == 0 else not _is_digest(record.prev):
        return "prev is not the digest of the record before"
    if not isinstance(record.payload, Mapping):
        return "payload is not an object"
    for name, expected in PAYLOADS[record.kind].items():
        if name not in record.payload:
            return f"payload lacks {name!r}"
        if not expected.accepts(record.payload[name]):
            return f"payload field {name!r} is not {expected.name}"
    return ""
