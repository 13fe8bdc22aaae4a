"""L6. A long run under random faults: the end must be the one it would have had, and the waste the one
predicted.

``python -m durable_core.testing.drills.chaos --minutes 15 --mean 60 --seed 1``
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from durable_core.engine import audit
from durable_core.format.record import Kind
from durable_core.testing.cluster import Expectation, expectation
from durable_core.testing.drills.ground import DrillFailed, Ground, Launched
from durable_core.testing.drills.orders import Mark

#: Kind of fault -> how often, relative to the others.
FAULTS = {"worker": 6, "all workers": 1, "frozen worker": 2, "controller": 1, "launcher": 2, "notice": 2}
#: Kinds that cost no restart, and kinds that cost no step.
HARMLESS, LOSSLESS = ("controller",), ("notice",)
STEP_LIMIT_S = 4.0
#: Standard deviations that the measured waste may be from the predicted one.
MOST_SIGMAS = 3.0


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str
    rank: int


def schedule(seed: int, *, mean_s: float, total_s: float, ranks: int) -> tuple[Fault, ...]:
    """A Poisson process of faults: the same for the same seed."""
    chance, now = random.Random(seed), 0.0
    found: list[Fault] = []
    while True:
        now += chance.expovariate(1 / mean_s)
        if now >= total_s:
            return tuple(found)
        kind = chance.choices(list(FAULTS), list(FAULTS.values()))[0]
        found.append(Fault(now, kind, chance.randrange(ranks)))


@dataclass
class Ordeal:
    """One run on its ground, from the first launch to its end. ``fell``: when (monotonic) and of what kind
    faults have fallen."""

    ground: Ground
    flags: tuple[str, ...]
    fell: list[tuple[float, str]] = field(default_factory=list)
    launched: Launched | None = None

    def endure(self, faults: tuple[Fault, ...], limit_s: float) -> None:
        """``DrillFailed`` when it does not come to its end."""
        clock = self.ground.clock
        began = clock.monotonic()
        pending = list(faults)
        self._start()
        while clock.monotonic() < began + limit_s:
            assert self.launched is not None
            code = self.launched.process.poll()
            if code == 0:
                return
            if code is not None:
                if code not in (75, -signal.SIGKILL):
                    raise DrillFailed(f"the launcher ended with {code}; it said: {self.launched.said()}")
                self._start()
            if pending and clock.monotonic() - began >= pending[0].at_s:
                self._happen(pending.pop(0))
            clock.sleep(0.05)
        raise DrillFailed("the run did not come to its end")

    def _start(self) -> None:
        self.launched = self.ground.launch(*self.flags)

    def _happen(self, fault: Fault) -> None:
        assert self.launched is not None
        alive = self._alive()
        victim = alive.get(fault.rank)
        if fault.kind == "launcher":
            self.launched.process.kill()
        elif fault.kind == "notice":
            self.launched.process.terminate()
        elif fault.kind == "controller":
            _signal(self.ground.processes("durable_core.launch.controller"), signal.SIGKILL)
        elif fault.kind == "all workers":
            _signal(alive.values(), signal.SIGKILL)
        elif victim is not None:
            _signal([victim], signal.SIGSTOP if fault.kind == "frozen worker" else signal.SIGKILL)
        else:
            fault = replace(fault, kind="(none there)")
        self.fell.append((self.ground.clock.monotonic(), fault.kind))

    def _alive(self) -> dict[int, int]:
        """Rank -> pid of the workers that train now."""
        last = {mark.rank: mark.pid for mark in self.ground.marks()}
        pids = set(self.ground.processes())
        return {rank: pid for rank, pid in last.items() if pid in pids}


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


@dataclass(frozen=True)
class Waste:
    """``trained``: seconds of steps that count; ``lost``: of steps that were undone; ``down``: between the
    last step of one generation and the first of the next (``downs``: each, with its begin); ``total``: from
    the first step to the last."""

    trained: float
    lost: float
    down: float
    total: float
    downs: tuple[tuple[float, float], ...] = ()

    @property
    def share(self) -> float:
        return (self.lost + self.down) / self.total


def wasted(marks: list[Mark], rank: int = 0) -> Waste:
    """Where the time of one rank went, from its marks."""
    steps = [mark for mark in marks if mark.rank == rank and mark.what == "step"]
    final = {mark.step: mark for mark in steps}  # the last execution of a step is the one that counts
    trained = lost = 0.0
    downs = []
    for before, mark in pairwise(steps):
        spent = mark.time - before.time
        if mark.pid != before.pid:
            downs.append((before.time, spent))
        elif final[mark.step] is mark:
            trained += spent
        else:
            lost += spent
    down = sum(spent for _, spent in downs)
    return Waste(trained, lost, down, steps[-1].time - steps[0].time if steps else 0.0, tuple(downs))


def predicted(
    waste: Waste, fell: Sequence[tuple[float, str]], *, mean_s: float, interval_s: float, lag_s: float
) -> tuple[Expectation, dict[str, float]]:
    """The waste to expect, and what of it was measured in the run itself: how long a recovery takes and how
    much that scatters (those into which no second fault fell), and how long after its step a checkpoint is
    committed. What is put to the test is the rest: how often it is interrupted, and how much is lost then.

    Steps go on while a checkpoint is written, so saving costs nothing. A fault that loses no step counts by
    an interval that is shorter in proportion: with saving free, only what is lost depends on it.
    """
    alone = [spent for begin, spent in waste.downs if _faults(fell, begin, spent) <= 1]
    alone = alone or [spent for _, spent in waste.downs] or [0.0]
    restart, sigma = fmean(alone), stdev(alone) if len(alone) > 1 else 0.0
    whole = sum(FAULTS.values())
    stopping = whole - sum(FAULTS[kind] for kind in HARMLESS)
    losing = stopping - sum(FAULTS[kind] for kind in LOSSLESS)
    given: dict[str, float] = {
        "interval": interval_s * losing / stopping, "mtbf": mean_s * whole / stopping,
        "restart": restart, "restart_sigma": sigma, "lag": lag_s * losing / stopping,
    }  # fmt: skip
    return expectation(
        waste.trained, interval=given["interval"], cost=0.0, mtbf=given["mtbf"], restart=restart,
        restart_sigma=sigma, lag=given["lag"],
    ), given  # fmt: skip


def _faults(fell: Sequence[tuple[float, str]], begin: float, spent: float) -> int:
    """Within a recovery, or just before the step that came after."""
    return sum(begin <= at <= begin + spent and kind not in HARMLESS for at, kind in fell)


def lag_of(ground: Ground) -> float:
    """Seconds from a step to the commit of its checkpoint, in the median."""
    clock = ground.clock
    behind = clock.now() - clock.monotonic()  # the journal has the time of day, marks have not
    done = {
        (mark.generation, mark.step): mark.time + behind for mark in ground.marks() if mark.what == "step"
    }
    found = [
        max(0.0, entry.record.time - done[key])
        for entry in ground.reader.entries()
        if entry.record.kind is Kind.CHECKPOINT_COMMITTED and not entry.void
        and (key := (entry.record.generation, entry.record.payload["step"])) in done
    ]  # fmt: skip
    return median(found) if found else 0.0


def run(
    base: Path, *, minutes: float, mean_s: float, seed: int, step_s: float, every: int, standbys: int
) -> dict[str, Any]:
    """The whole comparison, as JSON."""
    total = 60 * minutes
    steps = int(total / step_s * 0.8)
    calm = Ground(base / "control", limit_s=total)
    calm.order(steps=steps, step_seconds=0.0, every=steps)
    try:
        code = calm.wait(calm.launch())
    finally:
        calm.close()
    ground = Ground(base / "chaos")
    ground.order(steps=steps, step_seconds=step_s, every=every)
    flags = ("--step-limit", str(STEP_LIMIT_S), "--takeover", "--standby", str(standbys))
    ordeal = Ordeal(ground, flags)
    try:
        ordeal.endure(schedule(seed, mean_s=mean_s, total_s=total, ranks=ground.world), 3 * total)
    finally:
        ground.close()
    found, waste = audit.audit(ground.reader), wasted(ground.marks())
    state = ground.reader.state
    expected, given = predicted(
        waste, ordeal.fell, mean_s=mean_s, interval_s=every * waste.trained / steps, lag_s=lag_of(ground)
    )  # fmt: skip
    z = expected.z(waste.share)
    identical, left = ground.final() == calm.final(), ground.processes()
    return {
        "passed": identical and found.sound and not left and abs(z) <= MOST_SIGMAS,
        "steps": steps, "seed": seed, "mean_s": mean_s, "control_exit": code,
        "faults": dict(Counter(kind for _, kind in ordeal.fell)),
        "identical": identical, "audit": found.to_json(), "sound": found.sound,
        "generations": state.generation, "launches": len(ground.launches),
        "failures": dict(Counter(str(each.payload["class"]) for each in state.failures)),
        "left": left,
        "waste": {
            "trained_s": waste.trained, "lost_s": waste.lost, "down_s": waste.down, "total_s": waste.total,
            "recoveries": len(waste.downs), "measured": waste.share, "predicted": expected.waste,
            "sigma": expected.sigma, "error": expected.error, "z": z, "model": given,
        },
        "every_steps": every, "step_seconds": step_s,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--mean", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--standby", type=int, default=2, help="as of durable launch")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="durable-chaos-"))
    report = run(
        base, minutes=options.minutes, mean_s=options.mean, seed=options.seed, step_s=options.step_seconds,
        every=options.every, standbys=options.standby,
    )  # fmt: skip
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
