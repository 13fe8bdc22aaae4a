"""What simulated processes do: train and save, follow, maintain, read. They run the real programs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

from durable_core.commit import ending
from durable_core.commit.claim import Claim
from durable_core.commit.collect import Retirement
from durable_core.commit.effects import Get, Program, Wait
from durable_core.commit.journal import AppendInDoubt, View, replay
from durable_core.commit.request import Deadlines, Known, LedgerRows, SaveAborted, SaveOutcome, SaveRequest
from durable_core.commit.retention import Retention
from durable_core.commit.state import CheckpointInfo
from durable_core.errors import (
    DurableError,
    FencedError,
    LostSlot,
    NoUsableCheckpoint,
    RecordRefused,
    TierError,
)
from durable_core.format import manifest as manifests
from durable_core.testing.sim import content
from durable_core.testing.sim.content import Model
from durable_core.testing.sim.process import Job
from durable_core.testing.sim.reading import Broken, read_checkpoint
from durable_core.testing.sim.subject import Subject
from durable_core.types import Promise, Token

DIGEST = "sha256:" + "0" * 64
DEADLINES = Deadlines(3.0, 3.0, 4.0, 5.0)
TRANSIENT = (TierError, LostSlot, RecordRefused)


class Host(Protocol):
    """What scripts may ask of the world besides effects: settings, chance, and a notebook."""

    subject: Subject
    chance: random.Random
    target: int
    every: int
    reuse: bool

    def acknowledged(self, outcome: SaveOutcome) -> None: ...
    def gave_up(self, c: int) -> None: ...
    def complain(self, message: str) -> None: ...
    def refused(self, script: object) -> None: ...


class Trainer:
    """The coordinator of a job: claims, restores, trains, saves, and now and then cleans up."""

    def __init__(self, host: Host, job: Job, role: str) -> None:
        self.host, self.job, self.role = host, job, role
        self.staged: Mapping[str, bytes] = {}
        self.view: View = host.subject.view
        self.epoch: int | None = None
        self.known: Known | None = None
        self.failures = 0

    @property
    def roles(self) -> tuple[str, ...]:
        return self.job.roles

    def run(self) -> Program[str]:
        try:
            yield from self.open()
            yield from self.train()
        except FencedError as error:
            self.host.refused(self)
            if not self.host.subject.upgrades_token or self.job.newest is None:
                return f"fenced: {error}"
            yield from self._train_on()
        except NoUsableCheckpoint as error:
            return f"no usable checkpoint: {error}"
        except TRANSIENT as error:
            return f"failed: {type(error).__name__}: {error}"
        return "finished"

    def open(self) -> Program[None]:
        subject, job = self.host.subject, self.job
        view = yield from subject.create_run(
            self.view,
            launch_id=job.launch,
            run_id="run",
            spec={"cancel_authority": ["operator"]},
            spec_digest=DIGEST,
            seed=1,
            promise=Promise.BITWISE,
        )
        if job.extends:
            view = yield from ending.extend(view, launch_id=job.launch, target=self.host.target)
        claim = yield from subject.claim_generation(
            view, launch_id=job.launch, members=job.roles, takeover=job.takeover
        )
        self.view = claim.view
        yield from self.begin(claim)

    def begin(self, claim: Claim) -> Program[None]:
        """What the members of the job start from."""
        model = Model()
        if claim.restore_point is not None:
            model = yield from self.restore(claim.restore_point)
        self.announce(claim.token, model, fresh=claim.restore_point is None)

    def announce(self, token: Token, model: Model, *, fresh: bool) -> None:
        job = self.job
        job.token, job.start, job.newest, job.fresh = token, model, model, fresh

    def train(self) -> Program[None]:
        assert self.job.token is not None
        model: Model = self.job.start
        if self.job.fresh:
            yield from self.save(model)
        while model.step < self.host.target:
            yield Wait(0.02)
            yield from self.before_step(model)
            model = model.trained(self.job.token.generation)
            self.job.trained[model.step] = self.job.token.generation
            self.job.newest = model
            yield from self.after_step(model)
            if model.step % self.host.every == 0 or model.step == self.host.target:
                yield from self.save(model)
                yield from self.after_save()
        yield from self.finish(model)

    def before_step(self, model: Model) -> Program[None]:
        yield from ()

    def after_step(self, model: Model) -> Program[None]:
        yield from ()

    def finish(self, model: Model) -> Program[None]:
        """A run succeeds with its final commit durable, or is left to a later start."""
        for _ in range(3):
            if self.view.state.head_step == model.step:
                break
            yield from self.save(model)
        self.view = yield from replay(self.view)
        state = self.view.state
        if state.head_step == model.step and self.job.token is not None:
            yield from ending.succeed(self.view, self.job.token, c=state.head, target=model.step)

    def save(self, model: Model) -> Program[None]:
        yield from self._save(model, self.host.subject.save_coordinator)

    def after_save(self) -> Program[None]:
        if self.host.chance.random() < 0.4:
            yield from self.maintain()

    def _save(self, model: Model, program: Any) -> Program[None]:
        token = self.job.token
        assert token is not None
        self.staged = content.slices_of(model, self.role)
        request = self.request(model, token)
        try:
            outcome = yield from program(self.view, request)
        except SaveAborted as error:
            self.view = error.view
            self.failures += 1
            if request.coordinates and error.c is not None:
                self.host.gave_up(error.c)
        except AppendInDoubt as error:
            self.view = error.view
        else:
            self.view, self.failures = outcome.view, 0
            stale = self.host.subject.keeps_known and self.known is not None
            if outcome.known is not None and self.host.reuse and not stale:
                self.known = outcome.known
            self.host.acknowledged(outcome)

    def request(self, model: Model, token: Token) -> SaveRequest:
        trained = dict(self.job.trained)
        slices = None
        if len(self.job.roles) == 1 and self.host.chance.random() < 0.5:
            slices = tuple(info.slice for info in content.describe(self.staged))
        return SaveRequest(
            role=self.role,
            roles=self.roles,
            token=token,
            run_id="run",
            step=model.step,
            documents=content.documents_of(model, self.role),
            cursor={"step": model.step},
            spec_digest=DIGEST,
            promise=Promise.BITWISE,
            slices=slices,
            ledger=lambda after: LedgerRows(content.rows_of(trained, after, model.step), model.step),
            deadlines=DEADLINES,
            known=self.known,
        )

    def maintain(self) -> Program[None]:
        """Retire by the policy, sweep a bounded number of objects; failing at it harms nothing."""
        chance = self.host.chance
        policy = Retention(keep_last=chance.randint(1, 3))
        try:
            done: Retirement = yield from self.host.subject.retire(
                self.view, policy, launch_id=self.job.launch, epoch=self.epoch
            )
            self.view, self.epoch = done.view, done.epoch
            swept = yield from self.host.subject.sweep(self.view, budget=chance.choice((3, 100)))
            self.view = swept.view
        except AppendInDoubt as error:
            self.view = error.view
        except (FencedError, *TRANSIENT):
            self.epoch = None

    def restore(self, info: CheckpointInfo) -> Program[Model]:
        """Read everything. The journal let this checkpoint be the restore point, so it must be whole."""
        try:
            return (yield from read(info))
        except Broken as error:
            self.host.complain(f"restore point c{info.c} does not restore: {error}")
            raise TierError("broken restore point") from error

    def _train_on(self) -> Program[None]:
        """The planted bug: a refused process gives itself the current generation and carries on."""
        try:
            self.view = yield from replay(self.host.subject.view)
            self.job.token = Token(self.view.state.generation, self.view.state.launch_id)
            self.job.start, self.job.fresh = self.job.newest, False
            yield from self.train()
        except DurableError:
            return


class Follower(Trainer):
    """Another writer of a job: told its token and the model, it trains and saves alongside."""

    def open(self) -> Program[None]:
        for _ in range(400):
            if self.told() or not self.job.coordinator.alive:
                break
            yield Wait(0.05)
        if not self.told():
            raise TierError("the coordinator never opened the run")

    def told(self) -> bool:
        return self.job.start is not None

    def save(self, model: Model) -> Program[None]:
        yield from self._save(model, self.host.subject.save_writer)
        if self.failures >= 2:
            raise TierError("two saves in a row came to nothing")

    def after_save(self) -> Program[None]:
        yield from ()

    def finish(self, model: Model) -> Program[None]:
        yield from ()


class Stray(Follower):
    """A writer that a stale membership list lets in: it writes, but nobody should count it."""

    @property
    def roles(self) -> tuple[str, ...]:
        return (*self.job.roles, self.role)


class Emergency(Trainer):
    """A second save under the same token, at once: what a signal handler might start."""

    def open(self) -> Program[None]:
        if self.job.start is None:
            raise TierError("not opened")
        yield from ()

    def train(self) -> Program[None]:
        yield from self.save(self.job.newest)


def read(info: CheckpointInfo) -> Program[Model]:
    """Restore ``info`` through effects; ``Broken`` when it is not whole."""
    found: dict[str, bytes | None] = {}
    data = yield from _get(info.manifest)
    found[info.manifest] = data
    if data is not None:
        manifest = manifests.decode(data, key=info.manifest)
        for part in manifest.objects:
            found[part.key] = yield from _get(part.key)
    return read_checkpoint(found.get, info.manifest, info.manifest_digest)


def _get(key: str) -> Program[bytes | None]:
    for _ in range(20):
        try:
            data: bytes | None = yield Get(key)
            return data
        except TierError:
            yield Wait(0.05)
    raise TierError(f"{key} cannot be read")
