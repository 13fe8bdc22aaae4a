"""L6. Scenarios in which a worker, or what it computes, is at fault. The job does it to itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from durable_core.testing.drills.checks import Incident
from durable_core.testing.drills.ground import Ground
from durable_core.testing.drills.orders import Injection, Mark

NEVER = "100000"  # seconds
#: In which a group that stands still is replaced: less than it takes torch to give a survivor up.
BOUND_S = 30.0
#: Of the end-to-end verification, and the longest time from a restore to the next one, in seconds.
KILLS, APART_S = 20, 2.0


def _played(ground: Ground, *flags: str, exit_code: int = 0, without: str = "") -> Incident:
    """One launch, in which the fault that was ordered happens."""
    launched = ground.launch(*flags, without=without)
    began = ground.until("the fault", _injected).time
    return Incident(began, ((ground.wait(launched), exit_code),))


def _bounded(ground: Ground, *flags: str) -> Incident:
    """The same for what stands still for ever when nobody ends it."""
    launched = ground.launch(*flags)
    began = ground.until("the fault", _injected).time
    fault = ground.until_next(began, within_s=BOUND_S)
    exits = () if fault else ((ground.wait(launched), 0),)
    return Incident(began, exits, {"bounded": fault})


def _injected(marks: list[Mark]) -> Mark | None:
    return next((mark for mark in marks if mark.what == "injected"), None)


def _restarting(defended: bool) -> tuple[str, ...]:
    return () if defended else ("--max-restarts", "0")


def kill_in_compute(ground: Ground, defended: bool) -> Incident:
    ground.order(Injection("kill", step=13, rank=1))
    return _played(ground, "--standby", "0", *_restarting(defended))


def kill_in_save(ground: Ground, defended: bool) -> Incident:
    point = ground.chance.choice(("K4", "K6", "K8", "K10", "K12", "K13", "K15"))
    ground.order(Injection("point", step=12, rank=0, argument=point))
    return _played(ground, *_restarting(defended))


def hang(ground: Ground, defended: bool) -> Incident:
    ground.order(Injection("hang", step=13, rank=1))
    return _bounded(ground, "--step-limit", "3" if defended else NEVER)


def straggler(ground: Ground, defended: bool) -> Incident:
    """Told while it lasts, on the worker that is slow; nothing is restarted for it."""
    slow = Injection("slow", step=8, rank=1, argument="0.2")
    ground.order(slow, steps=80)
    launched = ground.launch(without="" if defended else "comparison")
    told = ground.until_told("straggler", "rank 1")
    return Incident(ground.clock.monotonic(), ((ground.wait(launched), 0),), {"named": told})


def stubborn(ground: Ground, defended: bool) -> Incident:
    ground.order(Injection("stubborn", step=13, rank=0), Injection("kill", step=13, rank=1), step_seconds=0.1)
    return _bounded(ground, "--kill-grace", "2" if defended else NEVER)


def deterministic(ground: Ground, defended: bool) -> Incident:
    """As often as it takes to see that it is the same each time; not until the budget is gone."""
    ground.order(Injection("raise", step=13, rank=1, once=False))
    return _played(
        ground, "--max-restarts", "4", exit_code=1, without="" if defended else "signatures"
    )  # fmt: skip


def no_final_record(ground: Ground, defended: bool) -> Incident:
    leave = (Injection("leave", step=13, rank=rank, argument="0") for rank in range(ground.world))
    ground.order(*leave)
    return _played(ground, without="" if defended else "final record")


def not_a_number(ground: Ground, defended: bool) -> Incident:
    ground.order(Injection("nan", step=13, rank=0), without=() if defended else ("detectors",))
    return _played(ground, "--on-numeric", "stop")


def gradient_flip(ground: Ground, defended: bool) -> Incident:
    ground.order(
        Injection("flip", step=13, rank=1), agree_every=3, without=() if defended else ("detectors",)
    )
    return _played(ground, "--on-numeric", "stop")


def again_and_again(ground: Ground, defended: bool) -> Incident:
    """``KILLS`` times some worker, at some instant after the group has come up: while it computes, saves or
    ends a save. What is left of the run is compared with one that was never disturbed."""
    ground.order(steps=20 * KILLS)
    launched = ground.launch(*_restarting(defended))
    began, last = 0.0, 0
    for _ in range(KILLS if defended else 1):
        victim = ground.chance.randrange(ground.world)
        opened = ground.until("the next generation", _opened(victim, beyond=last))
        ground.clock.sleep(ground.chance.random() * APART_S)
        began, last = began or ground.clock.monotonic(), opened.generation
        os.kill(opened.pid, signal.SIGKILL)
    return Incident(began, ((ground.wait(launched), 0),))


def _opened(rank: int, beyond: int) -> Callable[[list[Mark]], Mark | None]:
    def found(marks: list[Mark]) -> Mark | None:
        return next(
            (one for one in marks if (one.what, one.rank) == ("opened", rank) and one.generation > beyond),
            None,
        )

    return found
