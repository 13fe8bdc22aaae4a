"""Bugs planted in the adoption of snapshots; each must be found in worlds whose hosts remember."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from durable_core.commit import adopt as adoption
from durable_core.commit import save
from durable_core.commit.adopt import Adoption, Declined, Replaced, Sight, choose
from durable_core.commit.effects import Program, PutIfAbsent
from durable_core.commit.journal import AppendInDoubt, View
from durable_core.commit.request import SaveAborted, SaveRequest
from durable_core.errors import InDoubt
from durable_core.testing.planted import Plant
from durable_core.testing.sim.adopting import AdoptingTrainer
from durable_core.testing.sim.process import intercepted
from durable_core.testing.sim.subject import MemoryRules, Subject

_UNFIT = adoption._unfit


def _any_generation(replaced: Replaced, sight: Sight) -> str:
    """Takes every seal for one of the generation that has been replaced."""
    forged = replace(
        sight,
        generation=replaced.generation,
        launch_id=replaced.launch_id,
        head=replaced.head,
        after=replaced.head_step,
    )
    return _UNFIT(replaced, forged)


def _any_step(replaced: Replaced, sight: Sight) -> str:
    return _UNFIT(replace(replaced, head_step=None), sight)


def _newest_of_each(replaced: Replaced, sights: Iterable[Sight], *, reason: str = "") -> Adoption | Declined:
    """Every writer adopts the newest that it has sealed."""
    fitting = [sight for sight in sights if not _UNFIT(replaced, sight)]
    found = {sight.role: (sight,) for sight in sorted(fitting, key=lambda sight: sight.step)}
    if replaced.bar or reason or found.keys() != set(replaced.members):
        return choose(replaced, fitting, reason=reason)
    step = found[replaced.members[0]][0].step
    return Adoption(replaced.generation, step, replaced.head, replaced.head_step, found)


def _whatever_the_reason(replaced: Replaced, sights: Iterable[Sight], *, reason: str = "") -> Any:
    doubted = "doubted" in replaced.bar
    return choose(replace(replaced, bar="") if doubted else replaced, sights)


def _behind_the_head(replaced: Replaced, sights: Iterable[Sight], *, reason: str = "") -> Any:
    back = "goes back" in replaced.bar
    return choose(replace(replaced, bar="") if back else replaced, sights, reason=reason)


def _trains_on_in_doubt(view: View, request: SaveRequest) -> Program[Any]:
    """Takes a commit that nothing was heard of for one that did not happen."""
    program = save.save_coordinator if request.coordinates else save.save_writer
    try:
        return (yield from program(view, request))
    except AppendInDoubt as doubt:
        raise SaveAborted("nothing was heard of the adoption", doubt.view) from doubt


def unheard(program: Program[Any], script: Any) -> Program[Any]:
    """While it adopts, a coordinator hears nothing of the commit that it sends."""

    def lose(effect: Any) -> Program[Any]:
        if isinstance(effect, PutIfAbsent) and b"checkpoint.committed" in effect.data and script.job.adopting:
            raise InDoubt("no answer")
        return (yield effect)

    return intercepted(lose, program) if isinstance(script, AdoptingTrainer) else program


_TORN = r"is torn|does not restore|does not continue"


def _plant(name: str, sign: str, seeds: int, patches: Any = (), **rules: Any) -> Plant:
    return Plant(Subject(name, memory=MemoryRules(**rules), patches=patches), sign, seeds)


ADOPTION_PLANTS: tuple[Plant, ...] = (
    _plant("adopts a half-sealed set", _TORN, 100, seals_early=True, verifies=False),
    _plant(
        "adopts snapshots of older generations",
        "does not continue",
        1000,
        patches=((adoption, "_unfit", _any_generation),),
    ),
    _plant("adopts without copying, while the old worker scribbles", _TORN, 1000, copies=False),
    _plant("copies without verifying", _TORN, 1000, verifies=False),
    _plant(
        "starts from memory below the newest commit",
        r"training starts at step \d+, behind",
        100,
        patches=((adoption, "_unfit", _any_step),),
        waits_for_commit=False,
    ),
    _plant("mixes steps of two writers", _TORN, 100, choose=_newest_of_each),
    _plant(
        "adopts after a numeric restart",
        "restart was for F12|itself doubted",
        1000,
        choose=_whatever_the_reason,
    ),
    _plant("adopts behind a damaged head", "went back behind", 3000, choose=_behind_the_head),
    _plant(
        "reuses a slot before all have sealed a newer one",
        r"was sealed by all of generation \d+, and lost",
        300,
        reusable=lambda slot, common: True,
    ),
    _plant(
        "takes the least of the newest for a step that all have sealed",
        r"was sealed by all of generation \d+, and lost",
        4000,
        common=lambda sealed: min(max(steps, default=-1) for steps in sealed),
    ),
    _plant("seals only the rows since its last snapshot", r"the ledger of", 100, rows_since_commit=False),
    Plant(
        Subject(
            "trains on while the adoption is in doubt",
            memory=MemoryRules(adopt=_trains_on_in_doubt),
            wrap=unheard,
        ),
        r"holds Model",
        100,
    ),
)
