"""L5. From how an attempt ended to what follows: evidence, class, record, decision.

What a failure is (``classify``) and what to do about it (``retry``) is decided elsewhere, purely, from
evidence and the journal. Here the evidence is gathered and the journal is written, each call to it with a
deadline: when it does not answer, the agent goes on with what it knows, and the failure is recorded with
the next one.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from durable_core.clock import Clock
from durable_core.commit.state import Failure, RunState
from durable_core.engine import beats, words
from durable_core.engine.launched import RunFiles
from durable_core.engine.words import Request
from durable_core.errors import DurableError, FencedError, FormatError, LostSlot, RecordRefused, TierError
from durable_core.format.record import Kind
from durable_core.launch import past, quarantine, retry
from durable_core.launch.agent.ended import Cause, Ended, Verdict
from durable_core.launch.books import Books, Lapse
from durable_core.launch.causes import Origin
from durable_core.launch.classes import DRAINED, TABLE, F
from durable_core.launch.classify import Evidence, Exit, Lost, Stall, Unfit, classify
from durable_core.launch.classify import Verdict as Finding
from durable_core.launch.controller.incident import redacted


@dataclass
class Judge:
    """``books()``: ``None`` while no run has been opened. ``complete(books)``: what is left to do once the
    run has ended. ``say``: one line for the operator. ``policy(run)``: how often and how quickly it is
    started again; ``spent(run)``: what the limits of that are held against.
    ``secrets``: what must not be written down. ``node``: this agent's name among those of the launch.
    ``spare()``: whether the group can do without one of its nodes; ``lost()``: which of those are gone.
    """

    files: RunFiles
    clock: Clock
    policy: Callable[[RunState], retry.Policy]
    books: Callable[[], Books | None]
    complete: Callable[[Books], None]
    say: Callable[[str], None]
    spent: Callable[[RunState], Mapping[str, float]] = lambda run: {}
    secrets: tuple[str, ...] = ()
    node: str = ""
    spare: Callable[[], bool] = lambda: True
    lost: Callable[[], tuple[Lost, ...]] = tuple
    _state: RunState = field(default_factory=RunState)
    _unrecorded: list[Lapse] = field(default_factory=list)

    def __call__(self, ended: Ended) -> Verdict:
        books = self.books()
        state = self._read(books)
        over = state.terminal
        if _succeeded(ended, state) or (ended.cause is Cause.FINISHED and books is None):
            return self._finished(books)
        stays = over is None or over.outcome == "succeeded"
        if ended.cause in (Cause.STOP, Cause.TOLD) and stays:
            return _stopped(self._spared(ended), state)
        if ended.cause is Cause.REGROUP and stays:
            return _regrouped(ended, state)
        if ended.cause is Cause.CLOSED and over is None:
            return Verdict(1, f"{ended.cause.value}; its own output says why")
        finding = self._found(self._evidence(ended, state, books))
        if over is not None:
            return self._after(books, finding, over.outcome)
        decision = self._decide(state, finding)
        line = redacted(retry.record(state, finding, decision, self.node), self.secrets)
        if ended.provoked:
            line["evidence"]["provoked"] = ended.provoked
        self._unrecorded.append(Lapse(op_id=self.clock.new_id(), **line))
        if books is not None:
            self._record(books)
        return self._verdict(books, state, decision)

    # --- what is known -----------------------------------------------------------------------

    def _read(self, books: Books | None) -> RunState:
        """The run as the journal has it, with the failures that could not be recorded yet."""
        if books is not None:
            try:
                self._state = books.state() or RunState()
            except TierError as error:
                self.say(f"the journal does not answer, going on by what was read last: {error}")
        state = self._state
        for lapse in self._unrecorded:
            named = {"class": lapse.failure, "signature": lapse.signature, "evidence": lapse.evidence}
            payload = {**lapse.details(), **named, "step": lapse.step}
            line = Failure(-1, state.generation, lapse.op_id, payload, self.clock.now())
            state = replace(state, failures=state.failures.append(line))
        return state

    def _found(self, evidence: Evidence) -> Finding:
        """Who is lost is asked only where that would explain the end better: to find out may take seconds."""
        found = classify(evidence)
        of_peers = found.origin in (Origin.UNKNOWN, Origin.SECONDARY) or found.failure in (F.F5, F.F17)
        lost = self.lost() if of_peers else ()
        return classify(replace(evidence, lost=lost)) if lost else found

    def _evidence(self, ended: Ended, state: RunState, books: Books | None) -> Evidence:
        """Only what ended, or was seen to end, by itself is a cause; what we stopped is marked."""
        host = socket.gethostname()
        exits = tuple(
            Exit(
                rank,
                status,
                host,
                self._words(rank, ended.attempt),
                ended.at,
                stopped,
                ended.oom,
                None if stopped else self._quiet(rank, ended.at),
            )
            for statuses, stopped in ((ended.exits, False), (ended.after, True))
            for rank, status in sorted(statuses.items())
        )
        over, mine = state.terminal, "" if books is None else books.name
        asked: Mapping[str, Any] = {} if ended.request is None else ended.request.evidence
        stall, unfit = asked.get("stall"), asked.get("unfit")
        planned = ended.request is not None and unfit is None and _is_planned(ended.request)
        return Evidence(
            exits,
            self._step(),
            stall=None if stall is None else Stall(**{**stall, "frames": tuple(stall["frames"])}),
            unfit=None if unfit is None else Unfit(**unfit),
            numeric=past.finding(state),
            notice=ended.request.reason if planned and ended.request is not None else "",
            finished=over is not None and over.outcome == "succeeded",
            cancelled=str(over.detail.get("principal")) if over and over.outcome == "cancelled" else "",
            newer=state.launch_id if mine and mine in state.superseded else "",
            waited=_waited(ended),
            known=state.exists or ended.generation is not None,
        )

    def _words(self, rank: int, attempt: int) -> words.Words | None:
        """The worker's own, whatever was wrapped around it, and not those of an attempt before."""
        try:
            said = words.read_words(self.files.words(rank))
        except FormatError as error:
            self.say(f"the last words of rank {rank} are not understood: {error}")
            return None
        return said if said is not None and said.attempt == attempt else None

    def _spared(self, ended: Ended) -> Ended:
        """Whoever still imports, builds or restores has nothing to drain: its signal ends it, and nothing is
        lost."""

        def spared(statuses: Mapping[int, int]) -> dict[int, int]:
            return {
                rank: DRAINED if status == -signal.SIGTERM and not self._trains(rank, ended) else status
                for rank, status in statuses.items()
            }

        return replace(ended, exits=spared(ended.exits), after=spared(ended.after))

    def _trains(self, rank: int, ended: Ended) -> bool:
        if self.files.mute(rank).exists():
            return True  # not known
        try:
            beat = beats.read(self.files.beat(rank))
        except FormatError:
            return True  # not known
        return beat is not None and beat.phase not in (beats.Phase.INIT, beats.Phase.RESTORE)

    def _quiet(self, rank: int, at: float) -> float | None:
        """Seconds from its last sign of life until its end was seen, if it has given any."""
        try:
            beat = beats.read(self.files.beat(rank))
        except FormatError:
            return None
        return None if beat is None else max(0.0, at - beat.time)

    def _step(self) -> int | None:
        """The last step that all have done: a group is as far as the one behind."""
        found = []
        for path in self.files.beat(0).parent.glob("[0-9]*"):  # not what a writer that was killed has left
            beat = beats.read(path)
            if beat is not None and beat.step >= 0:
                found.append(beat.step)
        return min(found, default=None)

    # --- what is done ------------------------------------------------------------------------

    def _decide(self, state: RunState, finding: Finding) -> retry.Decision:
        chance = int(self.clock.new_id()[:8], 16) / 2**32
        spent = self.spent(state)
        now = self.clock.now()
        policy, spare = self.policy(state), self.spare()
        return retry.decide(
            state, finding, policy, jitter=chance, now=now, spent=spent, by=self.node, spare=spare
        )

    def _record(self, books: Books) -> None:
        """What is not recorded yet, once. In doubt is told: the next call finds out."""
        try:
            token = books.mine()
            while token is not None and self._unrecorded:
                state = books.failed(token, self._unrecorded[0])
                del self._unrecorded[0]
                for payload in quarantine.unrecorded(state, self.policy(state).quarantine):
                    books.maintain(Kind.QUARANTINE, payload)
        except (TierError, RecordRefused, LostSlot) as error:
            self.say(f"the failure is not recorded yet: {error}")
        except FencedError as error:
            self.say(f"the failure is not recorded, the run is not this launch's any more: {error}")

    def _verdict(self, books: Books | None, state: RunState, decision: retry.Decision) -> Verdict:
        known = decision.failure.value
        if decision.again:
            step = state.head_step if decision.onset is None else None  # from before it: who claims will see
            nth = self._nth(state) if decision.charged else ""
            return Verdict(None, decision.told, decision.delay_s, known, decision.onset, nth, step)
        if decision.action is retry.Action.FAIL and books is not None:
            try:
                token = books.mine()
                if token is not None:
                    books.end(token, decision.reason)
                    self._sum_up(books)
            except (TierError, FencedError, LostSlot) as error:
                self.say(f"that the run has failed is not recorded: {error}")
        return Verdict(
            decision.exit_code, f"{known}, {decision.failure.called}: {decision.told}", reason=known
        )

    def _nth(self, state: RunState) -> str:
        """Which of the restarts that are allowed without progress the next one is. ``state``: before it."""
        policy = self.policy(state)
        limits = (policy.restarts, policy.launch_restarts)
        used = sum(one.charged for one in past.streak(state))
        return f"{used + 1} of {min(limit for limit in limits if limit is not None)}"

    def _after(self, books: Books | None, finding: Finding, outcome: str) -> Verdict:
        """Of workers that were started when the run had ended, or while somebody ended it: there is nothing
        to start again."""
        if books is not None:
            self._sum_up(books)
        code = TABLE[finding.failure].exit_code
        why = f"{finding.failure.value}, {finding.failure.called}: {finding.reason}; the run has {outcome}"
        return Verdict(1 if code == DRAINED else code, why, reason=finding.failure.value)

    def _finished(self, books: Books | None) -> Verdict:
        if books is None:
            return Verdict(0, "every worker ended with 0; no run was opened")
        self._sum_up(books)
        return Verdict(0, f"run {self._state.run_id} has succeeded")

    def _sum_up(self, books: Books) -> None:
        """Success is success without it: it can be written at any time."""
        try:
            self.complete(books)
        except DurableError as error:
            self.say(f"no post-run manifest yet (durable finalize writes it): {error}")


