"""A test of the tester: the protocol with one bug planted, each of which the simulator must find.

Every plant is a ``Subject`` that differs from the real one in exactly one part. Nothing in the
protocol knows of them: authority rules are taken out of a copy of the table, effects are changed
between a program and the store, a function is replaced while a schedule runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from durable_core.commit import collect, journal, plan, save, writing
from durable_core.commit import effects as fx
from durable_core.commit import rules as r
from durable_core.commit.effects import Program
from durable_core.commit.fold import AUTHORITY, Row, Table
from durable_core.commit.journal import View, absorb
from durable_core.commit.retention import decide
from durable_core.commit.reuse import Base
from durable_core.commit.rules import Rule
from durable_core.commit.state import CheckpointInfo, Checkpoints, RunState
from durable_core.errors import InDoubt
from durable_core.format import digests, layout
from durable_core.format.receipt import Receipt, encode_receipt
from durable_core.format.record import Kind, Record, encode
from durable_core.testing.sim import content
from durable_core.testing.sim.process import Script, intercepted
from durable_core.testing.sim.store import Overwrite, SimStore, Write
from durable_core.testing.sim.subject import Subject
from durable_core.types import ObjectInfo


@dataclass(frozen=True)
class Plant:
    """``sign``: what the damage looks like, as a regular expression over violations; ``seeds``: how many
    the simulator may need at most to see it."""

    subject: Subject
    sign: str
    seeds: int


def without(*rules: Rule, table: Table = AUTHORITY) -> Table:
    """The authority table with some rules taken out of every row."""
    return {
        kind: Row(tuple(rule for rule in row.rules if rule not in rules), row.effect)
        for kind, row in table.items()
    }


# --- effects changed on their way ------------------------------------------------------------

def _look_then_put(effect: Any) -> Program[Any]:
    """Check-then-act: is the slot free? then write it, come what may."""
    if not isinstance(effect, fx.PutIfAbsent) or layout.parse_journal_key(effect.key) is None:
        return (yield effect)
    if (yield fx.Get(effect.key)) is not None:
        return False
    return (yield Overwrite(effect.key, effect.data))


def _without_sync(effect: Any) -> Program[Any]:
    """Acts on a tail that it has only seen."""
    if isinstance(effect, fx.SyncTail):
        return None
    return (yield effect)


class _ShardLater:
    """Commits first and writes after: the shard is sent once the commit record is in place."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.owed: dict[str, tuple[fx.WriteShard, int]] = {}

    def __call__(self, effect: Any) -> Program[Any]:
        if isinstance(effect, fx.WriteShard):
            data, header, begins = content.pack(self.script.staged, self.script.role, effect.slices)
            self.owed[effect.key] = effect, len(data)
            info = ObjectInfo(effect.key, len(data), header, digests.xxh3(data[:header]))
            return fx.WrittenShard(info, begins)
        if isinstance(effect, fx.Size) and effect.key in self.owed:
            return self.owed[effect.key][1]
        answer = yield effect
        if isinstance(effect, fx.PutIfAbsent) and b"checkpoint.committed" in effect.data:
            while self.owed:
                yield self.owed.popitem()[1][0]
        return answer


# --- functions replaced ----------------------------------------------------------------------


def _believe(view: View, record: Record, attempts: int) -> Program[tuple[View, bool]]:
    """Settles a doubt by moving on: no answer is taken for success."""
    data = encode(record)
    try:
        created = yield fx.PutIfAbsent(layout.journal_key(record.seq), data)
    except InDoubt:
        created = True
    if not created:
        found = yield fx.Get(layout.journal_key(record.seq))
        yield fx.SyncTail()
        fresh, _, _ = absorb(view, found)
        return fresh, False
    fresh, _, _ = absorb(view, data)
    return fresh, True


def _delete_first(view: View, policy: Any, **how: Any) -> Program[collect.Retirement]:
    """Deletes what the policy lets go of, and tells the journal afterwards."""
    view = yield from journal.replay(view)
    for due in decide(view.state, policy):
        info = view.state.checkpoints[due.c]
        name = layout.CheckpointName(info.generation, info.c, info.nonce)
        for key in (yield fx.ListKeys(name.prefix)):
            yield fx.Delete(key)
    return (yield from collect.retire(view, policy, **how))


def _count(
    attempt: Any, key_of: Callable[[str], str], decode: Callable[..., Any], own: Any, watch: Any
) -> Program[Any]:
    """Waits for as many receipts as there are writers, whoever signed them."""
    if not isinstance(own, Receipt):
        return (yield from writing.collect(attempt, key_of, decode, own, watch))
    wanted = len(attempt.request.roles)
    for _ in range(60):
        keys = [key for key in (yield fx.ListKeys(attempt.name.prefix)) if "/receipt-" in key]
        if len(keys) >= wanted:
            found = {}
            for key in sorted(keys, reverse=True)[:wanted]:
                receipt = decode((yield fx.Get(key)), key=key)
                found[receipt.role] = receipt
            return found
        yield fx.Wait(0.05)
    return (yield from writing.collect(attempt, key_of, decode, own, watch))


