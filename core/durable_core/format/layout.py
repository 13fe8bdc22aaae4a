"""L2. Every key name, made and parsed in one place.

A key is segments of ``[a-z0-9._-]+`` joined by ``/``: no ``..``, no leading ``/``, at most 512
characters, 255 in a segment. The first segment ``tmp`` belongs to the POSIX tier and is never a key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from durable_core.errors import FormatError, UsageError

MAX_KEY = 512
MAX_SEGMENT = 255

JOURNAL = "journal/"
CHECKPOINTS = "checkpoints/"
LEDGER = "ledger/"
SNAPSHOTS = "snapshots/"
HINTS = "hints/"
TMP = "tmp/"
OWNER_HINT = "hints/owner.json"
CONTROLLER_HINT = "hints/controller.json"
INCIDENTS = "incidents/"
SUMMARIES = "summaries/"

_SEGMENT = r"[a-z0-9._-]+"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_ROLE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_OP_ID = re.compile(r"[0-9a-f]{32}")
_NONCE = re.compile(r"[0-9a-f]{8}")
_JOURNAL_KEY = re.compile(r"journal/([0-9]{20})\.json")
_NAME = r"g([0-9]{6})-c([0-9]{8})-([0-9a-f]{8})"
_CHECKPOINT_KEY = re.compile(rf"(checkpoints|ledger)/{_NAME}/(.+)")
_CHECKPOINT_FILE = re.compile(
    r"(offer|receipt)-(.+)\.json|(shard|lasting)-(.+)\.safetensors|(manifest)\.json|(copied)-[a-z]+-g[0-9]{6}-(.+)\.json"
)
_TIER = re.compile(r"[a-z]{1,32}")
_SNAPSHOT_KEY = re.compile(r"snapshots/g([0-9]{6})-s([0-9]{12})/(.+)-([0-9a-f]{8})\.slot")
_LEDGER_FILE = re.compile(r"(index)\.json|(.+)\.safetensors")


def key_fault(key: object) -> str:
    """Why ``key`` is no key; ``""`` when it is one."""
    if not isinstance(key, str):
        return f"{type(key).__name__} is not a key"
    if len(key) > MAX_KEY:
        return f"longer than {MAX_KEY} characters"
    if not _KEY.fullmatch(key):
        return "not segments of [a-z0-9._-] joined by '/'"
    if any(len(segment) > MAX_SEGMENT for segment in key.split("/")):
        return f"a segment of more than {MAX_SEGMENT} characters"
    if any(segment.strip(".") == "" for segment in key.split("/")) or ".." in key:
        return "a segment of dots only, or '..'"
    if key == "tmp" or key.startswith(TMP):
        return "'tmp' is reserved"
    return ""


def check_key(key: str) -> str:
    """``key`` itself; ``UsageError`` when it is none."""
    if fault := key_fault(key):
        raise UsageError(f"bad key {key!r}: {fault}")
    return key


def check_prefix(prefix: str) -> str:
    """``prefix`` itself: empty, or a key, with or without one ``/`` at its end; else ``UsageError``."""
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def is_role(role: object) -> bool:
    """A logical data-parallel role such as ``dp0``: at most 64 of ``[a-z0-9._-]``."""
    return isinstance(role, str) and _ROLE.fullmatch(role) is not None and ".." not in role


def is_op_id(op_id: object) -> bool:
    """32 hex digits, as ``Clock.new_id`` makes them."""
    return isinstance(op_id, str) and _OP_ID.fullmatch(op_id) is not None


def incident_key(generation: int, op_id: str) -> str:
    """Key of what was seen of one failure, or of one move of the run's state."""
    return f"{INCIDENTS}g{_digits(generation, 6, 'generation')}-{op_id}.json"


def summary_key(digest: str) -> str:
    """Key of a post-run manifest by the sha256 digest of its bytes."""
    return f"{SUMMARIES}{digest.removeprefix('sha256:')}.json"


def journal_key(seq: int) -> str:
    """Key of the journal slot ``seq`` (from 0)."""
    return f"journal/{_digits(seq, 20, 'seq')}.json"


