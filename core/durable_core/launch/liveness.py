"""L5. Is the group alive and does it get on? And if it stands still: who holds it up? Pure, over beats and
stacks.

A process that lives and stands still breaks the invariant of *progress*, not that of *membership* (REC-10):
the one is seen by its beats, the other from its process.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from durable_core.engine.beats import Beat, Phase
from durable_core.errors import UsageError
from durable_core.launch.stacks import main_stack, waiting_in

#: Newest step times that the pace is judged by, and the fewest.
PACE_STEPS = 128
PACE_LEAST = 8


@dataclass(frozen=True)
class Limit:
    """Seconds without a beat: over ``soft_s`` a rank is suspected, over ``hard_s`` it hangs."""

    soft_s: float
    hard_s: float

    def __post_init__(self) -> None:
        if not 0 < self.soft_s <= self.hard_s:
            raise UsageError(f"limit of {self.soft_s} s and {self.hard_s} s", hint="0 < soft_s <= hard_s")

    def at_least(self, soft_s: float, hard_s: float) -> Limit:
        return Limit(max(self.soft_s, soft_s), max(self.hard_s, hard_s))


@dataclass(frozen=True)
class Limits:
    """One limit for each phase. In ``STEP`` it is the floor: the limit is ``max(floor, m x p99 of the
    newest step times)`` (REQUIREMENTS 6.2), with ``soft_m`` and ``hard_m``; until ``PACE_LEAST`` steps were
    timed, ``first_step`` (it may compile)."""

    init: Limit = Limit(300.0, 900.0)
    restore: Limit = Limit(300.0, 1800.0)
    step: Limit = Limit(30.0, 600.0)  # a loop may validate without telling anybody
    eval: Limit = Limit(600.0, 3600.0)
    save: Limit = Limit(300.0, 1800.0)
    exit: Limit = Limit(60.0, 300.0)
    first_step: Limit = Limit(300.0, 900.0)
    soft_m: float = 5.0
    hard_m: float = 20.0

    def of(self, phase: Phase, pace: Pace) -> Limit:
        if phase is not Phase.STEP:
            return getattr(self, phase.name.lower())  # type: ignore[no-any-return]
        p99 = pace.p99
        if p99 is None:
            return self.step.at_least(self.first_step.soft_s, self.first_step.hard_s)
        return self.step.at_least(self.soft_m * p99, self.hard_m * p99)


@dataclass(frozen=True)
class Pace:
    """Step times of the group, from what one look saw more than the look before. Immutable."""

    times: tuple[float, ...] = ()
    last: Mapping[int, tuple[int, int, float]] = field(default_factory=dict)  # rank -> generation, step, time

    def seen(self, beats: Mapping[int, Beat | None]) -> Pace:
        """With one look more: of every rank that went on, the seconds a step took it on average since."""
        times, last = list(self.times), dict(self.last)
        for rank, beat in beats.items():
            if beat is None or beat.phase is not Phase.STEP or beat.step < 0:
                last.pop(rank, None)  # a step that spans an evaluation says nothing of steps
                continue
            before = last.get(rank)
            if before is not None and before[0] == beat.generation and beat.step > before[1]:
                times.append((beat.time - before[2]) / (beat.step - before[1]))
            if before is None or (before[0], before[1]) != (beat.generation, beat.step):
                last[rank] = (beat.generation, beat.step, beat.time)
        return Pace(tuple(times[-PACE_STEPS:]), last)

    @property
    def p99(self) -> float | None:
        if len(self.times) < PACE_LEAST:
            return None
        return sorted(self.times)[math.ceil(0.99 * len(self.times)) - 1]


class Health(enum.IntEnum):
    """The worst of what is violated."""

    GOOD = 0
    SUSPECT = 1  # diagnose, end nothing
    HANGING = 2  # no progress beyond the hard limit
    BROKEN = 3  # a member is gone


@dataclass(frozen=True)
class Violation:
    """``invariant``: ``membership`` or ``progress``; ``since``: monotonic seconds; ``phase``: what the rank
    was in."""

    invariant: str
    rank: int
    since: float
    hard: bool
    reason: str
    phase: Phase | None = None
    age_s: float = 0.0
    limit_s: float = 0.0


@dataclass(frozen=True)
class Standing:
    """``step``: that all have completed, -1 before the first; ``violated``: worst and oldest first."""

    health: Health
    step: int
    violated: tuple[Violation, ...]
    reason: str

    @property
    def since(self) -> float | None:
        return min((one.since for one in self.violated), default=None)


def judge(
    beats: Mapping[int, Beat | None],
    now: float,
    limits: Limits,
    *,
    since: float,
    pace: Pace | None = None,
    gone: Mapping[int, str] | None = None,
) -> Standing:
    """How the group stands. ``beats``: of every member, ``None`` for one that has not beaten yet; ``now``,
    ``since`` (the group's start): monotonic; ``gone``: members whose process has ended, and how.

    Who waits for another that is in a longer phase, within its limit (one rank evaluates, the others wait
    in their next step), is not suspected: then the longer limit is that of all.
    """
    pace, gone = pace or Pace(), gone or {}
    violated = [_left(rank, how, now) for rank, how in gone.items()]
    ages = {rank: _age(beat, now, since) for rank, beat in beats.items() if rank not in gone}
    own = {rank: limits.of(_phase(beats[rank]), pace) for rank in ages}
    longest = max((own[rank].hard_s for rank in ages if ages[rank] <= own[rank].soft_s), default=0.0)
    for rank, age in ages.items():
        limit = own[rank] if longest <= own[rank].hard_s else Limit(longest, longest)
        if age > limit.soft_s:
            violated.append(_slow(rank, beats[rank], now - age, age, limit))
    violated.sort(key=lambda one: (one.invariant != "membership", not one.hard, one.since, one.rank))
    step = min((-1 if beat is None else beat.step for beat in beats.values()), default=-1)
    reason = violated[0].reason if violated else f"all {len(beats)} members beat, at step {step}"
    return Standing(_health(violated), step, tuple(violated), reason)


def _health(violated: Collection[Violation]) -> Health:
    if any(one.invariant == "membership" for one in violated):
        return Health.BROKEN
    if any(one.hard for one in violated):
        return Health.HANGING
    return Health.SUSPECT if violated else Health.GOOD


def _age(beat: Beat | None, now: float, since: float) -> float:
    return max(0.0, now - (since if beat is None else max(beat.time, since)))


def _phase(beat: Beat | None) -> Phase:
    return Phase.INIT if beat is None else beat.phase


def _left(rank: int, how: str, now: float) -> Violation:
    return Violation("membership", rank, now, True, f"rank {rank} is gone: {how}")


def _slow(rank: int, beat: Beat | None, since: float, age: float, limit: Limit) -> Violation:
    phase, hard = _phase(beat), age > limit.hard_s
    at = "has not beaten yet" if beat is None else f"stands in {phase.name} after step {beat.step}"
    over = f"over {limit.hard_s:.1f} s" if hard else f"suspect from {limit.soft_s:.1f} s"
    reason = f"rank {rank} {at}: {age:.1f} s, {over}"
    return Violation(
        "progress", rank, since, hard, reason, phase, age, limit.hard_s if hard else limit.soft_s
    )


# --- who holds it up -------------------------------------------------------------------------


@dataclass(frozen=True)
class Culprit:
    """``rank``: ``None`` when it cannot be told, and ``reason`` says why; ``candidates``: who it may be then;
    ``frames``: of the culprit's stack, ``file:function``, innermost last."""

    rank: int | None
    reason: str
    candidates: tuple[int, ...] = ()
    frames: tuple[str, ...] = ()


def culprit(beats: Mapping[int, Beat | None], stacks: Mapping[int, str]) -> Culprit:
    """Who a group that stands still waits for: compares step counters, then phases, then stacks.

    When one rank stands, all of them stop beating, and which one was seen last says nothing. ``stacks``: what
    faulthandler wrote, by rank; a rank without one is not judged by its stack.
    """
    ranks = tuple(sorted(beats))
    if len(ranks) < 2:
        only = ranks[0] if ranks else None
        alone = Culprit(only, "it is the only member" if ranks else "there is no member", ranks)
        return _named(alone, stacks)
    for narrow in (_by_step, _by_phase):
        found = narrow(beats, ranks)
        if found.rank is not None:
            return _named(found, stacks)
        ranks = found.candidates
    return _named(_by_stack(ranks, stacks), stacks)


def _by_step(beats: Mapping[int, Beat | None], ranks: tuple[int, ...]) -> Culprit:
    """Who is behind: a rank cannot pass a step that another takes no part in."""
    steps = {rank: _count(beats[rank]) for rank in ranks}
    least = min(steps.values())
    behind = tuple(rank for rank in ranks if steps[rank] == least)
    if len(behind) == 1:
        at = "has not beaten yet" if least == -2 else f"is at step {least}"
        others = min(set(steps.values()) - {least})
        return Culprit(behind[0], f"rank {behind[0]} {at}, all others at {others} or more", behind)
    return Culprit(None, f"ranks {_list(behind)} are at step {least}", behind)


def _by_phase(beats: Mapping[int, Beat | None], ranks: tuple[int, ...]) -> Culprit:
    """Who has not yet come to where the others wait: what is held up between two steps comes before the next.

    One that has left the loop is beyond it, but may have left wrongly: then phases tell nothing.
    """
    phases = {rank: _phase(beats[rank]) for rank in ranks}
    if Phase.EXIT in phases.values() or len(set(phases.values())) == 1:
        return Culprit(None, "phases tell nothing", ranks)
    held = tuple(rank for rank in ranks if phases[rank] is not Phase.STEP)
    if len(held) == 1:
        rank = held[0]
        return Culprit(rank, f"rank {rank} is in {phases[rank].name}, the others wait in STEP", held)
    return Culprit(None, f"ranks {_list(held)} are not in STEP", held)


def _by_stack(ranks: tuple[int, ...], stacks: Mapping[int, str]) -> Culprit:
    """Who is not waiting inside a collective, the autograd engine or a store."""
    seen = {rank: main_stack(stacks[rank]) for rank in ranks if rank in stacks}
    known = {rank: frames for rank, frames in seen.items() if frames}
    if set(known) != set(ranks):
        missing = tuple(rank for rank in ranks if rank not in known)
        why = f"counters and phases are equal, and there is no stack of ranks {_list(missing)}"
        return Culprit(None, why, ranks)
    free = tuple(rank for rank in ranks if not waiting_in(known[rank]))
    if len(free) == 1:
        where = known[free[0]][-1]
        waits = "; ".join(
            f"rank {rank} waits in {waiting_in(known[rank])}" for rank in ranks if rank != free[0]
        )
        return Culprit(free[0], f"rank {free[0]} is in {where}; {waits}", free)
    if not free:
        return Culprit(None, "every rank waits for the others", ranks)
    return Culprit(None, f"ranks {_list(free)} do not wait for others, and nothing tells them apart", free)


def _named(found: Culprit, stacks: Mapping[int, str]) -> Culprit:
    if found.rank is None or found.rank not in stacks:
        return found
    return replace(found, frames=tuple(map(str, main_stack(stacks[found.rank])[-8:])))


def _count(beat: Beat | None) -> int:
    return -2 if beat is None else beat.step


def _list(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
