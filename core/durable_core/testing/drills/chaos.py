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
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from durable_core.engine import audit
from durable_core.testing.drills.ground import DrillFailed, Ground, Launched
from durable_core.testing.drills.orders import Mark

#: Kind of fault -> how often, relative to the others.
FAULTS = {"worker": 6, "all workers": 1, "frozen worker": 2, "controller": 1, "launcher": 2, "notice": 2}
STEP_LIMIT_S = 4.0


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
    """One run on its ground, from the first launch to its end."""

    ground: Ground
    flags: tuple[str, ...]
    fell: Counter[str] = field(default_factory=Counter)
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
        workers = self.ground.processes("drills.job\0")
        alive = self._alive(workers)
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
            self.fell["(none there)"] += 1
            return
        self.fell[fault.kind] += 1

    def _alive(self, pids: list[int]) -> dict[int, int]:
        """Rank -> pid of the workers that train now."""
        last = {mark.rank: mark.pid for mark in self.ground.marks()}
        return {rank: pid for rank, pid in last.items() if pid in pids or Path(f"/proc/{pid}").exists()}


def _signal(pids: Any, number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


@dataclass(frozen=True)
class Waste:
    """``trained``: seconds of steps that count; ``lost``: of steps that were undone; ``down``: between the
    last step of one generation and the first of the next; ``total``: from the first step to the last."""

    trained: float
    lost: float
    down: float
    total: float

    @property
    def share(self) -> float:
        return (self.lost + self.down) / self.total


def wasted(marks: list[Mark], rank: int = 0) -> Waste:
    """Where the time of one rank went, from its marks."""
    steps = [mark for mark in marks if mark.rank == rank and mark.what == "step"]
    final = {mark.step: mark for mark in steps}  # the last execution of a step is the one that counts
    trained = lost = down = 0.0
    for before, mark in pairwise(steps):
        spent = mark.time - before.time
        if mark.pid != before.pid:
            down += spent
        elif final[mark.step] is mark:
            trained += spent
        else:
            lost += spent
    return Waste(trained, lost, down, steps[-1].time - steps[0].time if steps else 0.0)


def run(base: Path, *, minutes: float, mean_s: float, seed: int, step_s: float, every: int) -> dict[str, Any]:
    """The whole comparison, as JSON."""
    total = 60 * minutes
    steps = int(total / step_s * 0.8)
    calm = Ground(base / "control", limit_s=total)
    calm.order(steps=steps, step_seconds=0.0, every=every)
    try:
        code = calm.wait(calm.launch())
    finally:
        calm.close()
    ground = Ground(base / "chaos")
    ground.order(steps=steps, step_seconds=step_s, every=every)
    ordeal = Ordeal(ground, ("--step-limit", str(STEP_LIMIT_S), "--takeover"))
    try:
        ordeal.endure(schedule(seed, mean_s=mean_s, total_s=total, ranks=ground.world), 3 * total)
    finally:
        ground.close()
    found, waste = audit.audit(ground.reader), wasted(ground.marks())
    state = ground.reader.state
    return {
        "steps": steps, "seed": seed, "faults": dict(ordeal.fell), "control_exit": code,
        "identical": ground.final() == calm.final(), "audit": found.to_json(), "sound": found.sound,
        "generations": state.generation, "launches": len(ground.launches),
        "failures": dict(Counter(str(each.payload["class"]) for each in state.failures)),
        "left": ground.processes(), "waste": {**vars(waste), "share": waste.share},
        "every_steps": every, "step_seconds": step_s,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--mean", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="durable-chaos-"))
    report = run(
        base, minutes=options.minutes, mean_s=options.mean, seed=options.seed, step_s=options.step_seconds,
        every=options.every,
    )  # fmt: skip
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0 if report["identical"] and report["sound"] and not report["left"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
