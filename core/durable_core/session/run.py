"""L5. One process's part in one run: all that an adapter may call.

``Run.open`` claims a generation, ``load`` restores and verifies, ``confirm`` makes all writers agree,
``save`` stages at a boundary, ``flush`` waits for durability, ``succeed`` and ``close`` end it. Every
method is called on the training thread, by all writers of the run alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from durable_core import events
from durable_core.clock import Clock, SystemClock
from durable_core.data.loader import DurableLoader
from durable_core.engine import heartbeat, restore, uncaught
from durable_core.engine.beats import Phase
from durable_core.engine.copies import Fault
from durable_core.engine.launched import Launched
from durable_core.engine.parent import follow
from durable_core.engine.performer import Performer
from durable_core.engine.roots import named
from durable_core.engine.worker import Job
from durable_core.errors import RestoreError, UsageError
from durable_core.session import assembling
from durable_core.session.cadence import Meter
from durable_core.session.committing import Committer
from durable_core.session.curve import Curve
from durable_core.session.declaring import declared, require_data
from durable_core.session.integrity import Watch
from durable_core.session.opening import Coordinator, Opening
from durable_core.session.records import Records
from durable_core.session.recovery import Recovery
from durable_core.session.repairing import damaged, repairing
from durable_core.session.reporting import Reporter
from durable_core.session.restoring import Loaded, Restorer, Visited
from durable_core.session.saving import Due, Saver
from durable_core.session.settings import Settings
from durable_core.session.status import Board
from durable_core.session.stores import open_stores, require_feasible
from durable_core.session.tiers import open_tier
from durable_core.session.watching import MixtureWatch, SupplyWatch
from durable_core.session.world import World
from durable_core.spec import RunSpec
from durable_core.tier.base import Tier
from durable_core.types import Promise, Token


class Run(Records):
    """Use ``Run.open``. Attributes for reading: ``run_id``, ``generation``, ``seed`` (the run's, whatever
    the script says now), ``promise``, ``fresh``, ``completed``, ``restored_from``, ``warnings``;
    ``integrity`` watches its numbers."""

    def __init__(
        self, tier: Tier, clock: Clock, world: World, settings: Settings, opening: Opening,
        coordinator: Coordinator | None, reporter: Reporter,
    ) -> None:  # fmt: skip
        self.tier, self.clock, self.world, self.settings = tier, clock, world, settings
        self.reporter = reporter
        self._opening = opening
        self._coordinator = coordinator
        self._stores = open_stores(
            tier, settings.tiers, known_as=opening.root, run_id=opening.run_id,
            generation=opening.generation, role=world.role, slots=settings.slots,
        )  # fmt: skip
        self.board = Board(
            Recovery(self._stores.traits(), settings.tiers.goals, home=self._stores.home.name, clock=clock)
        )
        reporter.durable = self.board.durable_step
        self._performer = Performer(tier, clock, landing=self._stores.landing.tier)
        self._meter = Meter()
        self._heartbeat: heartbeat.Heartbeat | None = None
        self._saver: Saver | None = None
        self._loaded: tuple[int, str] | None = None  # c and digest: its state belongs to the objects
        self._faults: tuple[Fault, ...] = ()
        self._lowered: tuple[Promise, str] | None = None
        self._supply = SupplyWatch(settings.supply_window, self.board, clock)
        self._mixture = MixtureWatch(self.board, clock)
        self.integrity = Watch(settings.integrity, world, self.board, clock, self._found)
        self._curve = Curve(settings.metrics_window, coordinator.previous if coordinator else None)

    # --- opening -----------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        root: str | Path,
        *,
        world: World | None = None,
        settings: Settings | None = None,
        spec: RunSpec | None = None,
        external: str | None = None,
        clock: Clock | None = None,
    ) -> Run:
        """Create the run at ``root`` or resume it, under a new generation.

        ``external`` names a foreign checkpoint that the script wants to start from (refused beside a
        history, unless ``resume="fork"``). Under a launcher that has claimed the generation for this process
        it is that one, and this process tells it how far it is. Raises ``RunBusy`` (a live owner), ``Fenced``
        (a process of an older attempt), ``Superseded``, ``RunEnded``, ``RunNotFoundError`` (``must``),
        ``UsageError`` (``never``), ``SpecMismatchError``, ``NoUsableCheckpoint``, and the tier's errors.
        """
        world, settings, clock = world or World.solo(), settings or Settings(), clock or SystemClock()
        launched = Launched.of()
        uncaught.install(launched)
        if launched.attempt:  # under plain torchrun it would train on when its agent is killed
            follow()
        reporter = Reporter.here(launched, clock, named(root))
        tier = open_tier(root)
        spec = spec or RunSpec(roles=world.roles, promise=settings.promise)
        if launched.spec is not None:
            settings, spec = declared(settings, spec, launched.spec)
        spec.freeze()
        performer = Performer(tier, clock)
        coordinator = (
            Coordinator(performer, clock, settings, spec, world.roles) if world.coordinator else None
        )

        def decide() -> Any:
            assert coordinator is not None
            return coordinator.open(external=external).to_json()

        require_feasible(tier, settings.tiers, settings.cadence)
        opening = Opening.from_json(world.decide(decide))
        run = cls(tier, clock, world, settings, opening, coordinator, reporter)
        run._announce()
        return run

    def _announce(self) -> None:
        """The generation is claimed: the launcher hears of it, and whoever looks for a live owner."""
        opening = self._opening
        self._tell_launcher(opening)
        if self._coordinator is not None and not self.completed:
            self._heartbeat = heartbeat.Heartbeat(
                self.tier, self.clock, opening.launch_id, opening.generation, self._curve.rows
            )
            self._heartbeat.start()

    def _tell_launcher(self, opening: Opening) -> None:
        """After each claim, and before anything is restored."""
        told = opening.run_id, Token(opening.generation, opening.launch_id), self.world.roles
        self.reporter.opened(*told, tells=self.world.coordinator, writes=not opening.completed)

    @property
    def fresh(self) -> bool:
        """Nothing is committed yet: the initial state has to be saved before the first step."""
        return self._opening.restore is None

    @property
    def completed(self) -> bool:
        """The run has succeeded before; it is opened for reading."""
        return self._opening.completed

    @property
    def restored_from(self) -> tuple[int, int] | None:
        """(c, step) of the restore point."""
        point = self._opening.restore
        return None if point is None else (point.c, point.step)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._opening.warnings

    # --- restoring ---------------------------------------------------------------------------

    def load(self) -> Loaded:
        """The restore point, every byte verified, the same on all writers.

        First, what the generation before had sealed in memory and not committed is adopted. A damaged
        restore point is journaled as corrupt and a new generation starts from the next candidate, until
        one is whole. Every slice comes from the fastest copy that is whole. Raises ``NoUsableCheckpoint``
        when none is, ``UnknownVersionError`` for one that a newer version wrote, and ``UsageError`` for a
        fresh run. When it was saved by another number of replicas (see ``engine.parts``): ``PromiseError``
        where bits were insisted on, ``SpecMismatchError`` naming what differed between them, and
        ``UnsupportedError`` for a stream, whose position belongs to one replica.
        """
        if self._opening.restore is None:
            raise UsageError("nothing to load: this run has no checkpoint yet")
        started = self.clock.monotonic()
        with self.reporter.within(Phase.RESTORE):
            self._opening, found = self._restorer().load(self._opening, self._tell_launcher)
            self._keep(*self._restorer().judge(found.manifest, self.promise))
            loaded = self._restorer().loaded(found, self.seed)
            self._stand_at(found, loaded.metrics, self.clock.monotonic() - started)
            return loaded

    def visit(self, c: int) -> tuple[Visited, Loaded]:
        """Checkpoint ``c``, whichever line of the run it is on. Nothing of the run changes; ``rolled_back``
        goes on from there. Raises as ``Restorer.visit``."""
        with self.reporter.within(Phase.RESTORE):
            return self._restorer().visit(c, self.promise, self.seed)

    def rolled_back(self, visited: Visited) -> Run:
        """The run as it goes on from what was visited: under the next generation, which is claimed once all
        that this one does in the background has ended. This object is closed by it.

        Raises the errors of a claim, ``CheckpointNotFoundError`` when that checkpoint is there no more, and
        ``UsageError`` for a run that has succeeded.
        """
        self._active()
        started = self.clock.monotonic()

        def claim() -> Any:
            assert self._coordinator is not None
            return self._coordinator.roll_back(visited.point).to_json()

        with self.reporter.within(Phase.RESTORE):
            self._stop(600.0)  # what is not done by then is fenced off by the claim
            opening = Opening.from_json(self.world.decide(claim))
            run = Run(
                self.tier, self.clock, self.world, self.settings, opening, self._coordinator, self.reporter
            )
            run.board.listeners += self.board.listeners
            run._announce()
            run._keep(*visited.promise)
            run._stand_at(visited.found, visited.metrics, self.clock.monotonic() - started)
            run.confirm()
        return run

    def _restorer(self) -> Restorer:
        return Restorer(
            self._performer, self.clock, self.world, self.settings, self._stores, self._coordinator,
            self.board,
        )  # fmt: skip

    def _keep(self, promise: Promise, reason: str) -> None:
        """What of the promise can be kept from here on."""
        if promise is not self.promise:
            self._lowered = (promise, reason)
            self._opening = replace(self._opening, promise=promise)

    def _stand_at(
        self, found: restore.Restored, metrics: Sequence[Mapping[str, Any]], seconds: float
    ) -> None:
        manifest = found.manifest
        self._loaded = (manifest.c, found.digest)
        self._curve.restore(metrics)
        self.integrity.begin(manifest.step, metrics)
        now = self.clock.now()
        point = self._opening.restore
        self.board.restored(manifest.c, manifest.step, now, point.tiers if point is not None else ())
        self.board.emit(
            events.RestoreDone(
                now, manifest.c, manifest.step, self.generation, found.bytes_read, seconds, found.bytes_from
            )
        )
        self._faults = damaged(found.faults, self._stores.home.name)
        for fault in self._faults:
            self.board.emit(events.CopyDamaged(now, fault.place, fault.object, fault.reason))

    def confirm(self) -> None:
        """After everything was loaded (or nothing had to be): all writers hold the same checkpoint.

        Starts the background writer. Raises ``RestoreError`` on disagreement (RECOV-11).
        """
        mine = None if self._loaded is None else list(self._loaded)
        if self._opening.restore is not None and self._loaded is None:
            raise RestoreError("confirm() before load(): training would start over on a run with history")
        held = self.world.all_gather(mine)
        if any(other != mine for other in held):
            raise RestoreError(f"the writers hold different checkpoints: {held}")
        if self.completed or self._saver is not None:
            return
        if self._loaded is None:
            self.integrity.begin(0)
        view = self._restorer().view(self.generation)
        committer = Committer(
            self._performer, self.clock, self.world, self.settings, self.token, view, self.board,
            self._meter, self._stores.home.name, self.integrity,
        )  # fmt: skip
        self._saver = assembling.saver(
            committer, self._performer, self._stores, self.clock, self.world, self.settings, self.token,
            self.board, self._curve, self._meter,
        )  # fmt: skip
        if self._faults:
            work = repairing(self._faults, self._performer, self._stores, self.clock, self.board)
            committer.writer.submit(Job("repair", work, lambda error: None))
        if self._lowered is not None:
            self._saver.lower_promise(*self._lowered)
        self.reporter.trains(self.board.current_step)

    # --- training ----------------------------------------------------------------------------

    def due(self, step: int) -> Due | None:
        """What the cadence wants saved at this boundary. The same on all writers; costs no I/O."""
        return self._active().due(step)

    def boundary(self, step: int) -> None:
        """At every boundary: raises ``Fenced`` when this writer was fenced, and any fault of our own."""
        self.reporter.boundary(step)
        self._active().boundary(step)

    def watch(self, step: int, loader: DurableLoader | None) -> None:
        """At every boundary, after its batches were acknowledged: told is whether the data keeps up."""
        self._supply.boundary(step, loader)

    def settle(self) -> None:
        """The guard: call it before anything changes what ``save`` was told is ``unchanging``. Cheap when
        nothing is being copied."""
        if self._saver is not None:
            self._saver.settle()

    def prepare(self, state: Any, role: Any) -> None:
        """Reserve and page-fault staging memory for a state like this one, in the background.

        Worth a call once the state has its full size, so that the first save stalls no longer than the
        others; an optimizer, for instance, has no moments before its first step.
        """
        self._active().prepare(state, role)

    def save(
        self,
        state: Any,
        role: Any,
        *,
        step: int,
        cursor: Mapping[str, Any] | None = None,
        counters: Mapping[str, Any] | None = None,
        rows: Iterable[Any] = (),
        wait: bool = False,
        due: Due | None = None,
        unchanging: frozenset[int] = frozenset(),
    ) -> bool:
        """Stage ``state`` (equal on every replica) and ``role`` (this writer's own) at a boundary.

        ``unchanging``: storages (``state.stable.storages``) that nothing changes before ``settle`` is called;
        they are copied in the background. The rest is copied before this returns; writing goes on in the
        background. ``due``: as ``due()`` said; ``None`` is a checkpoint. ``rows`` are the ledger rows
        acknowledged since the last call. ``False``: the backlog policy skipped it. With ``wait`` it
        returns when the checkpoint is committed, or raises what prevented it.
        """
        self.integrity.before_saving()
        require_data(self.settings.data, self.settings.accumulation, cursor)
        if cursor is not None and self.world.coordinator:  # it is the same on all of them
            self._mixture.saving(step, cursor)
        with self.reporter.within(Phase.SAVE, step):
            return self._active().save(
                state, role, step=step, due=due or Due(), unchanging=unchanging, cursor=cursor,
                counters=counters or {}, rows=tuple(rows), wait=wait,
            )  # fmt: skip

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what was staged is durable (or has failed). ``False`` when the time ran out."""
        with self.reporter.within(Phase.SAVE):
            return True if self._saver is None else self._saver.flush(timeout)

    # --- ending ------------------------------------------------------------------------------

    def succeed(self, target: Any = None) -> None:
        """The run is done and its final state committed: append ``run.succeeded`` and wait for it."""
        with self.reporter.within(Phase.SAVE):
            self._active().succeed(target)

    def close(self, timeout: float | None = 600.0) -> None:
        """Flush, stop the background threads and withdraw the heartbeat. Harmless when repeated.

        Raises ``Fenced`` or a fault of our own that nobody was told of yet.
        """
        self.reporter.close()
        self._stop(timeout)

    def _stop(self, timeout: float | None) -> None:
        saver, self._saver = self._saver, None
        beating, self._heartbeat = self._heartbeat, None
        try:
            if saver is not None:
                saver.close(timeout)
        finally:
            self._stores.close(needed=self.board.only_in_memory)
            if beating is not None:
                beating.stop()

    def _active(self) -> Saver:
        if self._saver is not None:
            return self._saver
        if self.completed:
            raise UsageError(
                f"run {self.run_id} has succeeded, and is open for reading only",
                hint="to go on with it, start it with a spec of a larger target",
            )
        raise UsageError("this run is not open for writing", hint="confirm() comes before saving")
