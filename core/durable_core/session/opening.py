"""L5. How a start becomes a generation: what the coordinator decides before anything is restored.

A non-coordinator is told the outcome and only ever replays the journal up to it: no process learns
its token twice (FENCE-11).
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from durable_core.clock import Clock
from durable_core.commit import claim, ending, trust
from durable_core.commit.fence import token_error
from durable_core.commit.journal import EMPTY, View, replay, replay_whole
from durable_core.commit.state import CheckpointInfo, RunState
from durable_core.engine import heartbeat
from durable_core.engine.launched import Launched, launch_id, supervised
from durable_core.engine.performer import Performer
from durable_core.errors import (
    CheckpointNotFoundError,
    Fenced,
    RunBusy,
    RunEnded,
    RunNotFoundError,
    UsageError,
)
from durable_core.session import software
from durable_core.session.settings import Settings, takeover_requested
from durable_core.spec import Comparison, RunSpec, check_resume, compare
from durable_core.types import Promise, Token


@dataclass(frozen=True)
class RestorePoint:
    """A committed checkpoint as the journal names it; ``tiers``: where copies of it are said to be."""

    c: int
    step: int
    manifest: str
    digest: str
    tiers: tuple[str, ...] = ()

    @classmethod
    def of(cls, info: CheckpointInfo) -> RestorePoint:
        return cls(info.c, info.step, info.manifest, info.manifest_digest, info.tiers)


@dataclass(frozen=True)
class Opening:
    """The outcome of a start. ``completed``: the run has succeeded and there is nothing to extend;
    it is opened for reading and no generation was claimed. ``warnings`` are for the user. ``root``: the
    name of the root as a tier, which the origin of the run has; ``""`` before there is one."""

    run_id: str
    launch_id: str
    generation: int
    seed: int
    promise: Promise
    restore: RestorePoint | None
    completed: bool
    warnings: tuple[str, ...] = ()
    root: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "promise": self.promise.value}

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> Opening:
        restore = None if doc["restore"] is None else RestorePoint(**doc["restore"])
        rest = {"restore": restore, "promise": Promise(doc["promise"]), "warnings": tuple(doc["warnings"])}
        return cls(**{**doc, **rest})


class Coordinator:
    """The coordinator's part of opening a run: every decision, in order, each with its effect."""

    def __init__(
        self, performer: Performer, clock: Clock, settings: Settings, spec: RunSpec, roles: tuple[str, ...]
    ) -> None:
        self.performer, self.clock, self.settings, self.spec, self.roles = (
            performer,
            clock,
            settings,
            spec,
            roles,
        )
        self.view: View = EMPTY
        self.previous: heartbeat.Owner | None = None
        self.claimed: claim.Claim | None = None
        self.launched = Launched.of()
        #: the generation that the launcher has claimed for this process
        self.given: Token | None = None
        self.takeover = settings.takeover or takeover_requested()
        # An explicit takeover is a launch of its own: it must not inherit a superseded identity. Under our
        # launcher it is that one's, with the identity that its other attempts have.
        inherits = not self.takeover or bool(self.launched.attempt)
        self.launch = (launch_id() if inherits else None) or clock.new_id()

    def open(self, *, external: str | None = None) -> Opening:
        """Create or resume. ``external``: the script names a foreign checkpoint to start from.

        Raises ``RunNotFoundError`` (``must``), ``UsageError`` (``never``, or ``external`` beside a
        history), ``SpecMismatchError``, ``RunBusy``, ``Fenced`` (this is a process of an older attempt),
        ``Superseded``, ``RunEnded``, tier errors.
        """
        self.performer.tier.probe()
        self.view = self.performer.run(replay_whole(EMPTY))
        self._accept_given()
        warnings: tuple[str, ...] = ()
        if not self.view.state.exists:
            self._create()
        else:
            self._refuse_when_asked(external)
            warnings = self._resume(external)
        if self.view.state.terminal is not None:
            return self._completed(warnings)
        try:
            return self._begin(warnings)
        except RunEnded:  # meanwhile: how to go on from there is decided as ever
            return self.open(external=external)

    def _begin(self, warnings: tuple[str, ...]) -> Opening:
        """Under the generation that was given, or the next."""
        if self._takes_given():
            assert self.given is not None
            return self._opened(self.performer.run(claim.taken(self.view, self.given)), warnings)
        after = None if self.given is None else self.given.generation
        return self._claim(warnings, takeover=self.takeover, after=after)

    def step_down(self, point: RestorePoint, reason: str, objects: tuple[str, ...]) -> Opening:
        """The restore point failed verification: say so in the journal, claim again with the next.

        Only the generation after one's own: whoever has claimed that by now is this one's successor. Raises
        ``NoUsableCheckpoint`` when none is left, and the errors of a claim.
        """
        self.damaged(point, reason, objects)
        if self.view.state.terminal is not None:
            return self._completed(())
        assert self.claimed is not None, "only what was claimed is restored for writing"
        return self._claim((), takeover=False, after=self.claimed.token.generation)

    def find(self, c: int) -> RestorePoint:
        """Checkpoint ``c`` of the run, on the head's lineage or not. Raises ``CheckpointNotFoundError``."""
        self.view = self.performer.run(replay(self.view))
        info = self.view.state.checkpoints.get(c)
        if info is None or not info.usable:
            how = "is not known" if info is None else f"is {info.state.value}"
            raise CheckpointNotFoundError(
                f"checkpoint {c} {how}", hint=f"durable ls {self.performer.tier.location} shows what is there"
            )
        return RestorePoint.of(info)

    def roll_back(self, point: RestorePoint) -> Opening:
        """Claim the generation after one's own, which begins at ``point``.

        Raises ``CheckpointNotFoundError`` when that is there no more, and the errors of a claim.
        """

        def choose(state: RunState) -> claim.Choice:
            if not state.checkpoints[point.c].usable:
                raise CheckpointNotFoundError(f"checkpoint {point.c} was retired or found damaged meanwhile")
            why = f"rolled back by the script to c{point.c} at step {point.step}"
            return claim.Choice(point.c, why, asked=True)

        assert self.claimed is not None, "only a run that is open for writing is rolled back"
        self.previous = None  # what it trained is no first execution of what follows
        return self._claim((), takeover=False, after=self.claimed.token.generation, choose=choose)

    def damaged(self, point: RestorePoint, reason: str, objects: tuple[str, ...]) -> None:
        """Say in the journal that ``point`` failed verification. Raises as ``claim.mark_corrupt``."""
        program = claim.mark_corrupt(
            self.view, point.c, launch_id=self.launch, reason=reason, objects=objects
        )
        self.view = self.performer.run(program)

    def _accept_given(self) -> None:
        """Note the generation that the launcher has claimed for this run, if it has.

        Raises ``Fenced`` when the run has gone on to another: then this is a process of an older attempt.
        """
        launched, state, launch = self.launched, self.view.state, launch_id()
        if launched.generation is None or launch is None or launched.run_id != state.run_id:
            return
        token = Token(launched.generation, launch)
        error = token_error(state, token)
        if isinstance(error, Fenced):
            raise error
        if error is None:  # else the run has ended, and how to go on from there is decided as ever
            self.given, self.launch, self.takeover = token, launch, False

    def _takes_given(self) -> bool:
        """Whether that generation serves as it is: once, for the members it was claimed for, to go on with
        what it was claimed to go on with."""
        state, given = self.view.state, self.given
        if given is None or set(state.members) != set(self.roles):
            return False
        if state.pending_fork is not None and state.pending_fork.launch_id == self.launch:
            return False
        newest = next(state.checkpoints.newest_first(), None)
        if newest is not None and newest.generation == given.generation:
            return False
        return self.launched.files is None or self.launched.files.take(given.generation)

    def _claim(
        self, warnings: tuple[str, ...], *, takeover: bool, after: int | None = None,
        choose: claim.Chooser | None = None,
    ) -> Opening:  # fmt: skip
        program = claim.claim_generation(
            self.view, launch_id=self.launch, members=self.roles, takeover=takeover,
            choose=choose or self._choose, after=after,
        )  # fmt: skip
        return self._opened(self.performer.run(program), warnings)

    def _opened(self, claimed: claim.Claim, warnings: tuple[str, ...]) -> Opening:
        self.view = claimed.view
        self.claimed = claimed
        state = self.view.state
        restore = None if claimed.restore_point is None else RestorePoint.of(claimed.restore_point)
        warnings += (claimed.choice.warning,) if claimed.choice.warning else ()
        return Opening(
            state.run_id, self.launch, state.generation, state.seed, state.promise, restore, False, warnings,
            _root(state),
        )  # fmt: skip

    def _choose(self, state: RunState) -> claim.Choice:
        """The newest usable checkpoint, or one before what is not trusted; the record says when other roles
        made it."""
        launched = self.launched
        if launched.onset is not None and launched.reason in trust.NUMERIC:
            choice = claim.choose_before(state, launched.onset)
        else:
            choice = claim.choose_restore_point(state)
        if choice.c is None:
            return choice
        saved = saved_by(state, choice.c)
        if set(saved) == set(self.roles):
            return choice
        change = f"saved by {', '.join(saved)}, restored by {', '.join(self.roles)}"
        return replace(choice, reason=f"{choice.reason}; {change}")

    # --- decisions -------------------------------------------------------------------------

    def _create(self) -> None:
        if self.settings.resume == "must":
            raise RunNotFoundError(
                f"no run at {self.performer.tier.location}", hint='resume="must" needs one; "auto" starts one'
            )
        program = claim.create_run(
            self.view, launch_id=self.launch, run_id=self.clock.new_id(), spec=self.spec.to_json(),
            spec_digest=self.spec.digest(), seed=self.spec.seed, promise=self.spec.promise,
        )  # fmt: skip
        self.view = self.performer.run(program)

    def _refuse_when_asked(self, external: str | None) -> None:
        where = self.performer.tier.location
        if self.settings.resume == "never":
            raise UsageError(
                f'{where} holds run {self.view.state.run_id}, and resume="never"',
                hint='choose another root, or resume="auto" to continue it',
            )
        if external is not None and self.settings.resume != "fork":
            raise UsageError(
                f"{external} was given to start from, but {where} holds a history of its own",
                hint='drop ckpt_path to continue that history, choose another root, or resume="fork"',
            )

    def _resume(self, external: str | None) -> tuple[str, ...]:
        self._refuse_live_owner()
        state = self.view.state
        ended = state.terminal
        if ended is not None and ended.outcome != "succeeded":
            raise RunEnded(
                f"the run has {ended.outcome}: {ended.detail.get('reason', '')}",
                hint="start another run under another root",
            )
        self._refuse_without_origin(state, external)
        if self.settings.resume == "fork" and not self._forked_already(state, external):
            self._fork(state, external)
            return (f"forked from run {state.run_id} under a new spec",)
        comparison = check_resume(spec_of(state), self.spec, at=state.head_step or 0)
        if comparison.extended and ended is not None:
            target = self.spec.to_json()["target"]
            self.view = self.performer.run(ending.extend(self.view, launch_id=self.launch, target=target))
        return warnings(comparison)

    def _refuse_without_origin(self, state: RunState, external: str | None) -> None:
        """A fork from an external checkpoint died before its first commit: only that can begin it again."""
        fork = state.forks[-1] if state.forks and state.head is None else None
        if fork is not None and fork.external is not None and external is None:
            raise UsageError(
                f"the run was forked from {fork.external}, and nothing has been committed since",
                hint='give that checkpoint again with resume="fork"; without it training would start over',
            )

    def _forked_already(self, state: RunState, external: str | None) -> bool:
        """A restart of a fork continues it: the same script must not fork again at every start."""
        same = compare(spec_of(state), self.spec, at=state.head_step or 0).same_run
        return same and (external is None or any(fork.external == external for fork in state.forks))

    def _fork(self, state: RunState, external: str | None) -> None:
        if state.terminal is not None:
            self.view = self.performer.run(
                ending.extend(self.view, launch_id=self.launch, target=self.spec.to_json()["target"])
            )
        run_spec = spec_of(state)
        spec = self.spec.forked_from(run_spec)
        origin = None if external is not None else claim.choose_restore_point(state).c
        if origin is not None:  # refused now rather than when the fork is in the journal
            was, now = software.described({}, saved_by(state, origin)), software.described({}, self.roles)
            software.promised(self.spec.promise, asked=self.settings.asked, was=was, now=now)
        reasons = compare(run_spec, spec, at=state.head_step or 0).reasons
        self.view = self.performer.run(
            ending.fork(
                self.view, launch_id=self.launch, spec=spec.to_json(), spec_digest=spec.digest(),
                diff=dict(reasons), origin=origin, external=external, takeover=self.takeover,
            )
        )  # fmt: skip

    def _refuse_live_owner(self) -> None:
        """Advisory: it spares a healthy run from being fenced by mistake; fencing is what protects."""
        self.previous = heartbeat.read(self.performer.tier)
        previous = self.previous
        if previous is None or self.takeover or self.given is not None:
            return
        if previous.launch_id == self.launch:
            alive, why = self._lives_beside(previous)
        else:
            alive, why = previous.alive(self.clock.now())
        if alive:
            raise RunBusy(
                f"{self.performer.tier.location} is being trained: {why} ({previous.launch_id})",
                hint="wait, or start with --takeover (alone: takeover=True, DURABLE_TAKEOVER=1)",
            )

    def _lives_beside(self, previous: heartbeat.Owner) -> tuple[bool, str]:
        """Whether the owner is of another start under the same launch id. Our launcher's workers end with it,
        so one that goes on has a launcher that lives. Those of another supervisor may be orphans, to be
        fenced; and where there is none, as in a job of a scheduler, nobody has left any."""
        if previous.pid in heartbeat.ancestry(os.getpid()):
            return False, ""
        if not self.launched.attempt:
            beside = not supervised() and heartbeat.lives_beside(previous, ())
            return previous.alive(self.clock.now()) if beside else (False, "")
        kin = _kin()

        def look() -> heartbeat.Owner | None:
            return heartbeat.read(self.performer.tier)

        found = heartbeat.contender(look, self.clock, self.launch, kin, heartbeat.PATIENCE_S)
        return (False, "") if found is None else (True, found[1])

    def _completed(self, warnings: tuple[str, ...]) -> Opening:
        state = self.view.state
        choice = claim.choose_restore_point(state)
        point = None if choice.c is None else RestorePoint.of(state.checkpoints[choice.c])
        return Opening(
            state.run_id, self.launch, state.generation, state.seed, state.promise, point, True, warnings,
            _root(state),
        )  # fmt: skip


def _kin() -> frozenset[int]:
    """This process and who has started it: what descends from these is of the same launcher."""
    return frozenset({os.getpid(), os.getppid()})


def _root(state: RunState) -> str:
    """What the journal calls the root: the tier of the first checkpoint, which is always written there."""
    origin = next((info for info in state.checkpoints.values() if info.was_committed), None)
    return "" if origin is None or not origin.tiers else origin.tiers[0]


def saved_by(state: RunState, c: int) -> tuple[str, ...]:
    """The roles whose state is in checkpoint ``c``: the members of the generation that committed it."""
    return state.lives[state.checkpoints[c].generation - 1].members


def spec_of(state: RunState) -> RunSpec:
    """The run's spec as the journal has it now: its target may have been extended since it was written."""
    document = dict(state.spec)
    if state.target is not None:
        document["target"] = state.target
    return RunSpec.from_json(document)


def warnings(comparison: Comparison) -> tuple[str, ...]:
    """What the user is told about a script that changed without becoming another run."""
    return tuple(comparison.reasons[name] for name in (*comparison.warned, *comparison.extended))
