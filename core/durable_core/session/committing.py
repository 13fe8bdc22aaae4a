"""L5. The background side of saving: commits, what is kept of them, and every other record of a worker.

What a failure of storage does is here too: it is an event at once, a line in the journal as soon as
the journal can be written, and nothing else until the declared recovery point is at stake.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from durable_core import events
from durable_core.clock import Clock
from durable_core.commit import ending, marks
from durable_core.commit.fence import token_error
from durable_core.commit.journal import AppendInDoubt, View, settle
from durable_core.commit.landed import landed
from durable_core.commit.request import SaveAborted, SaveOutcome, SaveRequest
from durable_core.commit.save import save_coordinator, save_writer
from durable_core.detect.base import Finding
from durable_core.engine.collect import collect
from durable_core.engine.lineage import Lineage
from durable_core.engine.performer import Performer
from durable_core.engine.staged import StagedShard
from durable_core.engine.worker import Job
from durable_core.engine.writer import Work, Writer
from durable_core.errors import DurableError, FencedError, LostSlot, TierError
from durable_core.session.cadence import Meter
from durable_core.session.integrity import Watch
from durable_core.session.marking import Marker
from durable_core.session.settings import Settings
from durable_core.session.snapshots import Lease
from durable_core.session.status import Board
from durable_core.session.world import World
from durable_core.types import Promise, Token


class Committer:
    """Owns the writer's thread. ``on_commit`` is called there with every outcome, in order; ``in_hand`` says
    which checkpoints are being copied, and must not be let go of. ``home``: the root's name as a tier."""

    def __init__(
        self, performer: Performer, clock: Clock, world: World, settings: Settings, token: Token,
        view: View, board: Board, meter: Meter, home: str, watch: Watch,
    ) -> None:  # fmt: skip
        self._performer, self._clock, self._world, self._settings = performer, clock, world, settings
        self._token, self._board, self._meter, self._home = token, board, meter, home
        self.writer = Writer(view)
        self._marker = Marker(watch, performer, token, world.role, board, clock)
        self.lineage = Lineage()
        self.in_hand: Callable[[], frozenset[int]] = frozenset
        self.on_commit: list[Callable[[SaveOutcome], None]] = []
        self._epoch: int | None = None
        #: saves queued or under way
        self.saves_pending = 0
        self._counting = threading.Lock()
        self._unwritten: list[tuple[str, str, Any, int | None]] = []

    # --- commits -----------------------------------------------------------------------------

    def submit(
        self, request: SaveRequest, shard: StagedShard, lease: Lease, *, failures: list[DurableError],
        again: bool = False,
    ) -> None:  # fmt: skip
        """Queue the save. ``failures`` gets what prevented it; ``again``: an earlier try may have landed."""

        given_up = self._board.given_up
        round_ = given_up.round
        request = replace(request, given_up=lambda: given_up.why(round_))

        def failed(error: DurableError) -> None:
            if isinstance(error, SaveAborted):  # what is in doubt may have been committed
                given_up.add(round_)
            failures.append(error)
            self._failed(request.step, error)

        release = lease.hold()

        def finished() -> None:
            with self._counting:
                self.saves_pending -= 1
            release()

        with self._counting:
            self.saves_pending += 1
        work = self._work(request, shard, lease, again=again)
        self.writer.submit(Job(f"save {request.step}", work, failed, finished))

    def _work(self, request: SaveRequest, shard: StagedShard, lease: Lease, *, again: bool) -> Work:
        program = save_coordinator if request.coordinates else save_writer
        started = self._clock.monotonic()

        def work(view: View) -> View:
            performer, wanted = self._performer.with_source(shard), request
            if view.state.head is None:  # the origin of the run lies where the run lies
                performer, wanted = performer.at_home(), replace(request, tiers=(self._home,))
            known = replace(wanted, known=self.lineage.known)
            try:
                earlier = performer.run(landed(view, known)) if again else None
                with self.lineage.following(shard):
                    outcome = earlier or performer.run(program(view, known))
            except (SaveAborted, AppendInDoubt) as error:
                self.writer.view = error.view
                raise
            self.lineage.committed(outcome, shard, lease.hold())
            self._committed(wanted, outcome, self._clock.monotonic() - started)
            return self._after_commit(outcome.view)

        return work

    def _committed(self, request: SaveRequest, outcome: SaveOutcome, seconds: float) -> None:
        now = self._clock.now()
        self._meter.persisted(seconds)
        self._board.committed(outcome.c, outcome.step, now, request.tiers)
        self._board.emit(
            events.SaveCommitted(now, outcome.c, outcome.step, outcome.bytes, outcome.bytes_written, seconds)
        )
        for listener in self.on_commit:
            listener(outcome)

    def _after_commit(self, view: View) -> View:
        """Journal what could not be journaled before, known-good marks, then retention; none undoes the
        commit."""
        try:
            view = self._marker.tell(view)
            if not self._world.coordinator:
                return view
            while self._unwritten:
                view = self._append_failure(view, *self._unwritten[0])
                del self._unwritten[0]
            view = self._marker.after_commit(view)
        except AppendInDoubt as error:
            return error.view
        except (TierError, LostSlot):
            return view  # the lines stay for the next commit
        policy = self._marker.retention(self._settings.retention)
        collected = collect(
            self._performer, view, policy, self._token.launch_id, self._epoch,
            in_hand=self.in_hand(),
        )  # fmt: skip
        self._epoch = collected.epoch
        if collected.problem:
            self._board.emit(events.CollectionFailed(self._clock.now(), collected.problem))
        return collected.view

    def _failed(self, step: int, error: DurableError) -> None:
        text = f"{type(error).__name__}: {error}"
        self._meter.failed()
        self._board.failed(text)
        newest = self._board.read(0).newest_step
        now = self._clock.now()
        if isinstance(error, FencedError):
            self._board.emit(events.WasFenced(now, self._token.generation, -1, text))
            return
        self._board.emit(events.SaveFailed(now, step, text, newest))
        self._unwritten.append(("F10", type(error.__cause__ or error).__name__, text, step))

    # --- other records -----------------------------------------------------------------------

    def note_failure(self, failure_class: str, signature: str, evidence: Any, step: int | None) -> None:
        line = (failure_class, signature, evidence, step)
        self.background("failure", lambda view: self._append_failure(view, *line))

    def found(self, finding: Finding, action: str) -> None:
        """Journal a numeric fault, in the background; every role may find one."""
        self._marker.found(finding, action)
        work = self._keeping_doubt(self._marker.tell)
        self.writer.submit(Job("finding", work, lambda error: self._failed(finding.step, error)))

    def draining(self, step: int, reason: str) -> None:
        self._board.emit(events.Draining(self._clock.now(), step, reason))
        self.background(
            "draining",
            lambda view: self._performer.run(ending.drain(view, self._token, reason=reason, step=step)),
        )

    def pin(self, c: int, *, pinned: bool) -> None:
        """Waits for it. Raises as ``marks.pin``, and ``Fenced`` also where that is so already."""
        failures: list[DurableError] = []

        def work(view: View) -> View:
            view = self._performer.run(marks.pin(view, c, self._token.launch_id, pinned=pinned))
            stale = token_error(view.state, self._token)
            if stale is not None:
                raise stale
            return view

        self.writer.submit(Job("pin", self._keeping_doubt(work), failures.append))
        self.writer.drain()
        self.writer.raise_failure()
        if failures:
            raise failures[0]

    def lower_promise(self, was: Promise, to: Promise, reason: str) -> None:
        self._board.emit(events.PromiseLowered(self._clock.now(), was, to, reason))
        self.background(
            "promise",
            lambda view: self._performer.run(ending.lower_promise(view, self._token, to=to, reason=reason)),
        )

    def _append_failure(
        self, view: View, failure_class: str, signature: str, evidence: Any, step: int | None
    ) -> View:
        return self._performer.run(
            ending.record_failure(
                view, self._token, failure_class=failure_class, signature=signature, evidence=evidence,
                step=step,
            )
        )  # fmt: skip

    def background(self, name: str, work: Work) -> None:
        """A record that only the coordinator writes."""
        if self._world.coordinator:
            self.writer.submit(
                Job(
                    name,
                    self._keeping_doubt(work),
                    lambda error: self._failed(self._board.current_step, error),
                )
            )

    def _keeping_doubt(self, work: Work) -> Work:
        def guarded(view: View) -> View:
            try:
                return work(view)
            except AppendInDoubt as error:
                self.writer.view = error.view
                raise

        return guarded

    # --- ending ------------------------------------------------------------------------------

    def flush(self, timeout: float | None) -> bool:
        done = self.writer.drain(timeout)
        if done and self.writer.view.doubt is not None:
            self.background("settle", self._settle)
            done = self.writer.drain(timeout)
        self.writer.raise_failure()
        return done

    def _settle(self, view: View) -> View:
        """End a doubt that no later save will end; what turns out committed counts as that."""
        view = self._performer.run(settle(view))
        state = view.state
        if state.head is not None and state.head != self._board.read(0).newest_c:
            info = state.checkpoints[state.head]
            self._board.committed(info.c, info.step, self._clock.now(), info.tiers)
        return view

    def succeed(self, target: Any) -> None:
        """The coordinator records it, and the others wait for that: a worker that ends with 0 before it is
        so looks to its launcher like one that has given up."""
        failures: list[DurableError] = []

        def work(view: View) -> View:
            if self._world.coordinator:
                program = ending.succeed(view, self._token, c=view.state.head, target=target)
            else:
                seconds = self._settings.commit_deadline_s
                program = ending.await_success(view, self._token, seconds=seconds)
            return self._performer.run(program)

        self.writer.submit(Job("succeed", self._keeping_doubt(work), failures.append))
        self.writer.drain()
        self.writer.raise_failure()
        if failures:
            raise failures[0]
        self._board.emit(
            events.RunSucceeded(self._clock.now(), self.writer.view.state.head, self._board.current_step)
        )

    def close(self, timeout: float | None) -> None:
        done = self.writer.close(timeout)
        self.lineage.spare()  # not before: a save that is still under way would keep its slot for good
        if not done:
            status = self._board.read(0)
            late = f"not durable after {timeout} s, and no longer waited for"
            self._board.emit(
                events.SaveFailed(self._clock.now(), status.current_step, late, status.newest_step)
            )
        self.writer.raise_failure(untold=True)
