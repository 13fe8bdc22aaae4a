"""Every rule taken away in turn: the exploration must show what breaks without it.

Authority rules are removed from a copy of the table. Rules of appending (what to do about a lost
acknowledgement, a lost slot, a refusal) are replaced by what somebody in a hurry would write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from unittest import mock

from durable_core.commit import journal
from durable_core.commit.effects import Get, NewId, Program, PutIfAbsent
from durable_core.commit.fold import AUTHORITY
from durable_core.commit.journal import EMPTY, View, absorb
from durable_core.commit.rules import Rule
from durable_core.errors import InDoubt, TierUnavailable
from durable_core.format import layout
from durable_core.format.record import Record, encode
from durable_core.testing.check.explorer import Explorer, Report, Scenario
from durable_core.testing.check.scenarios import SCENARIOS, SMALL_FIRST, upgrading
from durable_core.testing.planted import without


@dataclass(frozen=True)
class Mutant:
    """``scenarios`` in the order in which they are searched; ``patches`` replace names of ``journal``."""

    name: str
    view: View = EMPTY
    patches: tuple[tuple[str, object], ...] = ()
    scenarios: tuple[Scenario, ...] = SCENARIOS


def kill(mutant: Mutant) -> Report | None:
    """The first scenario in which the mutant violates something, or ``None``: it survives."""
    with ExitStack() as stack:
        for name, replacement in mutant.patches:
            stack.enter_context(mock.patch.object(journal, name, replacement))
        for scenario in mutant.scenarios:
            report = Explorer(scenario, mutant.view).run(first_only=True)
            if report.violations:
                return report
    return None


def authority_rules() -> tuple[Rule, ...]:
    """Every rule of the table, once."""
    return tuple(dict.fromkeys(rule for row in AUTHORITY.values() for rule in row.rules))


# --- appending in a hurry --------------------------------------------------------------------


def _send(view: View, record: Record) -> Program[bool]:
    created: bool = yield PutIfAbsent(layout.journal_key(record.seq), encode(record))
    return created


def _read(view: View, record: Record) -> Program[tuple[View, Record]]:
    found = yield Get(layout.journal_key(record.seq))
    fresh, holder, _ = absorb(view, found)
    return fresh, holder


def _silence_is_success(view: View, record: Record, attempts: int) -> Program[tuple[View, bool]]:
    try:
        created = yield from _send(view, record)
    except InDoubt:
        created = True
    if created:
        return absorb(view, encode(record))[0], True
    fresh, _ = yield from _read(view, record)
    return fresh, False


def _silence_is_failure(view: View, record: Record, attempts: int) -> Program[tuple[View, bool]]:
    try:
        created = yield from _send(view, record)
    except InDoubt as error:
        raise TierUnavailable("it did not work") from error
    if created:
        return absorb(view, encode(record))[0], True
    fresh, _ = yield from _read(view, record)
    return fresh, False


def _any_record_is_mine(view: View, record: Record, attempts: int) -> Program[tuple[View, bool]]:
    """Sends again after silence, and takes whatever stands in the slot then for its own."""
    silent = False
    for _ in range(attempts):
        try:
            created = yield from _send(view, record)
        except InDoubt:
            silent = True
            continue
        if created:
            return absorb(view, encode(record))[0], True
        fresh, _ = yield from _read(view, record)
        return fresh, silent
    raise TierUnavailable("gave up")


def _new_identity_each_time(view: View, record: Record, attempts: int) -> Program[tuple[View, bool]]:
    """Sends again under a fresh op_id, so that it does not know its own record."""
    for _ in range(attempts):
        try:
            created = yield from _send(view, record)
        except InDoubt:
            op_id = yield NewId()
            record = Record(**{**record.__dict__, "op_id": op_id})
            continue
        if created:
            return absorb(view, encode(record))[0], True
        fresh, holder = yield from _read(view, record)
        return fresh, holder.op_id == record.op_id
    raise TierUnavailable("gave up")


def _empty_means_lost(view: View, record: Record, attempts: int) -> Program[tuple[View, bool]]:
    """Reads the slot back once; empty is taken for proof that the request never arrived."""
    try:
        created = yield from _send(view, record)
    except InDoubt as error:
        found = yield Get(layout.journal_key(record.seq))
        if found is None:
            raise TierUnavailable("it never arrived") from error
        created = False
    if created:
        return absorb(view, encode(record))[0], True
    fresh, holder = yield from _read(view, record)
    return fresh, holder.op_id == record.op_id


def mutants() -> Iterator[Mutant]:
    """All of them: authority first, then appending."""
    for rule in authority_rules():
        yield Mutant(f"without {rule.__name__}", View(table=without(rule)), scenarios=_likely_first(rule))
    hurried = {
        "silence is success": _silence_is_success,
        "silence is failure": _silence_is_failure,
        "any record in the slot is mine": _any_record_is_mine,
        "a new identity for each attempt": _new_identity_each_time,
        "an empty slot means it never arrived": _empty_means_lost,
    }
    for name, replacement in hurried.items():
        yield Mutant(name, patches=(("_occupy", replacement),), scenarios=SMALL_FIRST)
    carried = Mutant("claims carried over to a later slot", patches=(("CLAIMS", frozenset()),))
    yield replace(carried, scenarios=(*SCENARIOS[1:], SCENARIOS[0]))
    yield Mutant("a token upgraded after a refusal", scenarios=(upgrading,))


#: Where each rule is known to fall; the rest of the list is searched only if it does not.
_SUSPECTS = {
    "a writer, its replacement": ("launch_not_superseded", "same_generation"),
    "two saves under one token": ("parent_is_head",),
    "reuse against retirement": ("reuses_the_parents",),
    "reuse against damage": ("no_damage_since",),
    "two controllers": ("not_live_restore_point", "not_pinned"),
    "success, cancellation": ("not_terminal",),
    "success against": ("final_is_head",),
    "an impostor": ("same_launch",),
    "numbers taken twice": ("number_is_next", "allocated_here", "still_allocated"),
    "a step behind": ("step_exceeds_head",),
    "creation decided once": ("run_is_new", "run_exists"),
    "claims decided once": ("next_generation", "restore_point_usable"),
    "a cold start": ("cold_start_allowed",),
    "forks against": ("follows_fork", "fork_origin_usable", "not_fork_origin"),
    "epochs decided once": ("next_epoch", "same_epoch", "is_sound", "not_head"),
    "retirement of what": ("is_committed",),
    "two that say": ("keeps_the_state",),
    "summaries of": ("of_the_end", "first_summary"),
    "who may end": ("promise_falls", "run_succeeded", "principal_allowed"),
    "a report after": ("generation_active",),
    "two adoptions": ("adopts_the_replaced", "adoption_is_first"),
    "adoption in": ("no_adoption_in_fork",),
}


def _likely_first(rule: Rule) -> tuple[Scenario, ...]:
    """The whole list, so that the order decides about nothing but the time it takes."""
    starts = tuple(name for name, rules in _SUSPECTS.items() if rule.__name__ in rules)
    return tuple(sorted(SMALL_FIRST, key=lambda scenario: not scenario.name.startswith(starts)))
