"""The system under test, as the simulator sees it: every part that a planted bug may replace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from durable_core.commit import adopt, claim, collect, save
from durable_core.commit.effects import Program
from durable_core.commit.journal import EMPTY, View
from durable_core.testing.sim.memory import Slot, newest_common, reusable
from durable_core.testing.sim.process import Script
from durable_core.testing.sim.store import SimStore

#: Wraps the program of one process, to change the effects it asks for.
Wrapper = Callable[[Program[Any], Script], Program[Any]]


@dataclass(frozen=True)
class MemoryRules:
    """How snapshots are sealed, chosen and adopted. The flags are bugs to plant: to seal before the bytes
    are there, to save from the dead writer's slots, not to verify, to train on from memory whatever became
    of the save, to seal rows since the snapshot before."""

    choose: Callable[..., adopt.Adoption | adopt.Declined] = adopt.choose
    adopt: Callable[..., Program[Any]] = adopt.adopt
    reusable: Callable[[Slot, int | None], bool] = reusable
    common: Callable[[Sequence[Collection[int]]], int | None] = newest_common
    seals_early: bool = False
    copies: bool = True
    verifies: bool = True
    waits_for_commit: bool = True
    rows_since_commit: bool = True


@dataclass(frozen=True)
class Subject:
    """By default the real thing, whole. ``view`` carries the authority table; ``patches`` replace
    functions of modules while a schedule runs: ``(module, name, replacement)``."""

    name: str = "the protocol"
    view: View = EMPTY
    create_run: Callable[..., Program[View]] = claim.create_run
    claim_generation: Callable[..., Program[claim.Claim]] = claim.claim_generation
    save_coordinator: Callable[..., Program[Any]] = save.save_coordinator
    save_writer: Callable[..., Program[Any]] = save.save_writer
    retire: Callable[..., Program[collect.Retirement]] = collect.retire
    sweep: Callable[..., Program[collect.Swept]] = collect.sweep
    store: Callable[[], SimStore] = SimStore
    wrap: Wrapper = field(default=lambda program, script: program)
    upgrades_token: bool = False
    memory: MemoryRules = field(default_factory=lambda: MemoryRules())
    keeps_known: bool = False
    patches: tuple[tuple[object, str, object], ...] = ()
