"""L3. Which checkpoints to let go of: a pure decision that gives its reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from durable_core.commit.state import CheckpointInfo, RunState
from durable_core.errors import UsageError


@dataclass(frozen=True)
class Retention:
    """What is kept besides what must be (the head, restore points, pins).

    ``keep_last``: newest usable checkpoints of the lineage, at least 1. ``keep_every_n_steps``: of the
    lineage, those whose step is a multiple of it; ``None``: none. ``detection_window_steps``: the
    slowest detector's; beside the newest known-good checkpoint, the newest one at least this many
    steps older than the head is kept (SDC-06), and the oldest one since, which becomes known good next.
    Raises ``UsageError`` for other values.
    """

    keep_last: int = 3
    keep_every_n_steps: int | None = None
    detection_window_steps: int = 0

    def __post_init__(self) -> None:
        if not _is_int(self.keep_last) or self.keep_last < 1:
            raise UsageError(f"retention.keep_last must be at least 1, not {self.keep_last!r}")
        every = self.keep_every_n_steps
        if every is not None and (not _is_int(every) or every < 1):
            raise UsageError(f"retention.keep_every_n_steps must be a positive integer, not {every!r}")
        if not _is_int(self.detection_window_steps) or self.detection_window_steps < 0:
            raise UsageError("retention.detection_window_steps must be an integer >= 0")


@dataclass(frozen=True)
class Retire:
    c: int
    reason: str


def decide(state: RunState, policy: Retention) -> tuple[Retire, ...]:
    """The checkpoints to retire now, oldest first, each with its reason.

    That objects of a checkpoint are in use elsewhere does not keep it: they outlive it (``collect``). A
    corrupt one is let go only when a usable one at least as far along exists on the lineage.
    """
    kept = keep_reasons(state, policy)
    lineage = frozenset(state.lineage())
    newest = max((info.step for info in _rows(state) if info.usable and info.c in lineage), default=-1)
    retired = []
    for info in _rows(state):
        if info.c in kept or (not info.usable and info.step > newest):
            continue
        retired.append(Retire(info.c, _why_not(info, lineage, policy)))
    return tuple(retired)


def keep_reasons(state: RunState, policy: Retention) -> dict[int, str]:
    """Why each kept checkpoint is kept: ``{c: reason}``."""
    kept: dict[int, str] = {}
    for c, reason in _required(state):
        kept.setdefault(c, reason)
    rows = [state.checkpoints[c] for c in reversed(state.lineage())]
    usable = [info for info in rows if info.usable]
    for info in usable[: policy.keep_last]:
        kept.setdefault(info.c, f"one of the newest {policy.keep_last}")
    every = policy.keep_every_n_steps
    if every is not None:
        for info in usable:
            if info.step % every == 0:
                kept.setdefault(info.c, f"step {info.step} is a multiple of {every}")
    for info in _known_good(state, usable, policy):
        kept.setdefault(info.c, "newest known-good")
    candidate = _candidate(usable) if policy.detection_window_steps else None
    if candidate is not None:
        kept.setdefault(candidate.c, "the next to be known good")
    for tier in sorted({tier for info in usable for tier in info.tiers}):
        newest = next(info for info in usable if tier in info.tiers)
        kept.setdefault(newest.c, f"newest in tier {tier}")
    return kept


def _required(state: RunState) -> Iterator[tuple[int, str]]:
    """What the journal would not let go of anyway."""
    if state.head is not None:
        yield state.head, "the head"
    if state.active and state.restore_point is not None:
        yield state.restore_point, f"generation {state.generation} restores from it"
    if state.pending_fork is not None and state.pending_fork.origin is not None:
        yield state.pending_fork.origin, "a fork is about to start from it"
    for info in _rows(state):
        if info.pinned:
            yield info.c, "pinned"


def _known_good(state: RunState, usable: list[CheckpointInfo], policy: Retention) -> Iterator[CheckpointInfo]:
    """The newest known-good one, and the newest beyond the detection window."""
    good = [info for info in usable if info.known_good]
    horizon = (state.head_step or 0) - policy.detection_window_steps
    yield from good[:1]
    yield from [info for info in good if info.step <= horizon][:1]


def _candidate(usable: list[CheckpointInfo]) -> CheckpointInfo | None:
    """The oldest usable one since the newest known-good one (or ever): let go of each before the window has
    passed over it, and none would become known good."""
    unmarked = itertools.takewhile(lambda info: not info.known_good, usable)
    return next(reversed(list(unmarked)), None)


def _why_not(info: CheckpointInfo, lineage: frozenset[int], policy: Retention) -> str:
    if info.c not in lineage:
        return "off the lineage of the head"
    if not info.usable:
        return f"{info.state.value}, and a usable checkpoint at least as far along exists"
    return f"older than the newest {policy.keep_last}"


def _rows(state: RunState) -> Iterator[CheckpointInfo]:
    return (info for info in state.checkpoints.values() if info.held)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
