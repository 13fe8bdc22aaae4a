"""L5. ``DurableSession``: a plain PyTorch loop made durable, with the core alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import torch
from torch.optim import Optimizer

from durable_core.commit.retention import Retention
from durable_core.detect.policy import Integrity
from durable_core.engine.beats import Phase
from durable_core.engine.uncaught import EXIT_DRAINED
from durable_core.errors import CommitAborted, DurableError, NumericFault, TierError, UsageError
from durable_core.session import notices
from durable_core.session.begun import Begun, left_within
from durable_core.session.cadence import Cadence
from durable_core.session.for_adapters import ForAdapters
from durable_core.session.pairing import check_promise, check_share, loader_of
from durable_core.session.places import Tiers
from durable_core.session.poll import Poll, Wish
from durable_core.session.putting_back import PuttingBack, streams
from durable_core.session.recomputing import Recomputer
from durable_core.session.restoring import Visited
from durable_core.session.run import Run
from durable_core.session.saving import Due
from durable_core.session.settings import Backlog, OnBreach, Resume, Settings
from durable_core.session.status import Status
from durable_core.session.termination import Termination
from durable_core.session.world import World
from durable_core.spec import RunSpec
from durable_core.state import capture, contract, rng, stable
from durable_core.types import Promise

T = TypeVar("T")

#: Seconds that a save under way may take, when an error ends one member of a group.
PEERS_S = 5.0


class Drained(SystemExit):
    """SIGTERM was honoured: everything up to the last boundary is durable, nothing is lost."""

    def __init__(self) -> None:
        super().__init__(EXIT_DRAINED)


class DurableSession(ForAdapters):
    """One training run in a ``with`` block. ``state`` maps names to objects with ``state_dict`` and
    ``load_state_dict`` (modules, optimizers, schedulers, scalers, your own); a ``DurableLoader`` among
    them is the data position. Open it when all of them exist, after which the random streams of
    python, numpy and torch are the run's as well.
    """

    def __init__(self, run: Run, state: Mapping[str, Any], *, hold: bool = False) -> None:
        self.run = run
        self._loader = loader_of(state)
        self._objects = {name: item for name, item in state.items() if item is not self._loader}
        unwrapped = map(contract.adapt, self._objects.values())
        self._optimizers = [item for item in unwrapped if isinstance(item, Optimizer)]
        self._modules = [item for item in self._objects.values() if isinstance(item, torch.nn.Module)]
        self._back = PuttingBack(self._objects, self._loader, hold=hold)
        self._begun = Begun(self._objects)
        self._twice = Recomputer(self._objects)
        self._step = 0
        self._updates = 0  # of those steps, the ones whose optimizer did step
        self._unprepared = True
        self._updated = False  # an optimizer has stepped since the last boundary
        self._visited: Visited | None = None
        self._term = Termination()
        self._poll = Poll(run.world.greatest if len(run.world.roles) > 1 else None)
        self._hooks = [
            hook
            for optimizer in self._optimizers
            for hook in (
                optimizer.register_step_pre_hook(self._before_update),
                optimizer.register_step_post_hook(self._on_update),
            )
        ]
        run.board.listeners.append(notices.warn)

    @classmethod
    def open(
        cls,
        root: str | Path,
        *,
        state: Mapping[str, Any],
        resume: Resume = "auto",
        every_n_steps: int | str = "auto",
        every_seconds: float | None = None,
        promise: Promise | str | None = None,
        accept_distribution: str = "",
        retention: Retention | None = None,
        backlog: Backlog = "skip",
        on_rpo_breach: OnBreach = "continue",
        rpo_steps: int | None = None,
        tiers: Tiers | None = None,
        supply_window: int = Settings.supply_window,
        integrity: Integrity | None = None,
        from_first: tuple[str, ...] = (),
        takeover: bool = False,
        hold: bool = False,
        spec: RunSpec | None = None,
        world: World | None = None,
    ) -> DurableSession:
        """Start the run at ``root``, or restore its newest verified checkpoint into ``state``.

        ``every_n_steps`` counts calls of ``step()``; ``tiers``: where copies are kept beside ``root``.
        ``supply_window``: a warning says of how many steps each the data did not keep up with (0: never).
        ``integrity``: what the numbers given to ``step()`` are checked for (not finite, spikes; more is
        opt-in), and whether a finding ends the process; ``Integrity()`` warns and goes on.
        ``promise="distribution"`` needs ``accept_distribution``: why the conclusion drawn from the run allows
        samples to be repeated or skipped. Under "exact-order" a restart may have another number of processes;
        ``from_first``: what of the state may then be the first one's though it differed between them
        (``("model/bn.running_*",)``). On a process that the checkpoint does not know the global random
        streams begin anew, and a generator in ``state`` goes on as the first one's. ``hold``: what was
        restored is kept in host memory for ``reapply``, until ``release``. Raises what ``Run.open``
        and ``Run.load`` raise, ``PromiseError`` when the loader cannot keep what is promised, and
        ``UsageError`` naming an object of ``state`` that cannot be saved. Trouble with the storage and
        whatever else a person should know is told as warnings.
        """
        if promise is None and spec is not None and spec.promise is not Promise.BITWISE:
            promise, accept_distribution = spec.promise, spec.reason
        settings = Settings(
            resume=resume,
            takeover=takeover,
            promise=Promise.BITWISE if promise is None else Promise(promise),
            insist=promise is not None,
            accept_distribution=accept_distribution,
            cadence=Cadence(every_n_steps, every_seconds),
            retention=retention or Retention(),
            backlog=backlog,
            on_rpo_breach=on_rpo_breach,
            rpo_steps=rpo_steps,
            tiers=tiers or Tiers(),
            supply_window=supply_window,
            integrity=integrity or Integrity(),
            from_first=tuple(from_first),
        )
        world = world or World.torch_distributed()
        loader = loader_of(state)
        check_share(loader, world)
        check_promise(loader, settings)
        if spec is None:  # the seed of the data order is the run's; without a loader it is nobody's
            seed = 0 if loader is None else loader.seed
            spec = RunSpec(
                roles=world.roles, promise=settings.promise, seed=seed,
                accept_distribution=bool(accept_distribution), reason=accept_distribution,
            )  # fmt: skip
        run = Run.open(root, world=world, settings=settings, spec=spec)
        try:
            session = cls(run, state, hold=hold)
            session._begin(spec.seed)
        except BaseException:
            run.close()
            raise
        return session

    def _begin(self, asked_seed: int) -> None:
        for warning in self.run.warnings:
            notices.say(warning)
        if self.run.fresh:
            if self._loader is not None and self.run.seed != asked_seed:
                self._loader.bind(seed=self.run.seed)  # of a start that died before its first commit
            self.run.confirm()
            self.save(wait=True)
        else:
            loaded = self.run.load()
            self._back.state(loaded)
            self._step = loaded.step
            self._updates = loaded.counters.get("optimizer_step", loaded.step)
            self.run.confirm()
            if not self.run.completed:
                self._prepare()
            streams(loaded)
        self._back.watch_pair()
        if self._loader is not None:
            self._loader.before_next.append(self._before_batch)
        self.run.reporter.watch(self._modules)
        self._term.listen()

    def _before_batch(self) -> None:
        """Of a step's batches, before the first: what training on them changes is what differs from now."""
        self.run.reporter.beat()
        if self._outstanding == 0:
            self._begun.mark()

    @property
    def _outstanding(self) -> int:
        return 0 if self._loader is None else self._loader.outstanding

    def _before_update(self, *_: Any) -> None:
        self.run.settle()

    def _on_update(self, *_: Any) -> None:
        self._updated = True

    # --- in the loop -------------------------------------------------------------------------

    @property
    def restored(self) -> tuple[int, int] | None:
        """(checkpoint, step) that was restored, or ``None`` for a fresh start."""
        return self.run.restored_from

    @property
    def steps(self) -> int:
        """Steps done over the whole life of the run."""
        return self._step

    def step(
        self, *, loss: float | None = None, lr: float | None = None, grad_norm: float | None = None,
        unread: Mapping[str, torch.Tensor] | None = None,
    ) -> bool:  # fmt: skip
        """The boundary: call it when an optimizer step is complete and before the next batch is taken.

        Batches handed over since the last call count as consumed by this step; as consumed without an update
        when no optimizer has stepped (a gradient scaler skips it after an overflow). Saves when the cadence
        says so; ``True`` when it did. After SIGTERM to any rank all save at the same step, wait, and raise
        ``Drained`` (exit 75).
        ``unread``: a ``loss`` and ``grad_norm`` on a device, which is not waited for: they are judged some
        steps later, and before anything is saved.
        ``Fenced`` when another process has taken the run over; ``NumericFault`` when the numbers are wrong
        and ``integrity`` says to stop.
        """
        self._go_on()
        self._step += 1
        skipped = bool(self._optimizers) and not self._updated  # by a scaler that met an overflow
        self._updates += not skipped
        self._updated = False
        if self._loader is not None and self._loader.outstanding:
            self._loader.acknowledge(self._loader.outstanding, step=self._step, no_update=skipped)
        self.run.note_metrics(
            self._step, loss=loss, lr=lr, grad_norm=grad_norm, updated=not skipped, unread=unread
        )
        self.run.boundary(self._step)
        self.run.integrity.examine(self._step, self._twice.parameters)
        self.run.watch(self._step, self._loader)
        wish = Wish.DRAIN if self._term.asked else Wish.NOTHING
        if self._poll.at(wish, self.run.clock.monotonic()) is Wish.DRAIN:
            self._drain()
        due = self.run.due(self._step)
        saved = due is not None and self._save(due=due)
        if due is None and self._unprepared:  # the optimizer has its moments now: the state has its full size
            self._prepare()
        self.run.reporter.goes_on()
        return saved

    def evaluating(self) -> AbstractContextManager[Callable[[], None]]:
        """``with session.evaluating() as alive:`` around an evaluation, so that a launcher does not take it
        for a step that hangs. Call ``alive()`` now and then in a long one."""
        return self.run.reporter.within(Phase.EVAL)

    def recompute(self, gradients: Callable[[], T]) -> T:
        """Call ``gradients`` (forward and backward of a step's batches, taken before), and return what it
        returns.

        With ``Integrity(recompute_every=n)`` it is called twice in one step of n, from the same random
        streams, buffers and gradients, and the gradients are compared; what it returned the second time is
        returned. It may do nothing else that lasts. Use it at every step, on every rank.
        """
        return self._twice.compute(gradients, self._step + 1, self.run.integrity)

    def _drain(self) -> NoReturn:
        self.run.draining(self._step, "SIGTERM")
        failure: DurableError | None = None
        try:
            self.save(wait=True)
        except (CommitAborted, TierError) as error:
            failure = error  # told as a warning; the next start does those steps again
        self._term.stay_deaf()
        self.close()
        raise Drained() from failure

    def _prepare(self) -> None:
        state, role = self._trees()
        self.run.prepare(state, role)
        self._unprepared = False

    def save(self, *, wait: bool = False) -> bool:
        """Stage the state now, at a boundary. ``wait``: until it is committed. ``False``: skipped, or it is
        that of a visited checkpoint.

        ``UsageError`` between an optimizer's step and ``step()``: the model has consumed batches then that
        a restart would give it again.
        """
        if self._updated:
            raise UsageError(
                f"an optimizer has stepped since the boundary of step {self._step}",
                hint="call step() when the step is complete, then save()",
            )
        if self._visited is not None:
            return False
        return self._save(wait=wait)

    def _save(self, *, wait: bool = False, due: Due | None = None) -> bool:
        state, role = self._trees()
        cursor = None if self._loader is None else self._loader.state_dict()
        rows = () if self._loader is None else self._loader.drain_rows()
        counters = {"step": self._step, "data_step": self._step, "optimizer_step": self._updates}
        unchanging = stable.storages(self._optimizers, self._modules)
        return self.run.save(
            state, role, step=self._step, cursor=cursor, rows=rows, wait=wait, counters=counters, due=due,
            unchanging=unchanging,
        )  # fmt: skip

    def settle(self) -> None:
        """Call it before changing parameters or optimizer state otherwise than by an optimizer in ``state``
        (averages swapped in by hand, weights edited): saving copies them while training computes."""
        self.run.settle()

    def _trees(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is equal on every replica, and what is this role's own."""
        return capture.capture(self._objects), {"rng": rng.capture()}

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what was staged is durable; ``False`` when the time ran out."""
        return self.run.flush(timeout)

    def status(self) -> Status:
        return self.run.status()

    # --- ending ------------------------------------------------------------------------------

    def finish(self) -> None:
        """Save the final state and record that the run has succeeded: at its head, after a ``visit``."""
        if self.run.completed:
            return
        if self._visited is None and not self.run.world.all(self._saved()):
            self.save(wait=True)
        newest = self.run.newest
        self.run.succeed({"steps": self._step if newest is None else newest[1]})

    def _saved(self) -> bool:
        """Whether the last step is durable, once what is under way has ended."""
        if self.run.status().newest_step != self._step:
            self.run.flush()
        return self.run.status().newest_step == self._step

    def close(self, timeout: float | None = 600.0) -> None:
        """Flush and stop, the loader's workers too, within ``timeout`` seconds; harmless when repeated.

        Saves nothing: leaving the ``with`` block does.
        """
        self._term.restore()
        while self._hooks:
            self._hooks.pop().remove()
        if self._loader is not None and self._before_batch in self._loader.before_next:
            self._loader.before_next.remove(self._before_batch)
        if self._loader is not None:
            self._loader.close()
        self.run.close(timeout)

    def __enter__(self) -> DurableSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and not self.run.completed:
                self._leave()
        finally:
            if error is None and self._term.asked:
                self._term.stay_deaf()
            # in a group the others may be dead, and what waits for them must not hold up this exit; but what
            # was found wrong is recorded behind the save under way
            alone = len(self.run.world.roles) == 1 or isinstance(error, NumericFault)
            self.close(600.0 if error is None or alone else PEERS_S)
        if error is None and self._term.asked:  # it came after the last boundary
            raise Drained()

    def _leave(self) -> None:
        """The last step is made durable, unless the block was left in the middle of the next one."""
        if self._visited is not None and not self._updated:
            return  # the run is where it was, and that is durable
        taken, found = self._outstanding, ""
        if self._updated:
            found = "an optimizer has stepped"
        elif taken:
            found = self._begun.found()
        if not self.run.world.all(self._saved()):  # all save, or none does
            found = next(filter(None, self.run.world.all_gather(found)), "")
            if not found:
                self.save(wait=True)
        stepped = self._step != (0 if self.restored is None else self.restored[1])
        durable = self.run.status().newest_step
        told = left_within(self._step, durable, stepped=stepped, taken=taken, found=found)
        if told is not None:
            notices.say(told)
