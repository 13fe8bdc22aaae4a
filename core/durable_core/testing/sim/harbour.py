"""Worlds whose hosts remember: training killed and started again over what it had sealed in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from durable_core.commit.adopt import UNTRUSTED, Adoption, Declined, Replaced
from durable_core.format.record import Kind, decode
from durable_core.format.seal import Seal
from durable_core.testing.facts import Fact
from durable_core.testing.invariants import Auditor
from durable_core.testing.sim.adopting import AdoptingFollower, AdoptingTrainer, MemoryJob
from durable_core.testing.sim.content import Model
from durable_core.testing.sim.memory import Memory
from durable_core.testing.sim.process import Job, Process, Script, Status
from durable_core.testing.sim.reading import Broken, read_checkpoint
from durable_core.testing.sim.subject import Subject
from durable_core.testing.sim.world import World


class MemoryWorld(World):
    """One schedule of jobs that seal and adopt. The run knows what every state it ever had came from, so an
    adopted checkpoint is held against what was really trained, not against what it says of itself."""

    steady = 0.95

    def __init__(self, seed: int, subject: Subject | None = None, *, trace: bool = False) -> None:
        self.witnessed: dict[str, tuple[Model, list[list[int]]]] = {}
        super().__init__(seed, subject, trace=trace)
        chance = self.chance
        self.weather = replace(
            self.weather,
            kill=chance.choice((0.0, 0.004)),
            pause=chance.choice((0.0, 0.005)),
            kill_at_point=self.weather.kill_at_point / 2,
            pause_at_point=self.weather.pause_at_point / 3,
            lose_power=self.weather.lose_power / 4,
        )
        self.kill_job = chance.choice((0.02, 0.05))
        self.stop_job = chance.choice((0.0, 0.02))
        self.lose_host = chance.choice((0.0, 0.0, 0.002))
        self.numeric = chance.choice((0.0, 0.3))
        self.writers = chance.choice((1, 2, 2))
        self.every, self.target = chance.randint(2, 6), chance.randint(8, 16)
        self.slots = chance.choice((2, 3))
        self.snapshot_every = chance.choice((1, 1, 2))
        self.voids = chance.choice((0.0, 0.1))
        self.memory = Memory()
        self.counted: Counter[str] = Counter()
        self._births: dict[str, tuple[str, int]] = {}  # history -> the one before, the generation
        self._seals: dict[int, dict[int, set[str]]] = {}  # generation -> step -> roles

    # -- the schedule

    def _strike(self) -> None:
        super()._strike()
        chance = self.chance
        job = self.jobs[-1]
        calmer = 1.0 if self._has_trained(job) else 0.05  # most of a life is training
        if chance.random() < self.kill_job * calmer:
            self._each(job, lambda process: self.kill(process, "killed with its job"))
        if chance.random() < self.stop_job * calmer:
            self._each(job, self._stop)
        if chance.random() < self.lose_host:
            self._lose_host(f"host-{chance.choice(job.roles)}")
        if isinstance(job, MemoryJob) and job.adopting and len(self.jobs) > 1 and chance.random() < 0.2:
            for process in self.jobs[-2].members:
                if process.status is Status.PAUSED:
                    self._wake(process)

    def _has_trained(self, job: Job) -> bool:
        assert isinstance(job, MemoryJob)
        steps = [job.reached.get(role, -1) for role in job.roles]
        return job.start is not None and min(steps) > job.start.step + job.number % 3

    def _each(self, job: Job, act: Callable[[Process], None]) -> None:
        for process in job.members:
            if process.status is Status.READY:
                act(process)

    def _stop(self, process: Process) -> None:
        self.trace(f"{process.label} is stopped with its job")
        process.status = Status.PAUSED

    def _lose_host(self, host: str) -> None:
        if self.weather.posix:
            return  # one host holds everything: that is ``lose_power``
        self.trace(f"{host} is lost")
        self.count("hosts lost")
        for process in self.processes:
            if process.alive and self.host_of(process.script.role) == host:
                self.kill(process, "lost with its host")
        self._wipe(host)

    def _lose_power(self) -> None:
        self._wipe("host")
        super()._lose_power()

    def _wipe(self, host: str) -> None:
        self.memory.wipe(host)
        for steps in self._seals.values():
            for roles in steps.values():
                roles -= {role for role in roles if self.host_of(role) == host}

    def _job(self, number: int, launch: str, roles: tuple[str, ...], takeover: bool, extends: bool) -> Job:
        """A supervisor knows why the job before ended, until a start that takes its place has claimed."""
        reason = ""
        last = self.jobs[-1] if self.jobs else None
        if isinstance(last, MemoryJob):
            reason = last.trouble or (last.reason if last.token is None else "")
        job = MemoryJob(number, launch, roles, takeover, extends, reason=reason)
        if not self.calm and self.chance.random() < self.numeric:
            job.numeric = self.chance.randint(1, self.target)
        return job

    def _script(self, job: Job, role: str) -> Script:
        assert isinstance(job, MemoryJob)
        script = AdoptingTrainer if role == job.roles[0] else AdoptingFollower
        return script(self, job, role)

    # -- what scripts tell

    def host_of(self, role: str) -> str:
        return "host" if self.weather.posix else f"host-{role}"

    def count(self, what: str) -> None:
        self.counted[what] += 1

    def born(self, before: Model, after: Model, generation: int) -> None:
        self._births[after.history] = (before.history, generation)

    def sealed(self, seal: Seal) -> None:
        self.trace(f"  {seal.role} has sealed step {seal.step} under g{seal.generation}")
        self.count("snapshots sealed")
        self._seals.setdefault(seal.generation, {}).setdefault(seal.step, set()).add(seal.role)

    def unsealed(self, seal: Seal) -> None:
        self._seals.get(seal.generation, {}).get(seal.step, set()).discard(seal.role)

    def chosen(self, job: MemoryJob, replaced: Replaced, choice: Adoption | Declined) -> None:
        """RPO: what every writer had sealed when the process died is not lost to anything but its host."""
        self.trace(f"  job {job.number} over g{replaced.generation}: {choice.reason} {choice.passed}")
        self.count("adoptions chosen" if isinstance(choice, Adoption) else "adoptions declined")
        if replaced.bar or job.reason in UNTRUSTED or job.bad:
            return
        newest = -1 if replaced.head_step is None else replaced.head_step
        for step, roles in self._seals.get(replaced.generation, {}).items():
            if step > newest and roles >= set(replaced.members):
                newest = step
        if newest == replaced.head_step or newest < 0:
            return
        if not isinstance(choice, Adoption) or choice.step < newest:
            self.complain(
                f"step {newest} was sealed by all of generation {replaced.generation}, and lost: {choice}"
            )

    def started(self, replaced: Replaced, model: Model) -> None:
        if not replaced.bar and replaced.head_step is not None and model.step < replaced.head_step:
            self.complain(f"training starts at step {model.step}, behind c{replaced.head}")

    # -- what an adopted checkpoint is

    def _auditor(self) -> Auditor:
        return Auditor(witness=self._testimony)

    def _testimony(self, fact: Fact) -> tuple[Model, list[list[int]]]:
        return self.witnessed.get(fact.payload["manifest_digest"], (Model(), []))

    def _fold(self, data: bytes) -> bool:
        followed = super()._fold(data)
        record = decode(data, key="journal")
        if followed and record.kind is Kind.CHECKPOINT_COMMITTED:
            fact = self.auditor.facts.get(record.payload["c"])
            if fact is not None and fact.adopted is not None and fact.payload:
                self._witness(fact)
        return followed

    def _witness(self, fact: Fact) -> None:
        """At the commit everything is there: read it, and see whether the run ever had that state there."""
        digest = fact.payload["manifest_digest"]
        if digest in self.witnessed:
            return
        self.count("adopted")
        rows: list[list[int]] = []
        model = Model()
        try:
            model = read_checkpoint(self.store.get, fact.payload["manifest"], digest)
        except Broken as error:
            self.complain(f"adopted c{fact.c} is torn: {error}")
        parent = Model() if fact.parent is None else self.auditor.model_at(fact.parent)
        history = model.history
        for step in range(model.step, parent.step, -1):
            history, generation = self._births.get(history, ("", 0))
            rows.insert(0, [step, generation])
        if history != parent.history:
            self.complain(f"adopted c{fact.c} does not continue its parent c{fact.parent}")
        self.witnessed[digest] = (model, rows)
        for job in self.jobs:
            if job.token is not None and job.token.generation == fact.generation:
                assert isinstance(job, MemoryJob)
                if job.reason in UNTRUSTED:
                    self.complain(f"c{fact.c} was adopted although the restart was for {job.reason}")

    def counts(self) -> dict[str, int]:
        return {**super().counts(), **self.counted}
