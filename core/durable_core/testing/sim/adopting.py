"""Simulated training that seals snapshots in its host's memory, and starts by adopting what it finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from durable_core.commit import ending
from durable_core.commit.adopt import Adoption, Declined, Replaced, Sight
from durable_core.commit.claim import Claim
from durable_core.commit.effects import Program, Wait
from durable_core.commit.journal import replay
from durable_core.commit.request import LedgerRows, SaveAborted
from durable_core.commit.state import CheckpointInfo
from durable_core.errors import TierError
from durable_core.format.seal import Seal
from durable_core.testing.sim import content
from durable_core.testing.sim.content import Model
from durable_core.testing.sim.memory import Memory, Pool, Slot, Staging, reusable
from durable_core.testing.sim.process import Job, intercepted
from durable_core.testing.sim.scripts import Follower, Host, Trainer

#: Choices of one opening, each after another copy turned out to be torn.
ROUNDS = 4


class NumericTrouble(TierError):
    """The loss is no number any more: the process ends, and its supervisor knows why."""


class MemoryHost(Host, Protocol):
    """What a world with memory offers besides."""

    memory: Memory
    slots: int
    snapshot_every: int
    voids: float

    def host_of(self, role: str) -> str: ...
    def count(self, what: str) -> None: ...
    def born(self, before: Model, after: Model, generation: int) -> None: ...
    def sealed(self, seal: Seal) -> None: ...
    def unsealed(self, seal: Seal) -> None: ...
    def chosen(self, job: MemoryJob, replaced: Replaced, choice: Adoption | Declined) -> None: ...
    def started(self, replaced: Replaced, model: Model) -> None: ...


@dataclass
class MemoryJob(Job):
    """``reason``: why it was started, as its supervisor knows. ``numeric``: the step from which its losses
    are no numbers; ``trouble``: the failure class it ended with. What the training process group tells its
    members: ``reached`` (newest step) and ``sealed`` (all steps) by role, the ``plan`` of adoption and how
    copying went; the round in which all have copied is the one to ``go`` on with."""

    reason: str = ""
    numeric: int | None = None
    trouble: str = ""
    reached: dict[str, int] = field(default_factory=dict)
    sealed: dict[str, set[int]] = field(default_factory=dict)
    plan: tuple[int, Adoption] | None = None
    reports: dict[tuple[int, str], bool] = field(default_factory=dict)
    bad: list[Sight] = field(default_factory=list)
    go: int | None = None

    @property
    def adopting(self) -> bool:
        return self.token is not None and self.start is None


class Snapshots(Trainer):
    """Seals snapshots while it trains, in step with the other members; copies one to adopt it."""

    host: MemoryHost
    job: MemoryJob

    def __init__(self, host: MemoryHost, job: MemoryJob, role: str) -> None:
        super().__init__(host, job, role)
        self.pending: list[Staging] = []
        self.pool = Pool(Memory(), "", 0, 0)
        self.copied: tuple[Seal, Mapping[str, bytes]] | None = None
        self.before = Model()
        self.rows_after: int | None = None

    def run(self) -> Program[str]:
        outcome: str = yield from intercepted(self._beside, super().run())
        return outcome

    def _beside(self, effect: Any) -> Program[Any]:
        """The background thread gets a little further whenever the process does anything."""
        if self.pending and self.host.chance.random() < 0.4:
            first = self.pending[0]
            if not first.copied:
                first.copy_one()
            elif first.confirmed:
                self._finish(first)
        return (yield effect)

    def _finish(self, staging: Staging) -> None:
        self.pending.remove(staging)
        void = self.host.chance.random() < self.host.voids
        staging.finish(void=void)
        if not void:
            self.job.sealed.setdefault(self.role, set()).add(staging.seal.step)
            self.host.sealed(staging.seal)

    # -- training

    def before_step(self, model: Model) -> Program[None]:
        """The guard, and the collectives: nobody takes a step that another has not reached."""
        for staging in list(self.pending):
            while not staging.copied:
                staging.copy_one()
                yield Wait(0.0)
            staging.confirmed = True
        self.before = model
        self._free_old()
        self.job.reached[self.role] = model.step
        yield from self.meet(lambda: all(self.job.reached.get(r, -1) >= model.step for r in self.job.roles))

    def meet(self, done: Callable[[], bool]) -> Program[None]:
        for _ in range(300):
            if done():
                return
            yield Wait(0.05)
        raise TierError("the collective timed out")

    def after_step(self, model: Model) -> Program[None]:
        assert self.job.token is not None
        self.host.born(self.before, model, self.job.token.generation)
        if model.step % self.host.snapshot_every == 0:
            self._stage(model)
        if self.job.numeric is not None and model.step >= self.job.numeric:
            yield from self._numeric_trouble(model)

    def _stage(self, model: Model) -> None:
        token, rules = self.job.token, self.host.subject.memory
        head, after = self.view.state.head, self.view.state.head_step
        common = rules.common([self.job.sealed.get(role, set()) for role in self.job.roles])
        slot = self.pool.acquire(common, rules.reusable)
        if token is None or slot is None:
            self.host.count("snapshots skipped")
            return
        since = after if rules.rows_since_commit else self.rows_after
        self.rows_after = model.step
        parts = content.slices_of(model, self.role)
        seal = Seal(
            run_id="run",
            generation=token.generation,
            launch_id=token.launch_id,
            role=self.role,
            roles=self.job.roles,
            step=model.step,
            head=head,
            after=after,
            infos=content.describe(parts),
            body={"documents": content.documents_of(model, self.role)},
            ledger=content.rows_of(self.job.trained, since, model.step),
        )
        self.pending.append(Staging(slot, seal, parts, early=rules.seals_early))

    def _numeric_trouble(self, model: Model) -> Program[None]:
        token = self.job.token
        if self.role == self.job.roles[0] and token is not None and self.host.chance.random() < 0.5:
            self.view = yield from ending.record_failure(
                self.view, token, failure_class="F12", signature="", evidence=None, step=model.step
            )
        self.job.trouble = "F12"
        raise NumericTrouble(f"the loss at step {model.step} is no number")

    def _free_old(self) -> None:
        """Once a commit of its own is there, nothing that older generations sealed is wanted: sooner or later
        it goes."""
        head, token = self.view.state.head, self.job.token
        if head is None or token is None or self.host.chance.random() < 0.7:
            return
        if self.view.state.checkpoints[head].generation == token.generation:
            self.host.memory.free(self.host.host_of(self.role), before=token.generation)

    # -- adopting

    def open_pool(self) -> None:
        assert self.job.token is not None
        host = self.host
        self.pool = Pool(host.memory, host.host_of(self.role), self.job.token.generation, host.slots)

    def copy(self, choice: Adoption) -> Program[bool]:
        """Copy this role's snapshot, verify it, seal it under the new generation."""
        self.drop_copies()  # of a choice that came to nothing, for another's copy was torn
        for sight in choice.sights.get(self.role, ()):
            source = self.host.memory.find(sight.source)
            seal = None if source is None else source.seal
            if source is not None and seal is not None and source.sight() == sight:
                own = self.pool.acquire(None, reusable)
                assert own is not None
                for info in seal.infos:
                    own.parts[info.slice.key] = source.parts.get(info.slice.key, b"")
                    yield Wait(self.host.chance.choice((0.0, 0.0, 0.04)))
                own.busy = False
                if not self.host.subject.memory.verifies or not any(map(own.damaged, seal.infos)):
                    held = own if self.host.subject.memory.copies else source
                    self.copied = (self._seal_copy(own, seal, choice), held.parts)
                    return True
            self.host.count("copies torn")
            self.job.bad.append(sight)
        return False

    def _seal_copy(self, own: Slot, seal: Seal, choice: Adoption) -> Seal:
        token = self.job.token
        assert token is not None
        own.seal = replace(
            seal,
            generation=token.generation,
            launch_id=token.launch_id,
            head=choice.head,
            after=choice.after,
            ledger=_rows(seal, choice.after),
            body={**seal.body, "adopted": choice.generation},
        )
        self.host.sealed(own.seal)
        return own.seal

    def drop_copies(self) -> None:
        """At the latest before training begins: a copy must not be taken for what this generation trains."""
        for slot in self.pool.slots:
            if slot.seal is not None:
                self.host.unsealed(slot.seal)
        self.pool.discard()

    def save_copy(self, choice: Adoption) -> Program[CheckpointInfo | None]:
        """The dead generation's save, under the new token; ``None`` when it was given up."""
        assert self.copied is not None and self.job.token is not None
        seal, self.staged = self.copied
        request = replace(
            self.request(Model("", choice.step), self.job.token),
            slices=None,
            documents=cast(Mapping[str, Any], seal.body["documents"]),
            ledger=lambda after: LedgerRows(_rows(seal, after), seal.step),
            adopted=choice.generation,
        )
        try:
            outcome = yield from self.host.subject.memory.adopt(self.view, request)
        except SaveAborted as error:
            self.view = error.view
            if request.coordinates and error.c is not None:
                self.host.gave_up(error.c)
            return None
        self.view = outcome.view
        self.host.acknowledged(outcome)
        info: CheckpointInfo = outcome.view.state.checkpoints[outcome.c]
        return info