def parse_journal_key(key: str) -> int | None:
    """The slot number of a journal key; ``None`` for any other key."""
    match = _JOURNAL_KEY.fullmatch(key)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class CheckpointName:
    """The keys of one attempt at one checkpoint: generation, number and the allocation's nonce."""

    generation: int
    c: int
    nonce: str

    def __post_init__(self) -> None:
        _digits(self.generation, 6, "generation")
        _digits(self.c, 8, "c")
        if not _NONCE.fullmatch(self.nonce):
            raise UsageError(f"nonce {self.nonce!r} is not 8 hex digits")

    @property
    def stem(self) -> str:
        return f"g{self.generation:06d}-c{self.c:08d}-{self.nonce}"

    @property
    def prefix(self) -> str:
        """Ends with ``/``."""
        return f"{CHECKPOINTS}{self.stem}/"

    @property
    def ledger_prefix(self) -> str:
        """Ends with ``/``."""
        return f"{LEDGER}{self.stem}/"

    @property
    def manifest(self) -> str:
        return f"{self.prefix}manifest.json"

    @property
    def ledger_index(self) -> str:
        return f"{self.ledger_prefix}index.json"

    def offer(self, role: str) -> str:
        return f"{self.prefix}offer-{_role(role)}.json"

    def shard(self, role: str) -> str:
        return f"{self.prefix}shard-{_role(role)}.safetensors"

    def lasting(self, role: str) -> str:
        """What ``role`` wrote although it had not changed: it will live longer than what is in the shard."""
        return f"{self.prefix}lasting-{_role(role)}.safetensors"

    def receipt(self, role: str) -> str:
        return f"{self.prefix}receipt-{_role(role)}.json"

    def copied(self, tier: str, generation: int, role: str) -> str:
        """What ``role`` says, in the given generation, of the objects it copied to ``tier``."""
        if not _TIER.fullmatch(tier):
            raise UsageError(f"bad tier name {tier!r}", hint="lower-case letters, such as 'remote'")
        return f"{self.prefix}copied-{tier}-g{_digits(generation, 6, 'generation')}-{_role(role)}.json"

    def ledger(self, role: str) -> str:
        return f"{self.ledger_prefix}{_role(role)}.safetensors"


def checkpoint_name(generation: int, c: int, op_id: str) -> CheckpointName:
    """The name every writer derives from the allocating record, so all agree on the prefix."""
    if not is_op_id(op_id):
        raise UsageError(f"op_id {op_id!r} is not 32 hex digits")
    return CheckpointName(generation, c, op_id[:8])


@dataclass(frozen=True)
class ParsedKey:
    """What a key under ``checkpoints/`` or ``ledger/`` is.

    ``what``: ``offer``, ``receipt``, ``shard``, ``lasting``, ``manifest``, ``copied``, ``ledger`` or
    ``index``; ``role`` is ``None`` for the last kind and for the manifest.
    """

    name: CheckpointName
    what: str
    role: str | None


def parse_checkpoint_key(key: str) -> ParsedKey | None:
    """The parts of a checkpoint's or ledger's key; ``None`` for any other key."""
    match = _CHECKPOINT_KEY.fullmatch(key)
    if match is None or key_fault(key):
        return None
    area, generation, c, nonce, rest = match.groups()
    name = CheckpointName(int(generation), int(c), nonce)
    if area == "ledger":
        found = _LEDGER_FILE.fullmatch(rest)
        what, role = ("index", None) if found and found[1] else ("ledger", found[2] if found else None)
    else:
        found = _CHECKPOINT_FILE.fullmatch(rest)
        what = (found[1] or found[3] or found[5] or found[6]) if found else ""
        role = (found[2] or found[4] or found[7]) if found else None
    if found is None or (role is not None and not is_role(role)):
        return None
    return ParsedKey(name, what, role)


@dataclass(frozen=True)
class SnapshotKey:
    """What a key under ``snapshots/`` is: one writer's snapshot of one step, at a peer."""

    generation: int
    step: int
    role: str


def snapshot_key(generation: int, step: int, role: str, nonce: str) -> str:
    """Key of a snapshot in another host's memory; sorted by name, a writer's newest is the last.

    ``nonce``: 8 hex digits, fresh for each attempt at sending it."""
    if not _NONCE.fullmatch(nonce):
        raise UsageError(f"nonce {nonce!r} is not 8 hex digits")
    stem = f"g{_digits(generation, 6, 'generation')}-s{_digits(step, 12, 'step')}"
    return f"{SNAPSHOTS}{stem}/{_role(role)}-{nonce}.slot"


def parse_snapshot_key(key: str) -> SnapshotKey | None:
    """The parts of a snapshot's key; ``None`` for any other key."""
    match = _SNAPSHOT_KEY.fullmatch(key)
    if match is None or key_fault(key) or not is_role(match[3]):
        return None
    return SnapshotKey(int(match[1]), int(match[2]), match[3])


def require_checkpoint_key(key: str, *, within: str) -> ParsedKey:
    """As ``parse_checkpoint_key`` for a key read in document ``within``; ``FormatError`` naming it."""
    parsed = parse_checkpoint_key(key) if isinstance(key, str) else None
    if parsed is None:
        raise FormatError(within, f"{key!r} is no key of a checkpoint")
    return parsed


def _role(role: str) -> str:
    if not is_role(role):
        raise UsageError(f"bad role {role!r}", hint="roles are logical names such as 'dp0'")
    return role


def _digits(value: int, width: int, what: str) -> str:
    if not 0 <= value < 10**width:
        raise UsageError(f"{what} {value} does not fit {width} digits")
    return f"{value:0{width}d}"
