"""L3. Saving groups of parameters at cadences of their own: a weaker contract, by choice only. Pure.

Exact checkpoints have all groups at one step; that is what ``reuse`` makes cheap, and the default. A
*composite* has groups at different steps: a state that training never was in. It is marked
``consistent=false``, holds the step of each group, and is allowed only where nothing stronger than the same
distribution was promised and somebody asked for it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from durable_core.errors import UsageError
from durable_core.types import Promise

FULL = "full"


@dataclass(frozen=True)
class Group:
    """Tensors whose keys match one of ``patterns`` (as of a shell) are saved every ``every`` steps."""

    name: str
    every: int
    patterns: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.name or self.name == FULL or self.every < 1:
            raise UsageError(f"group {self.name!r} every {self.every} steps: needs a name, and at least 1")


@dataclass(frozen=True)
class Cadences:
    """``groups``: a key belongs to the first that matches; what matches none is saved every time.

    Everything is saved, at one step, every ``full_steps`` steps or ``full_seconds`` seconds, whichever is
    first.
    """

    groups: tuple[Group, ...]
    full_steps: int = 10_000
    full_seconds: float = 7_200.0

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        if not names or len(set(names)) != len(names):
            raise UsageError(f"groups {names} are not distinct names, at least one")
        if self.full_steps < 1 or not self.full_seconds > 0:
            raise UsageError("full_steps and full_seconds must be positive")

    def group_of(self, key: str) -> str | None:
        """The name of the group of a tensor; ``None``: it is saved every time."""
        for group in self.groups:
            if any(fnmatch.fnmatchcase(key, pattern) for pattern in group.patterns):
                return group.name
        return None


def published(high: Iterable[str], mid: Iterable[str], low: Iterable[str]) -> Cadences:
    """The cadences of the published recipe: 500, 1000 and 2000 steps, all every 10,000 steps or 2 hours."""
    return Cadences(
        (Group("high", 500, tuple(high)), Group("mid", 1_000, tuple(mid)), Group("low", 2_000, tuple(low)))
    )


@dataclass(frozen=True)
class Due:
    """``groups`` to save now, in the order declared; all of them and everything else when ``full``."""

    groups: tuple[str, ...]
    full: bool
    reason: str


def due(policy: Cadences, step: int, *, last_full: int | None, full_seconds: float = 0.0) -> Due:
    """What is saved at ``step``. ``last_full``: the step at which everything was last saved;
    ``full_seconds``: how long ago, by the clock of the coordinator, which announces the decision to all."""
    names = tuple(group.name for group in policy.groups)
    if last_full is None:
        return Due(names, True, "nothing has been saved whole yet")
    if step - last_full >= policy.full_steps:
        return Due(names, True, f"{step - last_full} steps since everything was saved at step {last_full}")
    if full_seconds >= policy.full_seconds:
        return Due(names, True, f"{full_seconds:.0f} s since everything was saved at step {last_full}")
    chosen = tuple(group.name for group in policy.groups if step % group.every == 0)
    return Due(chosen, False, f"step {step} is a multiple of their cadences" if chosen else "no group is due")


def held(policy: Cadences, decision: Due, keys: Iterable[str]) -> dict[str, str]:
    """Of ``keys`` those that stay as they were saved before, with their group (``SaveRequest.held``)."""
    if decision.full:
        return {}
    groups = {key: policy.group_of(key) for key in keys}
    return {key: group for key, group in groups.items() if group and group not in decision.groups}


def steps_after(steps: Mapping[str, int], decision: Due, step: int) -> dict[str, int]:
    """The step of each group in the checkpoint that ``decision`` makes at ``step``."""
    return {**steps, **dict.fromkeys(decision.groups, step)}


def is_consistent(steps: Mapping[str, int], step: int) -> bool:
    """Whether every group is of this very step: then the checkpoint is exact after all."""
    return all(each == step for each in steps.values())


def allow(policy: Cadences | None, promise: Promise, *, opted_in: bool) -> None:
    """``UsageError`` unless composites may be made: nobody gets one who did not ask, or was promised more."""
    if policy is None:
        return
    if not opted_in:
        raise UsageError(
            "groups at different steps are no state that training was ever in",
            hint="say so explicitly, or save everything: what has not changed costs nothing",
        )
    if promise is not Promise.DISTRIBUTION:
        raise UsageError(
            f"group cadences cannot keep the promise {promise.value!r}",
            hint='declare promise="distribution", or save everything at one step',
        )
