"""L5. Saving: stage on the training thread, commit in the background, keep what must be kept.

What a failure of storage does is here too: it is an event at once, a line in the journal as soon as
the journal can be written, and nothing else until the declared recovery point is at stake.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from durable_core import events
from durable_core.clock import Clock
from durable_core.commit import ending
from durable_core.commit.journal import AppendInDoubt, View, settle
from durable_core.commit.landed import landed
from durable_core.commit.request import Deadlines, LedgerRows, SaveAborted, SaveOutcome, SaveRequest
from durable_core.commit.save import save_coordinator, save_writer
from durable_core.engine import probe
from durable_core.engine.collect import collect
from durable_core.engine.performer import Performer
from durable_core.engine.staged import StagedShard
from durable_core.engine.worker import Job
from durable_core.engine.writer import Writer
from durable_core.errors import DurableError, FencedError, RpoBreachedError, TierError
from durable_core.format import codec, ledger
from durable_core.session.cadence import Meter, next_save
from durable_core.session.settings import Settings
from durable_core.session.status import Board
from durable_core.session.world import World
from durable_core.state import fingerprint, tree, window
from durable_core.state.staging import Slot, SlotPool, Staged
from durable_core.types import CrashPoint, Promise, Token

#: Seconds between two tries while training is paused for a breached recovery point.
PAUSE_RETRY_S = 1.0


class Saver:
    """Everything after ``confirm``: staging slots, the writer thread, cadence, retention."""

    def __init__(
        self, performer: Performer, clock: Clock, world: World, settings: Settings, token: Token,
        view: View, board: Board, rows: window.Window,
    ) -> None:  # fmt: skip
        self._performer, self._clock, self._world, self._settings = performer, clock, world, settings
        self._token, self._board, self._window = token, board, rows
        self._run_id, self._spec_digest = view.state.run_id, view.state.spec_digest
        self._promise = view.state.promise
        self._pool = SlotPool(settings.slots)
        self._writer = Writer(view)
        self._meter = Meter()
        self._ledger: list[ledger.Row] = []
        self._next_step: int | None = None
        self._epoch: int | None = None
        self._last_boundary: tuple[int, float] | None = None
        self._unwritten: list[tuple[str, str, Any, int | None]] = []
        self._fingerprint = fingerprint.fingerprint()

    # --- at every boundary -------------------------------------------------------------------

    @property
    def pending(self) -> int:
        return self._writer.pending

    def boundary(self, step: int) -> None:
        self._writer.raise_failure()
        now = self._clock.monotonic()
        if self._last_boundary is not None and step > self._last_boundary[0]:
            before, then = self._last_boundary
            self._meter.note(self._meter.step, (now - then) / (step - before))
        self._last_boundary = (step, now)
        self._board.current_step = step

    def due(self, step: int) -> bool:
        if self._next_step is None:
            self._next_step = self._announce(step - 1)
        return step >= self._next_step

    def _announce(self, step: int) -> int:
        """The step of the next save: the coordinator's figures decide, and all are told beforehand."""
        meter = self._meter
        decision = next_save(
            self._settings.cadence, step, step_seconds=meter.median(meter.step),
            cost_seconds=meter.median(meter.cost), persist_seconds=meter.median(meter.persist),
        )  # fmt: skip
        cadence = self._settings.cadence
        if isinstance(cadence.every_n_steps, int) and cadence.every_seconds is None:
            return decision.next_step  # the same on every writer without asking
        return int(self._world.broadcast(decision.next_step))

    def prepare(self, state: Any, role: Any) -> None:
        tensors = self._flatten(state, role)[2]
        threading.Thread(
            target=self._pool.prepare, args=(tensors,), name="durable-prepare", daemon=True
        ).start()

    # --- one save ----------------------------------------------------------------------------

    def save(
        self, state: Any, role: Any, *, step: int, cursor: Mapping[str, Any] | None,
        counters: Mapping[str, Any], rows: tuple[ledger.Row, ...], wait: bool,
    ) -> bool:  # fmt: skip
        self._writer.raise_failure()
        self._ledger.extend(rows)
        started = self._clock.monotonic()
        shared, own, tensors = self._flatten(state, role)
        breached = self._breached(step)
        slot = self._acquire(patient=wait or breached or self._settings.backlog == "delay")
        if not self._world.all(slot is not None):
            if slot is not None:
                slot.cancel()
            self._next_step = self._announce(step)
            self._skip(step)
            return False
        assert slot is not None
        staged = slot.stage(tensors, reached=probe.reached)
        try:
            probe.reached(CrashPoint.K4)
            self._board.stall_seconds = self._clock.monotonic() - started
            self._meter.note(self._meter.cost, self._board.stall_seconds)
            request = self._request(step, {"state": shared, "role": own}, staged, cursor, counters)
            self._board.emit(
                events.SaveStarted(self._clock.now(), step, self._board.stall_seconds, staged.nbytes)
            )
        except BaseException:
            staged.release()  # a caller that goes on must not be one slot short for ever
            raise
        failures: list[DurableError] = []
        self._submit(request, staged, keep=wait or breached, failures=failures)
        if wait or breached:
            self._wait(request, staged, failures, pause=breached and not wait)
        self._next_step = self._announce(step)
        return True

    def _acquire(self, *, patient: bool) -> Slot | None:
        slot = self._pool.acquire(0.0)
        if slot is None and patient:
            self._board.count("delayed")
            slot = self._pool.acquire(None)
        return slot

    def _flatten(self, state: Any, role: Any) -> tuple[tree.Document, tree.Document, dict[str, Tensor]]:
        shared = tree.flatten(state, prefix="state")
        own = tree.flatten(role, prefix=f"roles/{self._world.role}")
        return shared.doc, own.doc, {**shared.tensors, **own.tensors}

    def _submit(
        self, request: SaveRequest, staged: Staged, *, keep: bool, failures: list[DurableError],
        again: bool = False,
    ) -> None:  # fmt: skip
        def failed(error: DurableError) -> None:
            failures.append(error)
            self._failed(request.step, error)

        release = (lambda: None) if keep else staged.release
        work = self._work(request, staged, again=again)
        self._writer.submit(Job(f"save {request.step}", work, failed, release))

    def _wait(
        self, request: SaveRequest, staged: Staged, failures: list[DurableError], *, pause: bool
    ) -> None:
        """Until the commit; a pause tries again for as long as it takes, anything else says why not."""
        try:
            while True:
                self._writer.drain()
                self._writer.raise_failure()
                if not self._world.all(not failures):
                    if not pause:
                        raise (
                            failures[0]
                            if failures
                            else SaveAborted("another writer failed", self._writer.view)
                        )
                    failures.clear()
                    self._clock.sleep(PAUSE_RETRY_S)
                    self._submit(request, staged, keep=True, failures=failures, again=True)
                    continue
                return
        finally:
            staged.release()

    def _request(
        self, step: int, documents: dict[str, Any], staged: Staged, cursor: Mapping[str, Any] | None,
        counters: Mapping[str, Any],
    ) -> SaveRequest:  # fmt: skip
        seconds = self._settings.commit_deadline_s
        rows = tuple(self._ledger)
        return SaveRequest(
            role=self._world.role,
            roles=self._world.roles,
            token=self._token,
            run_id=self._run_id,
            step=step,
            documents=documents,
            cursor=None if cursor is None else dict(cursor),
            spec_digest=self._spec_digest,
            promise=self._promise,
            slices=staged.slices,
            counters=dict(counters),
            metrics=tuple(codec.encode(dict(vars(row))) for row in self._window.rows),
            fingerprint=self._fingerprint,
            topology={"roles": list(self._world.roles)},
            ledger=lambda after: segment(rows, after),
            deadlines=Deadlines(seconds, seconds, seconds, seconds),
        )

    def _work(self, request: SaveRequest, staged: Staged, *, again: bool) -> Any:
        program = save_coordinator if request.coordinates else save_writer
        started = self._clock.monotonic()

        def work(view: View) -> View:
            performer = self._performer.with_source(StagedShard(staged, request.role))
            try:
                earlier = performer.run(landed(view, request)) if again else None
                outcome = earlier or performer.run(program(view, request))
            except (SaveAborted, AppendInDoubt) as error:
                self._writer.view = error.view
                raise
            self._committed(outcome, self._clock.monotonic() - started)
            return self._after_commit(outcome.view)

        return work

    # --- what came of it ---------------------------------------------------------------------

    def _committed(self, outcome: SaveOutcome, seconds: float) -> None:
        now = self._clock.now()
        self._meter.note(self._meter.persist, seconds)
        self._board.committed(outcome.c, outcome.step, now)
        self._board.emit(
            events.SaveCommitted(now, outcome.c, outcome.step, outcome.bytes, outcome.bytes_written, seconds)
        )
        # Only this thread drops rows and only the training thread adds them at the end, so no row is lost.
        while self._ledger and self._ledger[0].step <= outcome.step:
            del self._ledger[0]

    def _after_commit(self, view: View) -> View:
        """Journal what could not be journaled before, then retention; neither can undo the commit."""
        if not self._world.coordinator:
            return view
        try:
            while self._unwritten:
                view = self._append_failure(view, *self._unwritten[0])
                del self._unwritten[0]
        except AppendInDoubt as error:
            return error.view
        except TierError:
            return view  # the lines stay for the next commit
        collected = collect(
            self._performer, view, self._settings.retention, self._token.launch_id, self._epoch
        )
        self._epoch = collected.epoch
        if collected.problem:
            self._board.emit(events.CollectionFailed(self._clock.now(), collected.problem))
        return collected.view

    def _failed(self, step: int, error: DurableError) -> None:
        text = f"{type(error).__name__}: {error}"
        self._board.failed(text)
        newest = self._board.read(0).newest_step
        now = self._clock.now()
        if isinstance(error, FencedError):
            self._board.emit(events.WasFenced(now, self._token.generation, -1, text))
            return
        self._board.emit(events.SaveFailed(now, step, text, newest))
        self._unwritten.append(("F10", type(error.__cause__ or error).__name__, text, step))

    def _skip(self, step: int) -> None:
        self._board.count("skipped")
        skipped = self._board.read(0).skipped
        self._board.emit(
            events.SaveSkipped(self._clock.now(), step, "every staging slot is still being written", skipped)
        )

    def _breached(self, step: int) -> bool:
        """Whether the declared recovery point is at stake and the policy is to stop for it."""
        settings = self._settings
        status = self._board.read(0)
        behind = step - (status.newest_step or 0)
        age = None if status.newest_time is None else self._clock.now() - status.newest_time
        breached = (settings.rpo_steps is not None and behind > settings.rpo_steps) or (
            settings.rpo_seconds is not None and age is not None and age > settings.rpo_seconds
        )
        if len(self._world.roles) > 1 and (settings.rpo_steps or settings.rpo_seconds):
            breached = not self._world.all(not breached)
        if not breached:
            return False
        if self._board.breach():
            self._board.emit(
                events.RpoBreached(
                    self._clock.now(), step, status.newest_step, settings.rpo_steps or 0,
                    settings.on_rpo_breach,
                )
            )  # fmt: skip
        if settings.on_rpo_breach == "abort":
            raise RpoBreachedError(
                f"step {step}: the newest durable checkpoint is at step {status.newest_step}, "
                f"beyond the declared recovery point ({status.last_error or 'saves are too slow'})",
                hint='mend the storage and restart; on_rpo_breach="continue" would have gone on',
            )
        return settings.on_rpo_breach == "pause"

    # --- other records -----------------------------------------------------------------------

    def note_failure(self, failure_class: str, signature: str, evidence: Any, step: int | None) -> None:
        line = (failure_class, signature, evidence, step)
        self._background("failure", lambda view: self._append_failure(view, *line))

    def draining(self, step: int, reason: str) -> None:
        self._board.emit(events.Draining(self._clock.now(), step, reason))
        self._background(
            "draining",
            lambda view: self._performer.run(ending.drain(view, self._token, reason=reason, step=step)),
        )

    def lower_promise(self, to: Promise, reason: str) -> None:
        self._board.emit(events.PromiseLowered(self._clock.now(), self._promise, to, reason))
        self._promise = to
        self._background(
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

    def _background(self, name: str, work: Any) -> None:
        if self._world.coordinator:
            self._writer.submit(
                Job(
                    name,
                    self._keeping_doubt(work),
                    lambda error: self._failed(self._board.current_step, error),
                )
            )

    def _keeping_doubt(self, work: Any) -> Any:
        def guarded(view: View) -> View:
            try:
                result: View = work(view)
            except AppendInDoubt as error:
                self._writer.view = error.view
                raise
            return result

        return guarded

    # --- ending ------------------------------------------------------------------------------

    def flush(self, timeout: float | None) -> bool:
        done = self._writer.drain(timeout)
        if done and self._writer.view.doubt is not None:
            self._background("settle", self._settle)
            done = self._writer.drain(timeout)
        self._writer.raise_failure()
        return done

    def _settle(self, view: View) -> View:
        """End a doubt that no later save will end; what turns out committed counts as that."""
        view = self._performer.run(settle(view))
        state = view.state
        if state.head is not None and state.head != self._board.read(0).newest_c:
            self._board.committed(state.head, state.checkpoints[state.head].step, self._clock.now())
        return view

    def succeed(self, target: Any) -> None:
        failures: list[DurableError] = []
        if self._world.coordinator:

            def work(view: View) -> View:
                program = ending.succeed(view, self._token, c=view.state.head, target=target)
                return self._performer.run(program)

            self._writer.submit(Job("succeed", self._keeping_doubt(work), failures.append))
            self._writer.drain()
        self._writer.raise_failure()
        if failures:
            raise failures[0]
        self._board.emit(
            events.RunSucceeded(self._clock.now(), self._writer.view.state.head, self._board.current_step)
        )

    def close(self, timeout: float | None) -> None:
        if not self._writer.close(timeout):
            status = self._board.read(0)
            late = f"not durable after {timeout} s, and no longer waited for"
            self._board.emit(
                events.SaveFailed(self._clock.now(), status.current_step, late, status.newest_step)
            )
        self._writer.raise_failure(untold=True)


def segment(rows: tuple[ledger.Row, ...], after: int | None) -> LedgerRows:
    """The ledger segment of the rows after step ``after``."""
    mine = tuple(row for row in rows if after is None or row.step > after)
    return LedgerRows(ledger.encode_segment(mine), sum(len(row.ids) for row in mine))