def _rows(seal: Seal, after: int | None) -> bytes:
    """The rows of a seal that come after a step."""
    rows = json.loads(seal.ledger)
    return json.dumps([row for row in rows if after is None or row[0] > after]).encode()


class AdoptingTrainer(Snapshots):
    """The coordinator: chooses, and tells the others."""

    def begin(self, claim: Claim) -> Program[None]:
        self.job.token = claim.token
        self.open_pool()
        replaced = Replaced.by(claim)
        adopted = yield from self._adopt(replaced)
        if adopted is not None:
            model = yield from self.restore(adopted)
            self.announce(claim.token, model, fresh=False)
        elif self.copied is not None and not self.host.subject.memory.waits_for_commit:
            document = cast(Mapping[str, Any], self.copied[0].body["documents"])["state"]
            self.announce(claim.token, Model(**document), fresh=False)
        else:
            yield from super().begin(claim)
        self.host.started(replaced, self.job.start)
        self.drop_copies()

    def _adopt(self, replaced: Replaced) -> Program[CheckpointInfo | None]:
        job, host = self.job, self.host
        hosts = {host.host_of(role) for role in job.roles}
        for number in range(ROUNDS):
            sights = [sight for sight in host.memory.sights(hosts) if sight not in job.bad]
            choice = host.subject.memory.choose(replaced, sights, reason=job.reason)
            host.chosen(job, replaced, choice)
            if isinstance(choice, Declined):
                return None
            job.plan = (number, choice)
            job.reports[number, self.role] = yield from self.copy(choice)
            reports = {(number, role) for role in job.roles}
            yield from self.meet(lambda: job.reports.keys() >= reports)  # noqa: B023 - met in this round
            if all(job.reports[report] for report in reports):
                job.go = number
                return (yield from self.save_copy(choice))
        return None


class AdoptingFollower(Snapshots, Follower):
    """Another writer: copies when it is told what, saves when all have copied."""

    def told(self) -> bool:
        return self.job.token is not None

    def open(self) -> Program[None]:
        yield from super().open()
        self.open_pool()
        self.view = yield from replay(self.view)
        job, last = self.job, -1
        for _ in range(600):
            if job.start is not None:
                self.drop_copies()
                return
            if not job.coordinator.alive:
                break
            if job.plan is not None and job.plan[0] > last:
                last, choice = job.plan
                job.reports[last, self.role] = yield from self.copy(choice)
            elif job.go == last and job.plan is not None and self.copied is not None:
                yield from self.save_copy(job.plan[1])
                self.copied = None
            else:
                yield Wait(0.05)
        raise TierError("the coordinator never opened the run")
