"""L3. How the journal learns that another tier holds a checkpoint: only when all of it is there.

Each writer copies its share of the objects (``engine.promote``) and leaves a document at home that says
which; the coordinator appends ``tier.added`` once the documents together name every object. Nobody has to
come to an end: without a document there is no record, and the checkpoint's tiers are as they were. Killed
between any two steps the next attempt finds what is there already. That the record is true does not depend
on who appends it, so it is a fact of maintenance and needs no token.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from durable_core.commit.claim import maintain
from durable_core.commit.effects import Get, Program, Reached
from durable_core.commit.journal import View, replay
from durable_core.commit.objects import poll, put_document
from durable_core.commit.state import CheckpointInfo
from durable_core.errors import CorruptError, RecordRefused
from durable_core.format import canonical
from durable_core.format.fields import versioned
from durable_core.format.layout import CheckpointName
from durable_core.format.record import Kind
from durable_core.types import CrashPoint

VERSION = 1
#: Seconds the coordinator waits for the other writers' copies.
DEADLINE = 600.0


@dataclass(frozen=True)
class Copied:
    """``role`` found the ``objects`` (keys) whole in ``tier``; ``manifest``: sha256 of the checkpoint's."""

    tier: str
    role: str
    manifest: str
    objects: tuple[str, ...]


@dataclass(frozen=True)
class Added:
    """Whether the journal has the copy now, or why not."""

    view: View
    added: bool
    reason: str = ""


def encode_copied(copied: Copied) -> bytes:
    return canonical.dumps(
        {
            "v": VERSION,
            "tier": copied.tier,
            "role": copied.role,
            "manifest": copied.manifest,
            "objects": sorted(copied.objects),
        }
    )


def decode_copied(data: bytes, *, key: str) -> Copied:
    """Raises ``FormatError`` and ``UnknownVersionError``, naming ``key``."""
    fields = versioned(data, key=key, version=VERSION)
    objects = fields.list("objects")
    if not all(isinstance(each, str) for each in objects):
        fields.fail("names objects that are no keys")
    copied = Copied(fields.text("tier"), fields.role("role"), fields.digest("manifest"), tuple(objects))
    fields.end()
    return copied


def announce(
    info: CheckpointInfo, tier: str, role: str, objects: Collection[str], *, generation: int
) -> Program[None]:
    """A writer of ``generation`` has found its share whole in ``tier``. Idempotent.

    Raises ``CommitAborted`` when something else stands there, and the tier's errors.
    """
    copied = Copied(tier, role, info.manifest_digest, tuple(objects))
    yield from put_document(_name(info).copied(tier, generation, role), encode_copied(copied))


def add_tier(
    view: View,
    c: int,
    tier: str,
    *,
    generation: int,
    roles: Collection[str],
    objects: Collection[str],
    launch_id: str,
    seconds: float = DEADLINE,
) -> Program[Added]:
    """The coordinator's part: wait at most ``seconds`` for the documents of ``roles``, then tell the journal.

    ``objects``: every key in the manifest of ``c``. A writer that says nothing, or too little, costs this
    copy and no more. Raises as ``append``.
    """
    view = yield from replay(view)
    info = view.state.checkpoints[c]
    if tier in info.tiers:
        return Added(view, True)
    missing = set(objects)
    waiting = set(roles)

    def look() -> Program[bool | None]:
        for role in sorted(waiting):
            found = yield from _said(info, tier, role, generation)
            if found is not None:
                waiting.discard(role)
                missing.difference_update(found.objects)
        return None if waiting and missing else True

    yield from poll(look, seconds=seconds)
    if missing:
        late = (
            f"nothing from {', '.join(sorted(waiting))}"
            if waiting
            else f"{min(missing)} is in nobody's share"
        )
        return Added(view, False, f"{len(missing)} of {len(set(objects))} objects are not in {tier}: {late}")
    yield Reached(CrashPoint.K17)
    try:
        view = yield from maintain(view, Kind.TIER_ADDED, {"c": c, "tier": tier}, launch_id)
    except RecordRefused as refused:  # retired meanwhile
        return Added((yield from replay(view)), False, refused.message)
    return Added(view, True)


def _said(info: CheckpointInfo, tier: str, role: str, generation: int) -> Program[Copied | None]:
    """The document of one writer; one that is damaged, or speaks of something else, says nothing."""
    key = _name(info).copied(tier, generation, role)
    data = yield Get(key)
    if data is None:
        return None
    try:
        copied = decode_copied(data, key=key)
    except CorruptError:
        return None
    meant = (copied.tier, copied.role, copied.manifest) == (tier, role, info.manifest_digest)
    return copied if meant else None


def _name(info: CheckpointInfo) -> CheckpointName:
    return CheckpointName(info.generation, info.c, info.nonce)
