"""L5. The RPO monitor: were a failure domain lost now, what is the newest step that could be recovered?

Pure: told facts, asked questions; reads no clock and no storage. Used under one lock, or on one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from durable_core.errors import UsageError
from durable_core.session.goals import check_traits, outlives
from durable_core.spec.goals import DOMAINS, Goal
from durable_core.types import Traits


@dataclass(frozen=True, order=True)
class Mark:
    """A boundary: its ``step``, when it was reached (seconds on one monotonic clock), tokens trained until
    then. Every snapshot and checkpoint carries the mark of its boundary."""

    step: int
    time: float
    tokens: int = 0


BEGINNING = Mark(0, 0.0)


@dataclass(frozen=True)
class Standing:
    """``newest``: the mark recoverable when ``domain`` is lost, from ``tier``; without any (``tier`` is
    ``None``) the run starts over from its first mark. The gaps are from there to the newest boundary; seconds
    run until now."""

    domain: str
    tier: str | None
    newest: Mark
    gap_steps: int
    gap_seconds: float
    gap_tokens: int
    breached: tuple[Goal, ...] = ()


@dataclass(frozen=True)
class Lag:
    """From the newest boundary back to the newest state that ``tier`` holds (CAD-06)."""

    tier: str
    steps: int
    seconds: float
    tokens: int


class Monitor:
    """``tiers`` in order of speed. ``home``: where the journal and the documents lie; what outlives a failure
    is of no use when they do not. ``start``: what remains when nothing is recoverable (step 0 of the run).
    """

    def __init__(
        self, tiers: Mapping[str, Traits], goals: Iterable[Goal] = (), *, home: str | None = None,
        roles: Sequence[str] = ("dp0",), start: Mark = BEGINNING,
    ) -> None:  # fmt: skip
        for name, traits in tiers.items():
            check_traits(name, traits)
        if home is not None and home not in tiers:
            raise UsageError(f"home={home!r}", hint="one of " + ", ".join(tiers))
        self._tiers, self._goals, self._home = dict(tiers), tuple(goals), home
        self._roles = frozenset(roles)
        self._start = self._now = start
        self._sealed: dict[str, dict[int, tuple[Mark, set[str]]]] = {name: {} for name in tiers}
        self._committed: dict[int, tuple[Mark, set[str]]] = {}
        self._head = -1

    # --- facts -------------------------------------------------------------------------------

    def reached(self, mark: Mark) -> None:
        """Training stands at this boundary."""
        self._now = mark

    def sealed(self, tier: str, mark: Mark, role: str = "dp0") -> None:
        """``role`` has a sealed snapshot of that boundary in ``tier``."""
        self._sealed[tier].setdefault(mark.step, (mark, set()))[1].add(role)

    def freed(self, tier: str, step: int, role: str = "dp0") -> None:
        """That snapshot is there no more: its slot is being written again, or was lost."""
        if step in self._sealed[tier]:
            holders = self._sealed[tier][step][1]
            holders.discard(role)
            if not holders:
                del self._sealed[tier][step]

    def committed(self, c: int, mark: Mark, tiers: Iterable[str]) -> None:
        """Checkpoint ``c`` was committed, whole in each of ``tiers``."""
        self._committed[c] = (mark, set(tiers))
        self._head = max(self._head, mark.step)

    def added(self, c: int, tier: str) -> None:
        """A verified copy of ``c`` is in ``tier``; of no account when ``c`` has been retired."""
        if c in self._committed:
            self._committed[c][1].add(tier)

    def dropped(self, c: int, tier: str | None = None) -> None:
        """``c`` was retired or found damaged: in one tier, or everywhere."""
        if tier is None:
            self._committed.pop(c, None)
        elif c in self._committed:
            self._committed[c][1].discard(tier)

    # --- questions ---------------------------------------------------------------------------

    def newest(self, tier: str) -> Mark | None:
        """The newest state that can be recovered from ``tier``.

        A snapshot can when all writers have sealed it, and it is beyond the newest commit, so that it may be
        adopted, or holds the bytes of a checkpoint that is still there.
        """
        steps = {mark.step for mark, _ in self._committed.values()}
        snapshots = [
            mark
            for mark, holders in self._sealed[tier].values()
            if holders >= self._roles and (mark.step > self._head or mark.step in steps)
        ]
        commits = [mark for mark, tiers in self._committed.values() if tier in tiers]
        return max(snapshots + commits, default=None)

    def standing(self, domain: str, now: float) -> Standing:
        """Were ``domain`` lost at time ``now``."""
        newest, source = self._start, None
        if self._home is None or outlives(self._tiers[self._home], domain):
            for name, traits in self._tiers.items():
                mark = self.newest(name) if outlives(traits, domain) else None
                if mark is not None and (source is None or mark > newest):
                    newest, source = mark, name
        steps, seconds = self._now.step - newest.step, now - newest.time
        return Standing(
            domain, source, newest, steps, seconds, self._now.tokens - newest.tokens,
            tuple(goal for goal in self._goals if goal.domain == domain and _breached(goal, steps, seconds)),
        )  # fmt: skip

    def standings(self, now: float) -> tuple[Standing, ...]:
        """Every failure domain that a tier outlives or a goal names."""
        named = {goal.domain for goal in self._goals}
        known = [d for d in DOMAINS if any(d in traits.survives for traits in self._tiers.values())]
        return tuple(self.standing(d, now) for d in [*known, *sorted(named.difference(known))])

    def breaches(self, now: float) -> tuple[Standing, ...]:
        """The standings of which a goal is breached."""
        return tuple(standing for standing in self.standings(now) if standing.breached)

    def lag(self, tier: str, now: float) -> Lag:
        newest = self.newest(tier) or self._start
        return Lag(
            tier, self._now.step - newest.step, now - newest.time, self._now.tokens - newest.tokens
        )  # fmt: skip


def _breached(goal: Goal, steps: int, seconds: float) -> bool:
    return (goal.rpo_steps is not None and steps > goal.rpo_steps) or (
        goal.rpo_seconds is not None and seconds > goal.rpo_seconds
    )
