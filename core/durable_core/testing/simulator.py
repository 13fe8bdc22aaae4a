"""Run seeds of the simulator and say what was found."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from durable_core.testing.sim.subject import Subject
from durable_core.testing.sim.world import World


@dataclass(frozen=True)
class Finding:
    seed: int
    violations: tuple[str, ...]


def run_seed(seed: int, subject: Subject | None = None, *, trace: bool = False) -> World:
    """The world after the schedule of ``seed``; ``violations`` and ``log`` tell what happened."""
    return World(seed, subject, trace=trace).run()


def search(
    seeds: Iterable[int], subject: Subject | None = None, sign: str = "", world: type[World] = World
) -> Finding | None:
    """The first seed whose schedule violates an invariant, or ``None``.

    With ``sign``, a regular expression, only violations that it matches count. ``world``: what kind of it.
    """
    for seed in seeds:
        violations = world(seed, subject).run().violations
        found = tuple(violation for violation in violations if re.search(sign, violation))
        if found:
            return Finding(seed, found)
    return None
