"""L5. The journal as a launcher keeps it: what the run is, the next generation, failures, the end.

Every call has a deadline, also when the store hangs. What was under way then is *in doubt*: one record at
most, for nothing is begun after the deadline. The next call replays, and finds it or takes its slot:

* a claim that arrived is a generation without workers; the next claim replaces it;
* a failure that arrived is recognised by its op_id and not recorded again;
* an end that arrived is the end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from durable_core.clock import Clock
from durable_core.commit import claim, ending
from durable_core.commit.claim import Chooser, choose_restore_point
from durable_core.commit.effects import Program
from durable_core.commit.journal import EMPTY, AppendInDoubt, View, replay, replay_whole, settle
from durable_core.commit.state import RunState
from durable_core.engine import heartbeat
from durable_core.engine.launched import launch_id
from durable_core.engine.roots import open_root
from durable_core.errors import RunBusy, RunEnded
from durable_core.format.record import Kind
from durable_core.launch.bounded import Bounded, Patient
from durable_core.launch.holding import Holding
from durable_core.tier.base import Tier
from durable_core.types import Token

T = TypeVar("T")

#: Seconds that a call may take.
DEADLINE_S = 30.0


def record_name(launch: str) -> str:
    """The ``launch_id`` in records of a launch: what its workers make of ``DURABLE_LAUNCH_ID``."""
    return launch_id({"DURABLE_LAUNCH_ID": launch}) or ""


@dataclass(frozen=True)
class Claimed:
    """A generation for workers to train under. ``c``, ``step``: its restore point; ``None``: the start."""

    run_id: str
    token: Token
    c: int | None
    step: int | None
    reason: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class Lapse:
    """One failure, as it is recorded (REC-06). ``op_id``: 32 hex digits, the same over all retries.

    ``failure``: the class (``F1`` ...); ``placement``: where the group ran; ``action``: what is done about
    it; ``charged``: whether it counts against a budget; ``onset``: for numeric ones, the first step that is
    not trusted.
    """

    op_id: str
    failure: str
    signature: str
    evidence: Any
    step: int | None
    action: str
    charged: bool
    placement: str = ""
    onset: int | None = None
    further: Mapping[str, Any] = field(default_factory=dict)

    def details(self) -> dict[str, Any]:
        named = {"placement": self.placement, "action": self.action, "charged": self.charged}
        return {**self.further, **named, "onset": self.onset}


class Books:
    """``launch``: as in ``DURABLE_LAUNCH_ID``. One thread at a time.

    Every method raises ``TierUnavailable`` at the deadline, and the errors of the tier and of the journal.
    """

    def __init__(
        self,
        root: str | Path,
        clock: Clock,
        launch: str,
        *,
        deadline_s: float = DEADLINE_S,
        open_tier: Callable[[str | Path], Tier] = open_root,
    ) -> None:
        self.root, self.launch = str(root), launch
        self.name = record_name(launch)
        self._clock, self._deadline_s = clock, deadline_s
        self._open = open_tier
        self._tier: Tier | None = None
        self._bounded = Bounded(f"the journal at {self.root}")
        self._view: View = EMPTY

    # --- looking -----------------------------------------------------------------------------

    def state(self) -> RunState | None:
        """The run as it is now; ``None`` when there is none."""
        state = self._run(self._look()).state
        return state if state.exists else None

    def mine(self) -> Token | None:
        """The token of the current generation, if it is this launch's and may still write."""
        state = self.state()
        if state is None or not state.active or state.launch_id != self.name:
            return None
        return Token(state.generation, state.launch_id)

    def busy(self) -> str:
        """Why a start would disturb a live run of another launch; ``""``: it would not. A hint."""
        owner = self._owner()
        return "" if owner is None or owner.launch_id == self.name else self._alive(owner)

    # --- writing -----------------------------------------------------------------------------

    def claim(
        self,
        members: tuple[str, ...] | None = None,
        *,
        takeover: bool = False,
        choose: Chooser = choose_restore_point,
        patience_s: float = heartbeat.PATIENCE_S,
        kin: Collection[int] = (),
    ) -> Claimed | None:
        """The next generation, or ``None`` when there is nothing to claim: no run yet, or it has ended.

        ``members`` not known: those of the last generation; workers of other roles step on from it. Raises
        ``RunBusy`` when another launch trains the run (an owner that was just killed is waited for), or one
        of the same name, by processes that are none of ``kin``, the agents of this one; and as
        ``claim_generation``.
        """
        if self.state() is None:
            return None
        if not takeover:
            self._wait_for_owner(patience_s, {os.getpid(), *kin})
        return self._claim(members, takeover, choose)

    def _claim(self, members: tuple[str, ...] | None, takeover: bool, choose: Chooser) -> Claimed | None:
        state = self._view.state
        if state.terminal is not None:
            return None
        roles = members or state.members or tuple(state.spec.get("roles", ()))
        claiming = claim.claim_generation(
            self._view, launch_id=self.name, members=roles, takeover=takeover, choose=choose
        )
        claims: list[claim.Claim] = []
        try:
            self._run(_keeping(claiming, claims))
        except RunEnded:
            return None
        made = claims[0]
        point = made.restore_point
        c, step = (None, None) if point is None else (point.c, point.step)
        return Claimed(self._view.state.run_id, made.token, c, step, made.choice.reason, roles)

    def failed(self, token: Token, lapse: Lapse) -> RunState:
        """Record one failure of the generation of ``token``; once, however often this is called.

        Raises as ``append``: ``Fenced`` or ``Superseded`` when the run is not this launch's any more.
        """
        state = self.state()
        if state is not None and any(known.op_id == lapse.op_id for known in reversed(state.failures)):
            return state
        recording = ending.record_failure(
            self._view, token, failure_class=lapse.failure, signature=lapse.signature,
            evidence=lapse.evidence, step=lapse.step, op_id=lapse.op_id, further=lapse.details(),
        )  # fmt: skip
        return self._run(recording).state

    def end(self, token: Token, reason: str) -> RunState:
        """``run.failed``: no generation may follow. Ended already, in whatever way: nothing is done."""
        state = self.state()
        if state is not None and state.terminal is not None:
            return state
        return self._run(ending.fail(self._view, token, reason=reason)).state

    def maintain(self, kind: Kind, payload: Mapping[str, Any]) -> RunState:
        """One fact of maintenance under this launch's epoch, claimed if it has none (``claim.maintain``)."""
        self.state()
        return self._run(claim.maintain(self._view, kind, payload, self.name)).state

    def holding(self) -> Holding:
        """What keeps the owner's hint for this launch, through a connection of its own."""
        return Holding(self.root, self._open, self._clock, self.name)

    # --- inside ------------------------------------------------------------------------------

    def _look(self) -> Program[View]:
        """A doubt ends first: were it to end later, its record would be sent once more."""
        if self._view.next_seq == 0:
            return replay_whole(EMPTY)
        return _settled(self._view)

    def _run(self, program: Program[View]) -> View:
        """Run ``program``; what the books know of the journal is then what it returned."""

        def work(deserted: threading.Event) -> View:
            return Patient(self._opened(), self._clock, deserted).run(program)

        try:
            self._view = self._bounded.call(work, self._deadline_s)
        except AppendInDoubt as error:
            self._view = error.view
            raise
        return self._view

    def _owner(self) -> heartbeat.Owner | None:
        return self._bounded.call(lambda _: heartbeat.read(self._opened()), self._deadline_s)

    def _opened(self) -> Tier:
        if self._tier is None:
            self._tier = self._open(self.root)
        return self._tier

    def _alive(self, owner: heartbeat.Owner) -> str:
        alive, why = owner.alive(self._clock.now())
        return why if alive else ""

    def _wait_for_owner(self, patience_s: float, kin: Collection[int]) -> None:
        """Until nobody else owns the run; ``RunBusy`` for one that does."""
        found = heartbeat.contender(self._owner, self._clock, self.name, kin, patience_s)
        if found is not None:
            owner, why = found
            raise RunBusy(
                f"{self.root} is being trained: {why} ({owner.launch_id})",
                hint="wait, or start with --takeover",
            )


def _settled(view: View) -> Program[View]:
    return (yield from replay((yield from settle(view))))


def _keeping(claiming: Program[claim.Claim], into: list[claim.Claim]) -> Program[View]:
    made = yield from claiming
    into.append(made)
    return made.view
