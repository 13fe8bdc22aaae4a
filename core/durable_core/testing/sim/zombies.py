"""A writer is stopped, a newer generation commits, the writer wakes up: nothing it sends may count."""

from __future__ import annotations

from dataclasses import replace

from durable_core.testing.sim.process import Job, Process, Status
from durable_core.testing.sim.subject import Subject
from durable_core.testing.sim.world import CALM, World

#: Turns after which the writer is stopped, at most; a whole life without faults takes about this long.
LIFE = 160


class ZombieWorld(World):
    """One interleaving. ``refused``: the zombie woke up in a newer generation and was told so.
    ``accepted``: records of the old generation that counted after the newer one had started."""

    def __init__(self, seed: int, subject: Subject | None = None, *, trace: bool = False) -> None:
        super().__init__(seed, subject, trace=trace)
        self.weather = replace(
            self.weather,
            kill_at_point=0.0,
            pause_at_point=0.0,
            unavailable=0.0,
            slow_writes=0.5,
            lose_ack=0.03,
        )
        self.writers, self.every = 1, 1
        self.refused_zombies = 0

    def run(self) -> ZombieWorld:
        with self._patched():
            self._start_job("launch-0")
            zombie = self.jobs[0].coordinator
            for _ in range(self.chance.randrange(LIFE)):
                self._turn()
            if zombie.status is Status.READY:
                self.trace(f"{zombie.label} is stopped")
                zombie.status = Status.PAUSED
            self._overtake(zombie)
            self._audit()
        return self

    def _overtake(self, zombie: Process) -> None:
        """Replacements run until one has committed, or all have ended; then the zombie wakes."""
        commits = self.truth.state.commits
        for attempt in range(3):
            self._start_job(f"launch-{attempt + 1}")
            job = self.jobs[-1]
            while job.coordinator.alive and not self._has_committed(job, commits):
                if not self._turn():
                    break
            if self._has_committed(job, commits):
                break
        before = self.truth.state.generation
        if zombie.status is Status.PAUSED:
            self._wake(zombie)
        for _ in range(CALM):
            if not self._turn():
                break
        if zombie.refused and before > 1:
            self.refused_zombies = 1

    def _has_committed(self, job: Job, commits: int) -> bool:
        return job.token is not None and self.truth.state.commits > commits

    @property
    def accepted(self) -> int:
        return sum("effective although" in violation for violation in self.violations)