def _is_planned(request: Request) -> bool:
    """Also one that came to no boundary in its time, and is stopped for that."""
    return request.kind == "drain" or request.failure == F.F4.value


def _waited(ended: Ended) -> str:
    if ended.request is not None and ended.request.failure == F.F18.value:
        return "complete group"
    if ended.cause is Cause.UNSTARTED and not ended.exits:
        return "process for a worker"
    return "rendezvous" if ended.cause is Cause.UNMET else ""


def _succeeded(ended: Ended, state: RunState) -> bool:
    """What a worker does after the final record of its own attempt is no failure of the run; what one
    does that found the run at its end (it was given no generation) is judged as ever."""
    if state.terminal is None or state.terminal.outcome != "succeeded":
        return False
    return ended.cause in (Cause.FINISHED, Cause.CLOSED) or ended.generation is not None


def _stopped(ended: Ended, state: RunState) -> Verdict:
    """A planned stop is charged to nobody. One that lost something does not say that all is well."""
    if ended.clean:
        where = "" if state.head_step is None else f" at step {state.head_step}"
        return Verdict(DRAINED, f"stopped as asked{where}; start it again to go on")
    statuses = {**ended.exits, **ended.after}
    bad = {rank: status for rank, status in sorted(statuses.items()) if status not in (0, DRAINED)}
    return Verdict(
        1, f"stopped as asked, but not every worker drained: {bad} by rank; {len(ended.forced)} killed"
    )


def _regrouped(ended: Ended, state: RunState) -> Verdict:
    """What another node has recorded of this generation is what the next workers follow."""
    last = next(reversed(state.failures), None)
    if last is None or last.generation != state.generation:
        return Verdict(None, ended.cause.value)
    known = str(last.payload["class"])
    return Verdict(None, f"{ended.cause.value}; {known}", 0.0, known, last.payload.get("onset"))
