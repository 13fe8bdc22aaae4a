"""L5. Which steps are saved: decided by the coordinator, announced ahead, the same on every member.

No member looks at a clock to know whether a save is due. The coordinator turns time into steps, and every
member applies the same schedule from the same step on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from durable_core.errors import OrderError, UsageError
from durable_core.session.cadence.policy import Interval

#: Steps between an announcement and the first save that follows it.
AHEAD = 2


@dataclass(frozen=True)
class Schedule:
    """A save at ``start``, ``start + every``, and so on. ``since``: the step from which it alone counts, and
    the schedule before it no more. ``multiples``: a tier gets every so many of the saves, the first included;
    a tier that is not named gets all."""

    start: int
    every: int
    reason: str = ""
    since: int = 0
    multiples: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.since <= self.start or self.every < 1 or any(k < 1 for k in self.multiples.values()):
            raise UsageError(f"bad schedule: {self}", hint="0 <= since <= start, every and multiples >= 1")

    def next_after(self, step: int, tier: str | None = None) -> int:
        """The first step beyond ``step`` that is saved, or that ``tier`` gets."""
        stride = self.every * (self.multiples.get(tier, 1) if tier is not None else 1)
        if step < self.start:
            return self.start
        return self.start + ((step - self.start) // stride + 1) * stride

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "multiples": dict(self.multiples)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Schedule:
        return cls(**value)


@dataclass(frozen=True)
class Timetable:
    """The schedule in force, and the one announced to take its place at ``coming.since``."""

    schedule: Schedule
    coming: Schedule | None = None

    def announced(self, step: int, schedule: Schedule) -> Timetable:
        """After the announcement of ``schedule``, heard at boundary ``step``.

        Raises ``OrderError`` when it is not ``AHEAD``: a member may have saved by the old one already.
        """
        if schedule.since < step + AHEAD:
            raise OrderError(
                f"a schedule from step {schedule.since} was announced at step {step}",
                hint=f"at least {AHEAD} steps ahead",
            )
        return replace(self.at(step), coming=schedule)

    def at(self, step: int) -> Timetable:
        """As it stands at boundary ``step``: what was coming and has begun is in force."""
        coming = self.coming
        return self if coming is None or step < coming.since else Timetable(coming)

    def next_after(self, step: int, tier: str | None = None) -> int:
        """The first step beyond ``step`` that is saved, or that ``tier`` gets."""
        now = self.at(step)
        due = now.schedule.next_after(step, tier)
        return due if now.coming is None or due < now.coming.since else now.coming.start

    def due(self, before: int, step: int, tier: str | None = None) -> bool:
        """Whether a save fell due after boundary ``before`` and by boundary ``step``."""
        return self.next_after(before, tier) <= step


def opening(
    step: int, interval: Interval, *, fixed: bool, multiples: Mapping[str, int] | None = None
) -> Schedule:
    """The first schedule of a session that starts at ``step``; ``fixed``: saves fall on multiples of the
    interval wherever the session started."""
    start = 0 if fixed else step + interval.steps
    return Schedule(start, interval.steps, interval.reason, multiples=multiples or {})


def change(
    timetable: Timetable, step: int, interval: Interval, multiples: Mapping[str, int] | None = None
) -> Schedule | None:
    """The coordinator's announcement at boundary ``step``, where a save was made; ``None``: nothing changes.

    While a change is under way no other is announced. The new interval counts from ``step``: until it begins
    the old one, if it is shorter, gives a save or two more.
    """
    now = timetable.at(step)
    wanted = dict(multiples or {})
    same = now.schedule.every == interval.steps and dict(now.schedule.multiples) == wanted
    if now.coming is not None or same:
        return None
    start = step + max(AHEAD, interval.steps)
    return Schedule(start, interval.steps, interval.reason, step + AHEAD, wanted)
