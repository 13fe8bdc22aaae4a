"""L5. What takes more than one look: how long a step takes here, and who stays slower than the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from durable_core.engine.beats import Beat
from durable_core.engine.words import Member
from durable_core.launch.classes import F
from durable_core.launch.controller.looking import Glimpse
from durable_core.launch.evidence import Stall
from durable_core.launch.invariants import Invariant, Observation, Violation
from durable_core.launch.liveness import Limits, Pace, culprit, judge
from durable_core.launch.liveness import Violation as Late
from durable_core.launch.machine import GroupPhase
from durable_core.launch.stragglers import Straggler, Watch

#: Seconds without a look that only a process which was stopped lets pass.
_FROZEN_S = 30.0
_AT_WORK = frozenset({GroupPhase.STARTING, GroupPhase.UP, GroupPhase.DRAINING})


@dataclass(frozen=True)
class Watched:
    """Immutable: ``seen`` returns the next one. ``group``: generation and attempt that it is about;
    ``begun``: when that was first seen (monotonic); ``looked``: the last look; ``resumed``: when this process
    went on after it had stood still itself, and then most likely the group with it."""

    limits: Limits = field(default_factory=Limits)
    group: tuple[int, int] = (-1, -1)
    begun: float = 0.0
    pace: Pace = field(default_factory=Pace)
    slow: Watch = field(default_factory=Watch)
    found: tuple[Violation, ...] = ()
    looked: float | None = None
    resumed: float = 0.0

    @property
    def stragglers(self) -> tuple[Straggler, ...]:
        return tuple(sorted(self.slow.named.values(), key=lambda one: (-one.ratio, one.rank)))

    def seen(self, seen: Observation, glimpse: Glimpse, now: float) -> Watched:
        """With one look more; ``now``: monotonic."""
        froze = self.looked is not None and now - self.looked > _FROZEN_S
        resumed = now if froze else self.resumed
        return replace(self._seen(seen, glimpse, now, resumed), looked=now, resumed=resumed)

    def _seen(self, seen: Observation, glimpse: Glimpse, now: float, resumed: float) -> Watched:
        living = (member for member in seen.members if member.exit is None and member.rank not in seen.mute)
        members = {member.rank: member for member in living}
        group = (seen.run.generation, max((facts.attempt for facts in seen.groups), default=-1))
        fresh = self if group == self.group else Watched(self.limits, group, now)
        if not members or not any(facts.phase in _AT_WORK for facts in seen.groups):
            return Watched(fresh.limits, group, fresh.begun, fresh.pace, fresh.slow)
        beats = {rank: seen.beat(member) for rank, member in members.items()}
        pace = fresh.pace.seen(beats)
        # one without a beat is as old as its group; one that beat is as old as its beat, whoever looks
        since = max(fresh.begun if None in beats.values() else 0.0, resumed)
        standing = judge(beats, now, self.limits, since=since, pace=pace)
        found = tuple(_violation(late, beats, glimpse.stacks, members, now) for late in standing.violated)
        return Watched(self.limits, group, fresh.begun, pace, fresh.slow.seen(beats), found)


def _violation(
    late: Late, beats: Mapping[int, Beat | None], stacks: Mapping[int, str], members: Mapping[int, Member],
    now: float,
) -> Violation:  # fmt: skip
    """Who is named for it: within the hard limit who stands, beyond it whom the others wait for."""
    phase = "" if late.phase is None else late.phase.name
    if not late.hard:
        return Violation(
            Invariant.PROGRESS, late.reason, late.rank, now - late.since,
            evidence={"phase": phase, "age_s": round(late.age_s, 3), "limit_s": round(late.limit_s, 3)},
        )  # fmt: skip
    named = culprit(beats, stacks)
    place = "" if named.rank is None or named.rank not in members else members[named.rank].host
    stall = Stall(phase, round(late.age_s, 3), round(late.limit_s, 3), named.rank, place, named.frames)
    return Violation(
        Invariant.PROGRESS, f"{late.reason}; {named.reason}", named.rank, now - late.since, True, F.F5,
        {"stall": {**asdict(stall), "frames": list(named.frames)}, "candidates": list(named.candidates)},
    )  # fmt: skip
