"""What the auditor notes of checkpoints and generations: plain values, apart from the fold's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from durable_core.format import layout
from durable_core.testing.sim.content import Model


@dataclass
class Fact:
    """What the auditor knows of one checkpoint."""

    c: int
    generation: int
    step: int
    parent: int | None
    nonce: str
    fate: str = "allocated"
    payload: Mapping[str, Any] = field(default_factory=dict)
    pinned: bool = False
    adopted: Mapping[str, Any] | None = None
    marks: frozenset[str] = frozenset()  # what was marked damaged when it was allocated

    @property
    def name(self) -> layout.CheckpointName:
        return layout.CheckpointName(self.generation, self.c, self.nonce)


@dataclass(frozen=True)
class Replaced:
    """The generation before the current one, at the moment when it was replaced."""

    generation: int = 0
    head: int | None = None
    members: tuple[str, ...] = ()


#: What an adopted checkpoint holds, and who trained each step since its parent; known to whoever trained.
Witness = Callable[[Fact], "tuple[Model, list[list[int]]]"]