def _first_base(attempt: Any) -> Program[Any]:
    """Plans on the first checkpoint it knows of, whatever the parent is."""
    known = attempt.request.known
    if known is None or attempt.parent is None:
        return (yield from _read_base(attempt))
    return Base(known.manifest, attempt.parent.manifest_digest, attempt.info.c)


_read_base = writing.read_base


def _nothing(info: CheckpointInfo) -> Program[frozenset[str]]:
    yield from ()
    return frozenset()


def _digests_present(found: Mapping[str, Receipt], roles: Any) -> dict[str, str]:
    """What a counting coordinator signs: some receipt for every role."""
    some = next(iter(found.values()))
    return {role: digests.sha256(encode_receipt(found.get(role, some))) for role in roles}


def _unite_present(receipts: Mapping[str, Receipt], roles: Any, *kept: Any) -> plan.Whole:
    present = [role for role in roles if role in receipts]
    return plan.unite(receipts, present, *kept)


# --- numbers reused --------------------------------------------------------------------------


class _Forgetful(RunState):
    """Takes the number after the newest committed one, not after the newest ever allocated."""

    @property
    def next_c(self) -> int:
        return max((c for c, info in self.checkpoints.items() if info.was_committed), default=-1) + 1


def _allocate_again(state: RunState, record: Record) -> RunState:
    p = record.payload
    info = CheckpointInfo(p["c"], p["step"], record.generation, p["parent"], record.op_id[:8])
    rows = state.checkpoints
    rows = rows.updated(info) if info.c in rows else Checkpoints.added(rows, info)
    return replace(state, checkpoints=rows)


# --- the list --------------------------------------------------------------------------------


def _table(*rules: Rule) -> View:
    return View(table=without(*rules))


def _reusing_numbers() -> View:
    table = dict(without(r.number_is_next))
    table[Kind.CHECKPOINT_ALLOCATED] = Row(table[Kind.CHECKPOINT_ALLOCATED].rules, _allocate_again)
    return View(state=_Forgetful(), table=table)


class _NoDirectorySync(SimStore):
    """Acknowledges a name before its directory is synced."""

    def sync_write(self, write: Write) -> None:
        pass


_NO_FENCE = Subject(
    "skips the fence check",
    view=_table(r.same_generation, r.same_launch),
    patches=((save, "token_error", lambda state, token: None),),
)

_LOST = r"acknowledged commit .* is lost"
_BROKEN = r"does not restore|finds c\d+ broken"

PLANTS: tuple[Plant, ...] = (
    Plant(_NO_FENCE, r"checkpoint\.committed .*effective although generation", 100),
    Plant(
        Subject("commits before it verifies", wrap=lambda p, script: intercepted(_ShardLater(script), p)),
        _BROKEN,
        100,
    ),
    Plant(Subject("reuses numbers", view=_reusing_numbers()), r"reuses number", 20),
    Plant(
        Subject("does not sync the directory", store=_NoDirectorySync),
        rf"{_LOST}|{_BROKEN}|left a hole",
        100,
    ),
    Plant(
        Subject(
            "counts receipts instead of identities",
            patches=(
                (save, "collect", _count),
                (save, "check_receipts", lambda *a: plan.plan({})),
                (save, "unite", _unite_present),
                (save, "receipt_digests", _digests_present),
            ),
        ),
        _BROKEN,
        100,
    ),
    Plant(Subject("deletes before it journals the retirement", retire=_delete_first), _BROKEN, 1000),
    Plant(
        Subject("checks, then acts", wrap=lambda p, script: intercepted(_look_then_put, p)),
        rf"{_LOST}|continues sha256",
        100,
    ),
    Plant(Subject("upgrades its token after a refusal", upgrades_token=True), "refused, and appends", 100),
    Plant(Subject("lets a commit continue any parent", view=_table(r.parent_is_head)), "not the head", 1000),
    Plant(
        Subject("settles a doubt by moving on", patches=((journal, "_occupy", _believe),)),
        rf"{_LOST}|while slot \d+ is empty",
        100,
    ),
    Plant(
        Subject("acts on a tail it has not synced", wrap=lambda p, script: intercepted(_without_sync, p)),
        r"on one that a power loss can take away",
        100,
    ),
    Plant(
        Subject("lets a superseded launch claim", view=_table(r.launch_not_superseded)),
        r"superseded launch fenced the healthy one",
        100,
    ),
    Plant(
        Subject("lets the restore point be retired", view=_table(r.not_live_restore_point)),
        r"retires the restore point",
        1000,
    ),
    Plant(
        Subject(
            "reuses what its parent has let go of",
            view=_table(r.reuses_the_parents),
            patches=((writing, "read_base", _first_base),),
            keeps_known=True,
        ),
        r"reuses objects of",
        1000,
    ),
    Plant(Subject("collects what is reused", patches=((collect, "_objects", _nothing),)), _BROKEN, 100),
)
