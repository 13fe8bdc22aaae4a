"""What one process is measured with: marks on the training thread, CPU, memory, and what is durable when."""

from __future__ import annotations

import os
import resource
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
TICK = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Plan:
    """Saves at the steps ``every``, ``2 * every``, …, ``saves * every``; as many steps follow the last."""

    size_mib: int
    matmuls: int
    every: int
    saves: int

    @property
    def steps(self) -> int:
        return (self.saves + 1) * self.every

    def due(self, step: int) -> bool:
        return step % self.every == 0 and step <= self.saves * self.every


class Landings:
    """Which saves are on their way, and the moment each became durable (``perf_counter``)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: list[int] = []
        self.landed: dict[int, float] = {}
        self.lost: dict[int, str] = {}
        self.waited_s: list[float] = []

    @property
    def pending(self) -> bool:
        return bool(self._pending)

    def begin(self, step: int) -> None:
        with self._changed:
            self._pending.append(step)

    def land(self, step: int | None = None) -> None:
        """``step``, or the oldest one that is pending, is durable from now on."""
        now = time.perf_counter()
        with self._changed:
            step = self._pending[0] if step is None and self._pending else step
            if step in self._pending:
                self._pending.remove(step)
                self.landed[step] = now
            self._changed.notify_all()

    def lose(self, step: int, why: str) -> None:
        with self._changed:
            if step in self._pending:
                self._pending.remove(step)
            self.lost[step] = why
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until nothing is on its way: the harness gives every write its time, and says how much."""
        began = time.perf_counter()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._pending, PATIENCE_S):
                raise TimeoutError(f"the saves of steps {self._pending} are not durable after {PATIENCE_S} s")
        self.waited_s.append(time.perf_counter() - began)


@dataclass
class Step:
    """One step: its compute until ``computed``, what is waited for until ``guarded``, the update until
    ``updated``, the boundary until ``ended``. ``wall`` and ``cpu`` (the training thread's own) hold the
    seconds at each moment; ``others``: CPU of all other threads and processes, at ``updated``."""

    number: int
    in_flight: bool
    wall: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    others: float = 0.0

    def mark(self, moment: str) -> None:
        self.wall[moment], self.cpu[moment] = time.perf_counter(), time.thread_time()

    @property
    def work_s(self) -> float:
        wall = self.wall
        return wall["computed"] - wall["begin"] + wall["updated"] - wall["guarded"]

    @property
    def guard_s(self) -> float:
        return self.wall["guarded"] - self.wall["computed"]

    @property
    def boundary_s(self) -> float:
        return self.wall["ended"] - self.wall["updated"]

    @property
    def overhead_cpu_s(self) -> float:
        """Of the training thread outside its work."""
        cpu = self.cpu
        return cpu["guarded"] - cpu["computed"] + cpu["ended"] - cpu["updated"]


@dataclass
class Tape:
    """The steps of one training, marked by its loop, and what can be said of its saves."""

    plan: Plan
    landings: Landings = field(default_factory=Landings)
    steps: list[Step] = field(default_factory=list)
    helpers_mib: float = 0.0  # the most that child processes have held

    def begin(self) -> None:
        """Of the next step. The last one of a window runs, and saves, with no write in flight: one that still
        is gets its time here, unmeasured."""
        number = len(self.steps) + 1
        if number % self.plan.every == 0:
            self.settle()
        self.steps.append(Step(number, self.landings.pending))
        self.mark("begin")

    def settle(self) -> None:
        self.landings.settle()
        held = sum(memory_mib("VmHWM", pid) for pid in descendants(os.getpid()))
        self.helpers_mib = max(self.helpers_mib, held)

    def mark(self, moment: str) -> None:
        self.steps[-1].mark(moment)

    def updated(self) -> None:
        step = self.steps[-1]
        step.others = cpu_seconds() - time.thread_time()
        if self.plan.due(step.number):
            self.landings.begin(step.number)
        self.mark("updated")

    def watch(self, optimizer: Any) -> None:
        """Marks ``guarded`` behind every hook that was registered before."""
        optimizer.register_step_pre_hook(lambda *_: self.mark("guarded"))

    def figures(self) -> dict[str, Any]:
        """Seconds, per save in order; the quiet steps are those that ran with no write in flight."""
        quiet = [step for step in self.steps[1:] if not step.in_flight]
        idle = [step for step in quiet if not self.plan.due(step.number)]
        usual = Usual(
            work=statistics.median(step.work_s for step in quiet),
            guard=statistics.median(step.guard_s for step in quiet),
            boundary=statistics.median(step.boundary_s for step in idle),
            cpu=statistics.median(step.overhead_cpu_s for step in idle),
        )
        numbers = range(self.plan.every, self.plan.steps, self.plan.every)
        return {
            "step_s": usual.work,
            "boundary_s": usual.boundary,
            "saves": [self._save(number, usual) for number in numbers if number not in self.landings.lost],
            "lost": self.landings.lost,
            "waited_s": max(self.landings.waited_s),
            "helpers_mib": self.helpers_mib,
        }

    def _save(self, number: int, usual: Usual) -> dict[str, float]:
        own, window = self.steps[number - 1], self.steps[number : number + self.plan.every]
        later = [step for step in window if not self.plan.due(step.number)]
        flown = [step for step in window if step.in_flight]
        call = own.boundary_s - usual.boundary
        guards = sum(step.guard_s - usual.guard for step in window)
        slowed = sum(step.work_s - usual.work for step in flown)
        slowed += sum(step.boundary_s - usual.boundary for step in later)
        mine = sum(step.overhead_cpu_s - usual.cpu for step in [own, *later])
        return {
            "call_s": call,
            "guard_s": guards,
            "stall_s": call + guards,
            "slowed_s": slowed,
            "slowdown": statistics.fmean(step.work_s for step in flown) / usual.work if flown else 1.0,
            "steps_in_flight": len(flown),
            "durable_s": self.landings.landed[number] - own.wall["updated"],
            "cpu_s": window[-1].others - own.others + mine,
        }


@dataclass(frozen=True)
class Usual:
    """Seconds of a step with no write in flight; ``cpu``: the training thread's outside its work."""

    work: float
    guard: float
    boundary: float
    cpu: float


def descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # that thread or process has ended
            continue
        for child in map(int, found):
            yield child
            yield from descendants(child)


def cpu_seconds() -> float:
    """Of this process, of its children that were waited for, and of those that live."""
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + reaped.ru_utime + reaped.ru_stime
    for pid in descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(map(int, fields[11:15])) / TICK
    return total


def memory_mib(name: str, pid: int | str = "self") -> float:
    """``VmRSS`` (now) or ``VmHWM`` (peak since the last reset) in MiB; shared memory counts."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise LookupError(name)


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def fsync_tree(base: Path) -> None:
    """Every file and directory below ``base``, and ``base``: what a peer left to the kernel."""
    for path in [*base.rglob("*"), base]:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
