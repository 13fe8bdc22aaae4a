"""L3. Letting go of checkpoints: first the journal says so, then bytes go, a bounded number at a time.

Everything the sweep deletes is dead by a fact that later records cannot undo: a checkpoint is
retired or aborted, or its generation can never write again. So a view that lags is safe, a sweep may
be killed anywhere or run twice at once, and a writer that comes back from the dead leaves at worst
orphans for the next sweep. Ledger objects are never touched: the audit of a run outlives its weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from durable_core.commit.claim import claim_controller
from durable_core.commit.effects import Delete, Get, ListKeys, Program, Reached
from durable_core.commit.journal import Draft, View, append, replay
from durable_core.commit.retention import Retention, Retire, decide
from durable_core.commit.state import CheckpointInfo, RunState
from durable_core.errors import CorruptError, LostSlot, TierError
from durable_core.format import layout
from durable_core.format import manifest as manifests
from durable_core.format.layout import CheckpointName
from durable_core.format.record import Kind
from durable_core.types import CheckpointState, CrashPoint

#: Retirements in one call, and slots it may lose to others while deciding.
RETIRE_LIMIT = 64
#: Objects deleted in one call.
SWEEP_BUDGET = 256


@dataclass(frozen=True)
class Retirement:
    """``epoch`` is the controller's, to be handed to the next call; ``None`` when none was needed."""

    view: View
    epoch: int | None
    retired: tuple[Retire, ...]


@dataclass(frozen=True)
class Swept:
    """``deleted`` keys; ``kept_unread``: retired checkpoints kept for now because a manifest that
    reuses their objects could not be read; ``complete``: nothing dead was left."""

    view: View
    deleted: tuple[str, ...]
    kept_unread: tuple[int, ...]
    complete: bool


def retire(
    view: View, policy: Retention, *, launch_id: str, epoch: int | None = None, limit: int = RETIRE_LIMIT,
    in_hand: frozenset[int] = frozenset(),
) -> Program[Retirement]:  # fmt: skip
    """Journal ``checkpoint.retired`` for what ``policy`` lets go of, but for ``in_hand``; deletes nothing.

    Takes the controller's epoch when ``epoch`` is ``None`` and there is something to retire. Each
    decision is made at the tail it is appended to, and made again when that moves. Raises ``Fenced``
    when another controller has taken over, or as ``append``.
    """
    view = yield from replay(view)
    retired: list[Retire] = []
    for _ in range(limit):
        due = [each for each in decide(view.state, policy) if each.c not in in_hand]
        if not due:
            break
        if epoch is None:
            view, epoch = yield from claim_controller(view, launch_id)
            continue  # the claim may have met other records: decide anew
        payload = {"c": due[0].c, "reason": due[0].reason}
        draft = Draft(Kind.CHECKPOINT_RETIRED, payload, view.state.generation, launch_id, epoch)
        try:
            view = yield from append(view, draft, exact=True)
        except LostSlot:
            view = yield from replay(view)
            continue
        retired.append(due[0])
    return Retirement(view, epoch, tuple(retired))


def sweep(view: View, *, budget: int = SWEEP_BUDGET) -> Program[Swept]:
    """Delete at most ``budget`` dead objects under ``checkpoints/``; idempotent.

    Within a checkpoint the manifest goes last. Raises the tier's errors; what was deleted stays so.
    """
    view = yield from replay(view)
    groups: dict[CheckpointName, list[str]] = {}
    for key in (yield ListKeys(layout.CHECKPOINTS)):
        parsed = layout.parse_checkpoint_key(key)
        if parsed is not None:
            groups.setdefault(parsed.name, []).append(key)
    deleted: list[str] = []
    unread: list[int] = []
    read: dict[int, frozenset[str] | None] = {}
    for name in sorted(groups, key=lambda name: (name.c, name.generation, name.nonce)):
        if not is_dead(view.state, name):
            continue
        spared = yield from _referenced(view.state, name, read)
        if spared is None:
            unread.append(name.c)
            continue
        for key in sorted(set(groups[name]) - spared, key=lambda key: (key == name.manifest, key)):
            if len(deleted) >= budget:
                return Swept(view, tuple(deleted), tuple(unread), complete=False)
            yield Delete(key)
            deleted.append(key)
            yield Reached(CrashPoint.K18)
    return Swept(view, tuple(deleted), tuple(unread), complete=not unread)


def is_dead(state: RunState, name: CheckpointName) -> bool:
    """Nothing under this prefix can ever be needed again, but for objects that others reuse.

    Of the current generation only what is aborted or retired: an allocation without an end may be a
    save in progress, or a commit in doubt.
    """
    info = state.checkpoints.get(name.c)
    if info is not None and (info.generation, info.nonce) == (name.generation, name.nonce):
        if info.state in (CheckpointState.RETIRED, CheckpointState.ABORTED):
            return True
        if info.state is not CheckpointState.ALLOCATED:
            return False
    return name.generation < state.generation or (
        name.generation == state.generation and not state.active and state.generation > 0
    )


def _referenced(
    state: RunState, name: CheckpointName, read: dict[int, frozenset[str] | None]
) -> Program[frozenset[str] | None]:
    """Keys that manifests of checkpoints still held, which reuse ``name``, refer to; ``None``: not known now.

    Which checkpoints reuse which is in the journal, so only those are read, each once a sweep (``read``).
    """
    keys: set[str] = set()
    for info in _reusing(state, name.c):
        if info.c not in read:
            read[info.c] = yield from _objects(info)
        found = read[info.c]
        if found is None:
            return None
        keys |= found
    return frozenset(keys)


def _objects(info: CheckpointInfo) -> Program[frozenset[str] | None]:
    try:
        data = yield Get(info.manifest)
        if data is None:
            return None
        manifests.check_digest(data, info.manifest_digest, key=info.manifest)
        return frozenset(part.key for part in manifests.decode(data, key=info.manifest).objects)
    except (TierError, CorruptError):
        return None


def _reusing(state: RunState, c: int) -> Iterable[CheckpointInfo]:
    return (info for info in state.checkpoints.values() if c in info.reuses and info.held)
