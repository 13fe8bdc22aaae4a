"""L5. The training thread's side of saving: when, what, and what it costs. The rest is ``committing``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from durable_core import events
from durable_core.clock import Clock
from durable_core.commit.request import Deadlines, SaveAborted, SaveOutcome, SaveRequest
from durable_core.engine import probe
from durable_core.engine.sealing import segment
from durable_core.engine.staged import StagedShard
from durable_core.errors import DurableError, MemoryShortageError, RpoBreachedError, TierUnavailable
from durable_core.format import codec, ledger
from durable_core.session.cadence import Limits, Meter, Pacer, read_history
from durable_core.session.committing import Committer
from durable_core.session.copying import Copier
from durable_core.session.settings import Settings
from durable_core.session.snapshots import Lease, Snapshots
from durable_core.session.status import Board
from durable_core.session.world import World
from durable_core.state import fingerprint, stable, tree, window
from durable_core.state.staging import Slot
from durable_core.types import CrashPoint, Promise, Token

#: Seconds between two tries while training is paused for a breached recovery point.
PAUSE_RETRY_S = 1.0


@dataclass(frozen=True)
class Due:
    """What a boundary is for: a ``checkpoint``, or (without) only a snapshot in memory."""

    checkpoint: bool = True


class Saver:
    """Everything after ``confirm``: staging, cadence, backlog. Called on the training thread."""

    def __init__(
        self, committer: Committer, snapshots: Snapshots, copier: Copier | None, landing: str, clock: Clock,
        world: World, settings: Settings, token: Token, board: Board, rows: window.Window, meter: Meter,
    ) -> None:  # fmt: skip
        self.committer, self.snapshots, self.copier = committer, snapshots, copier
        self._landing = landing
        self._clock, self._world, self._settings = clock, world, settings
        self._token, self._board, self._window, self._meter = token, board, rows, meter
        state = committer.writer.view.state
        self._run_id, self._spec_digest, self._promise = state.run_id, state.spec_digest, state.promise
        self._ledger: list[ledger.Row] = []
        limits = Limits(settings.slots, *_rpo(settings))
        self._pacer = Pacer(settings.cadence, meter, world.decide, limits=limits, history=read_history(state))
        self._last_boundary: tuple[int, float] | None = None
        self._fingerprint = fingerprint.fingerprint()
        committer.on_commit.append(self._forget_rows)
        if copier is not None:
            committer.on_commit.append(copier.committed)
            committer.in_hand = lambda: copier.in_hand

    # --- at every boundary -------------------------------------------------------------------

    @property
    def pending(self) -> int:
        return self.committer.saves_pending

    def boundary(self, step: int) -> None:
        self._raise_failure()
        now = self._clock.monotonic()
        if self._last_boundary is not None and step > self._last_boundary[0]:
            before, then = self._last_boundary
            self._meter.stepped(now - then, step - before)
        self._last_boundary = (step, now)
        self._board.reached(step)
        for standing in self._board.recovery.news():
            self._board.emit(
                events.GoalBreached(
                    self._clock.now(), standing.domain, standing.newest.step, standing.gap_steps,
                    standing.gap_seconds,
                )
            )  # fmt: skip

    def _pace(self, step: int) -> None:
        """After a save, made or skipped: the coordinator may announce another cadence."""
        news = self._pacer.saved(step, self._board.read(0).newest_c)
        if news is not None:
            warnings = self._pacer.decided.warnings if self._pacer.decided is not None else ()
            self._board.emit(
                events.CadenceChanged(self._clock.now(), step, news.start, news.every, news.reason, warnings)
            )

    def _raise_failure(self) -> None:
        self.committer.writer.raise_failure()
        self.snapshots.raise_bug()
        if self.copier is not None:
            self.copier.raise_bug()

    def due(self, step: int) -> Due | None:
        if self._pacer.due(step):
            return Due()
        return Due(checkpoint=False) if self.snapshots.due(step) else None

    def settle(self) -> None:
        """The guard. What it waits for is part of what saving costs."""
        if self.snapshots.unsettled:
            started = self._clock.monotonic()
            self.snapshots.settle()
            self._meter.waited(self._clock.monotonic() - started)

    def prepare(self, state: Any, role: Any) -> None:
        self.snapshots.prepare(self._flatten(state, split_position(None, role)[1])[2])

    # --- one save ----------------------------------------------------------------------------

    def save(
        self, state: Any, role: Any, *, step: int, due: Due, unchanging: frozenset[int],
        cursor: Mapping[str, Any] | None, counters: Mapping[str, Any], rows: tuple[ledger.Row, ...],
        wait: bool,
    ) -> bool:  # fmt: skip
        self._raise_failure()
        self.snapshots.settle()  # it holds a slot that this save may have to wait for
        self._ledger.extend(rows)
        if wait and due.checkpoint and self._made(step):
            return True
        started = self._clock.monotonic()
        position, role = split_position(cursor, role)
        shared, own, tensors = self._flatten(state, role)
        breached = due.checkpoint and self._breached(step)
        patient = due.checkpoint and (wait or breached or self._settings.backlog == "delay")
        slot, room = self._acquire(due, patient)
        if due.checkpoint and not (slot and room):
            why = "every slot is in use" if room else "those before are still being written"
            if wait:  # who waits for a checkpoint must not take a skipped one for it
                if slot is not None:
                    slot.cancel()
                raise SaveAborted(f"step {step}: {why}", self.committer.writer.view)
            self._skip(step, why)
            due = Due(checkpoint=False)
        if slot is None or not (due.checkpoint or self.snapshots.due(step)):
            if slot is not None:
                slot.cancel()
            elif not due.checkpoint:
                self._board.count("snapshots_skipped")
            return False
        later = frozenset() if wait or breached else stable.keys(tensors, unchanging)
        try:
            lease = self.snapshots.stage(slot, tensors, later)
        except MemoryShortageError as error:
            if wait or self._board.newest is None:
                raise
            self._skip(step, error.message)  # the state has grown: no reason to end the training
            return False
        failures: list[DurableError] = []
        try:
            probe.reached(CrashPoint.K4)
            self._note_stall(step, self._clock.monotonic() - started, lease.staged.nbytes, due)
            request = self._request(step, {"state": shared, "role": own}, lease, position, counters)
            shard = StagedShard(lease.staged, request.role)
            self.snapshots.keep(lease, shard, request, self._board.newest, checkpoint=due.checkpoint)
            if due.checkpoint:
                self.committer.submit(request, shard, lease, failures=failures)
            if wait or breached:
                self._wait(request, shard, lease, failures, pause=breached and not wait)
        finally:
            lease.release()
        if due.checkpoint:
            self._pace(step)
        return True

    def _made(self, step: int) -> bool:
        """Whether the checkpoint of this step is there already, once what is under way has ended. To write
        it again would be refused, at once by the coordinator, and by the others after their deadline; so
        all go by what the coordinator knows."""
        self.committer.flush(None)
        return bool(self._world.decide(lambda: self._board.read(0).newest_step == step))

    def _flatten(self, state: Any, role: Any) -> tuple[tree.Document, tree.Document, dict[str, Tensor]]:
        shared = tree.flatten(state, prefix="state")
        own = tree.flatten(role, prefix=f"roles/{self._world.role}")
        return shared.doc, own.doc, {**shared.tensors, **own.tensors}

    def _note_stall(self, step: int, seconds: float, nbytes: int, due: Due) -> None:
        self._board.stall_seconds = seconds
        if due.checkpoint:
            self._meter.staged(seconds)
            self._board.emit(events.SaveStarted(self._clock.now(), step, seconds, nbytes))

    def _wait(
        self, request: SaveRequest, shard: StagedShard, lease: Lease, failures: list[DurableError], *,
        pause: bool,
    ) -> None:  # fmt: skip
        """Until the commit; a pause tries again for as long as it takes, anything else says why not."""
        writer = self.committer.writer
        while True:
            writer.drain()
            writer.raise_failure()
            if self._world.all(not failures):
                return
            if not pause:
                raise failures[0] if failures else SaveAborted("another writer failed", writer.view)
            failures.clear()
            self._clock.sleep(PAUSE_RETRY_S)
            self.committer.submit(request, shard, lease, failures=failures, again=True)

    def _request(
        self, step: int, documents: dict[str, Any], lease: Lease, cursor: Mapping[str, Any] | None,
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
            slices=lease.staged.slices,
            counters=dict(counters),
            metrics=tuple(codec.encode(dict(vars(row))) for row in self._window.rows),
            fingerprint=self._fingerprint,
            topology={"roles": list(self._world.roles)},
            ledger=lambda after: segment(rows, after),
            tiers=(self._landing,),
            twins=self.copier is None,  # a second copy of what never changes is in the root anyway
            deadlines=Deadlines(seconds, seconds, seconds, seconds),
        )

    def _forget_rows(self, outcome: SaveOutcome) -> None:
        # Only the writer's thread drops rows and only the training thread adds them at the end, so no row is
        # lost; the board learnt of the commit before, so a seal never claims rows that are gone.
        while self._ledger and self._ledger[0].step <= outcome.step:
            del self._ledger[0]

    def _acquire(self, due: Due, patient: bool) -> tuple[Slot | None, bool]:
        """A slot, and whether one more checkpoint may be in flight; the same on every writer.

        Beside a memory tier with a cadence of its own checkpoints leave a slot for it.
        """
        most = max(1, self._settings.slots - int(self.snapshots.keeping.memory_every is not None))
        if patient and self.committer.saves_pending >= most:
            self._board.count("delayed")
            self.committer.writer.drain()
        room = self.committer.saves_pending < most
        spare, waits = self.committer.lineage.spare, due.checkpoint and room
        return self.snapshots.acquire(spare, room=room, checkpoint=waits, patient=patient)

    def _skip(self, step: int, why: str) -> None:
        self._pace(step)
        self._board.count("skipped")
        skipped = self._board.read(0).skipped
        self._board.emit(events.SaveSkipped(self._clock.now(), step, why, skipped))

    def _breached(self, step: int) -> bool:
        """Whether the declared recovery point is at stake and the policy is to stop for it."""
        settings = self._settings
        status = self._board.read(0)
        behind = step - (status.newest_step or 0)
        at = self._board.newest_at
        age = None if at is None else self._clock.monotonic() - at
        breached = (settings.rpo_steps is not None and behind > settings.rpo_steps) or (
            settings.rpo_seconds is not None and age is not None and age > settings.rpo_seconds
        )
        breached = breached or bool(self._board.recovery.breaches())
        declared = settings.rpo_steps or settings.rpo_seconds or self._board.recovery.goals
        if len(self._world.roles) > 1 and declared:  # what follows from it, all writers do together
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

    def lower_promise(self, to: Promise, reason: str) -> None:
        was, self._promise = self._promise, to
        self.committer.lower_promise(was, to, reason)

    # --- ending ------------------------------------------------------------------------------

    def succeed(self, target: Any) -> None:
        """Record it. ``TierUnavailable`` while the final checkpoint is only on the disk in front, anybody's:
        nobody begins to wait for the record before all have their copies."""
        if self.copier is not None and not self._world.all(self.copier.finish()):
            raise TierUnavailable(
                "the final checkpoint is not in the root yet, so the run has not succeeded",
                hint="run the script again: it goes on with the copy",
            )
        self.committer.succeed(target)

    def flush(self, timeout: float | None) -> bool:
        self.snapshots.settle()
        kept = self.snapshots.drain(timeout)
        done = self.committer.flush(timeout)
        copied = self.copier is None or self.copier.finish(timeout)
        return done and kept and copied

    def close(self, timeout: float | None) -> None:
        self.snapshots.close(timeout)
        self.committer.close(timeout)
        if self.copier is not None:
            self.copier.close(timeout)


def _rpo(settings: Settings) -> tuple[dict[str, float], dict[str, int]]:
    seconds, steps = settings.rpo_seconds, settings.rpo_steps
    return {} if seconds is None else {"process": seconds}, {} if steps is None else {"process": steps}


def split_position(cursor: Mapping[str, Any] | None, role: Any) -> tuple[dict[str, Any] | None, Any]:
    """The cursor as plain JSON, and the role's tree with a stream's own state, which may hold anything.

    The state of a sequence (it has a "plan") is JSON and one for all: it stays with the cursor, where whoever
    reads the manifest finds what a mixture has drawn.
    """
    if cursor is None:
        return None, {"own": role, "position": {}}
    own = () if "plan" in cursor else ("source",)
    streams = {name: value for name, value in cursor.items() if name in own}
    return {k: v for k, v in cursor.items() if k not in streams}, {"own": role, "position": streams}
