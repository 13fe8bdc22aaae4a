"""One schedule: processes, a store and a clock under a scheduler that means no good.

At every turn one thing happens: a process takes a step, a write under way moves on, or a fault
strikes. All chance comes from one seed, so a seed is a schedule and can be run again with a trace.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

from durable_core.commit.journal import View, absorb
from durable_core.commit.request import SaveOutcome
from durable_core.errors import JournalBrokenError
from durable_core.format import layout
from durable_core.format.record import decode
from durable_core.testing.invariants import Auditor
from durable_core.testing.sim.keepers import Controller, Reader, Sweeper
from durable_core.testing.sim.perform import Performing
from durable_core.testing.sim.process import Job, Process, Script, Status
from durable_core.testing.sim.scripts import Emergency, Follower, Stray, Trainer
from durable_core.testing.sim.store import Stage, Write
from durable_core.testing.sim.subject import Subject

#: Turns of trouble; after them everything heals and the run must come to a good end.
TROUBLE = 1500
#: Turns in which a healed world has to come to rest.
CALM = 30_000
#: Starts of worker groups by the supervisor, the last one in calm.
JOBS = 6


@dataclass(frozen=True)
class Weather:
    """How bad one schedule gets; drawn per seed, so that some seeds know one kind of trouble only.

    ``posix``: one host that can lose power, where a dead process's writes die with it. Otherwise a
    remote store: requests outlive their sender and may land at any later time.
    """

    posix: bool
    kill: float
    kill_at_point: float
    pause_at_point: float
    pause: float
    wake: float
    lose_power: float
    lose_ack: float
    unavailable: float
    fill: float
    slow_writes: float
    spawn: float

    @staticmethod
    def drawn(chance: random.Random) -> Weather:
        def maybe(rate: float, odds: float = 0.6) -> float:
            return rate if chance.random() < odds else 0.0

        posix = chance.random() < 0.5
        return Weather(
            posix=posix,
            kill=maybe(0.006),
            kill_at_point=maybe(0.04),
            pause_at_point=maybe(0.06),
            pause=maybe(0.02),
            wake=chance.choice((0.01, 0.05)),
            lose_power=maybe(0.004) if posix else 0.0,
            lose_ack=maybe(chance.choice((0.02, 0.1))),
            unavailable=maybe(0.03),
            fill=maybe(0.002, 0.3),
            slow_writes=chance.choice((0.0, 0.3, 0.8)),
            spawn=0.06,
        )


class World(Performing):
    """See ``run``. ``violations`` is what went wrong, empty when nothing did. ``steady``: how many of the
    starts have as many writers as the first."""

    steady = 0.8

    def __init__(self, seed: int, subject: Subject | None = None, *, trace: bool = False) -> None:
        super().__init__()
        self.subject = subject or Subject()
        self.chance = random.Random(seed)
        self.weather = Weather.drawn(self.chance)
        self.seed = seed
        self.tracing = trace
        self.store = self.subject.store()
        self.store.appeared = self._appeared
        self.truth: View = self.subject.view
        self.auditor = self._auditor()
        self.writers = self.chance.choice((1, 1, 2, 3))
        self.target = self.chance.randint(4, 8)
        self.every = self.chance.randint(1, 2)
        self.reuse = self.chance.random() < 0.7
        self.acks: list[SaveOutcome] = []
        self.given_up: set[int] = set()
        self.jobs: list[Job] = []
        self.calm = False

    # -- the schedule

    def run(self) -> World:
        """Trouble, then calm, then the audit."""
        with self._patched():
            self._start_job("launch-0")
            self._add("reader", Reader(self, self.chance.randint(1, 4)))
            if self.chance.random() < 0.7:
                self._add("controller", Controller(self, "ctl-0", self.chance.randint(2, 6)))
            for _ in range(TROUBLE):
                if not self._turn():
                    break
                self._strike()
            self._heal()
            self._audit()
        return self

    def _turn(self) -> bool:
        """One step of one process or write; ``False`` when there is nothing left to do."""
        ready = [p for p in self.processes if p.status is Status.READY and self._runnable(p)]
        options: list[Process | Write] = [*ready, *self.loose]
        if not options:
            waiting = [p.wake for p in self.processes if p.status is Status.READY and p.write is None]
            if not waiting:
                return False
            self.clock = max(self.clock, min(waiting))
            return True
        self.clock += 0.002
        chosen = options[self.chance.randrange(len(options))]
        if isinstance(chosen, Write):
            self._drift(chosen)
        else:
            self.step(chosen)
        return True

    def _drift(self, write: Write) -> None:
        """A request whose sender no longer listens arrives, after all, or never does."""
        self.loose.remove(write)
        if self.chance.random() < 0.5:
            self.trace(f"a stray request lands: {write.key}")
            while not write.answered:
                self.store.advance(write)

    def _strike(self) -> None:
        chance, weather = self.chance, self.weather
        alive = [p for p in self.processes if p.alive]
        if alive and chance.random() < weather.kill:
            self.kill(chance.choice(alive), "killed")
        if alive and chance.random() < weather.pause:
            victim = chance.choice(alive)
            if victim.status is Status.READY:
                self.trace(f"{victim.label} is stopped")
                victim.status = Status.PAUSED
        paused = [p for p in alive if p.status is Status.PAUSED]
        if paused and chance.random() < weather.wake:
            self._wake(chance.choice(paused))
        if chance.random() < weather.lose_power:
            self._lose_power()
        if chance.random() < weather.fill or (self.store.full and chance.random() < 0.02):
            self.store.full = not self.store.full
            self.trace(f"store full: {self.store.full}")
        if chance.random() < weather.spawn:
            self._supervise()

    def _supervise(self) -> None:
        """Supervisors act on suspicion: a coordinator that is dead, gone or silent is replaced."""
        chance = self.chance
        job = self.jobs[-1]
        if job.coordinator.status is Status.READY:
            if chance.random() < 0.03:
                self._add("controller", Controller(self, f"ctl-{len(self.processes)}", 3))
            elif len(job.roles) == 1 and job.token is not None and chance.random() < 0.05:
                self._add("emergency", Emergency(self, job, "dp0"))
            return
        if len(self.jobs) >= JOBS - 1:
            return
        past = chance.choice(self.jobs).launch
        launch = past if chance.random() < 0.6 else f"launch-{len(self.jobs)}"
        self._start_job(launch, takeover=chance.random() < 0.1)

    def _start_job(self, launch: str, *, takeover: bool = False, extends: bool = False) -> None:
        writers = self.writers if self.chance.random() < self.steady else self.chance.randint(1, 3)
        roles = tuple(f"dp{i}" for i in range(writers))
        job = self._job(len(self.jobs), launch, roles, takeover, extends)
        self.jobs.append(job)
        self.trace(f"job {job.number} starts as {launch}")
        for role in roles:
            job.members.append(self._add(f"job{job.number}.{role}", self._script(job, role)))
        if writers > 1 and self.chance.random() < 0.3:
            self._add(f"job{job.number}.stray", Stray(self, job, "dp9"))

    def _job(self, number: int, launch: str, roles: tuple[str, ...], takeover: bool, extends: bool) -> Job:
        return Job(number, launch, roles, takeover, extends)

    def _script(self, job: Job, role: str) -> Script:
        return Trainer(self, job, role) if role == job.roles[0] else Follower(self, job, role)

    def _add(self, label: str, script: Script) -> Process:
        process = Process(len(self.processes), label, script, self.subject.wrap(script.run(), script))
        self.processes.append(process)
        return process

    def _wake(self, process: Process) -> None:
        self.trace(f"{process.label} wakes up")
        process.status = Status.READY

    def _lose_power(self) -> None:
        self.trace("power is lost")
        for process in self.processes:
            if process.alive:
                self.kill(process, "lost power")
        self.loose.clear()
        self.store.lose_power(self.chance)
        self._reread()

    def _auditor(self) -> Auditor:
        return Auditor()

    def _reread(self) -> None:
        """The past is what survived."""
        self.truth = self.subject.view
        violations = self.auditor.violations
        self.auditor = self._auditor()
        while (data := self.store.get(layout.journal_key(self.truth.next_seq))) is not None:
            if not self._fold(data):
                break
        self.auditor.violations = violations + self.auditor.violations
        if list(self.store.keys(layout.JOURNAL))[self.truth.next_seq :]:
            self.complain("a power loss left a hole in the journal")

    def _heal(self) -> None:
        """No more faults; whoever was stopped wakes up; a last job must bring the run to its end."""
        self.calm = True
        self.store.full = False
        for process in self.processes:
            if process.status is Status.PAUSED:
                self._wake(process)
        self._rest()
        terminal = self.truth.state.terminal
        if terminal is None:
            self._finish()
        elif terminal.outcome == "succeeded" and self.chance.random() < 0.3:
            self.target += 2
            self._finish(extends=True)
        self._add("sweeper", Sweeper(self))
        self._rest()
        self.auditor.check_residue(self.store.keys(layout.CHECKPOINTS))

    def _rest(self) -> None:
        for _ in range(CALM):
            if not self._turn():
                return
        self.complain("the world does not come to rest")

    def _finish(self, *, extends: bool = False) -> None:
        """A start without faults brings the run to its end, whatever came before."""
        self._start_job("launch-last", extends=extends)
        self._rest()
        last = self.jobs[-1].coordinator
        if last.outcome.startswith("no usable") and self.auditor.newest_usable() is None:
            return  # an operator called the last sound checkpoint corrupt; only a person can go on
        if last.outcome != "finished":
            self.complain(f"the last start, without faults, ended as {last.outcome!r}")
        elif self.truth.state.terminal is None:
            self.complain("the last start, without faults, did not finish the run")

    def counts(self) -> dict[str, int]:
        """What this schedule contained, for a summary."""
        facts = self.auditor.facts.values()
        return {
            "records": self.truth.next_seq,
            "generations": self.truth.state.generation,
            "checkpoints allocated": len(self.auditor.facts),
            "committed": sum(bool(fact.payload) for fact in facts),
            "retired": sum(fact.fate == "retired" for fact in facts),
            "acknowledged": len(self.acks),
            "processes": len(self.processes),
            "killed": sum(process.status is Status.KILLED for process in self.processes),
            "refused": sum(process.refused for process in self.processes),
        }

    # -- what scripts tell

    def acknowledged(self, outcome: SaveOutcome) -> None:
        self.acks.append(outcome)

    def gave_up(self, c: int) -> None:
        self.given_up.add(c)

    def complain(self, message: str) -> None:
        self.auditor.complain(message)

    def refused(self, script: object) -> None:
        for process in self.processes:
            if process.script is script:
                process.refused = True

    # -- watching the store

    def _appeared(self, key: str, data: bytes) -> None:
        seq = layout.parse_journal_key(key)
        if seq is None:
            return
        if seq != self.truth.next_seq:
            self.complain(f"slot {seq} is filled while slot {self.truth.next_seq} is empty")
            return
        self._fold(data)

    def _fold(self, data: bytes) -> bool:
        """Take in the next record; ``False`` when the journal cannot be followed any further."""
        record = decode(data, key=layout.journal_key(self.truth.next_seq))
        try:
            self.truth, _, verdict = absorb(self.truth, data)
        except JournalBrokenError as error:
            self.complain(str(error))
            return False
        self.trace(
            f"  slot {record.seq}: {record.kind.value} g{record.generation} {record.launch_id} "
            f"{dict(record.payload) if 'c' in record.payload else ''} {verdict.reason}"
        )
        self.auditor.observe(record, verdict.effective)
        return True

    def _audit(self) -> None:
        auditor = self.auditor
        auditor.check_store(self.store.get)
        for ack in self.acks:
            fact = auditor.facts.get(ack.c)
            if fact is None or fact.payload.get("manifest_digest") != ack.manifest_digest:
                self.complain(f"the acknowledged commit of c{ack.c} at step {ack.step} is lost")
        for c in sorted(self.given_up):
            if c in auditor.facts and auditor.facts[c].payload:
                self.complain(f"c{c} is committed although its save was reported as given up")
        if auditor.voids:
            self.complain(f"{auditor.voids} void records were written")

    @contextmanager
    def _patched(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, name, replacement in self.subject.patches:
                stack.enter_context(mock.patch.object(module, name, replacement))
            yield

    @property
    def violations(self) -> list[str]:
        return self.auditor.violations


__all__ = ["Stage", "Weather", "World"]
