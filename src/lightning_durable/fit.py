"""One fit of one run: what happens at each moment that ``hooks`` reports.

The boundary is the instant before the loop takes a batch: the optimizer step, all hooks and any validation
that was due are done, nothing of the next batch is. Snapshots are taken there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from durable_core.engine.uncaught import FencedExit
from durable_core.errors import CommitAborted, DurableError, FencedError, TierError, UsageError
from durable_core.session.reporting import Reporter
from durable_core.session.restoring import Loaded
from durable_core.session.run import Run
from durable_core.session.saving import Due
from durable_core.session.status import Status
from durable_core.session.world import World
from durable_core.state import buckets
from durable_core.types import Promise
from lightning_durable import guard, hooks, state
from lightning_durable.data import Data
from lightning_durable.evaluating import Evaluations
from lightning_durable.leaving import Leaving
from lightning_durable.notices import Notices
from lightning_durable.options import Options
from lightning_durable.settling import FirstInLine
from lightning_durable.spec import derive

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

# Where a snapshot lies: before a batch; after an epoch's last batch, its end hooks to come; after those.
BEFORE_BATCH, EPOCH_TAIL, AFTER_EPOCH = "before-batch", "epoch-tail", "after-epoch"


# What scripts call it; the second is Lightning's ``grad_norm`` utility.
GRADIENT_NORMS = ("grad_norm", "grad_2.0_norm_total")


class Fit:
    def __init__(self, trainer: Trainer, module: LightningModule, options: Options) -> None:
        self._trainer, self._module, self._options = trainer, module, options
        self._capture = state.Capture(trainer, module)
        self._world = World.torch_distributed()
        self._leaving = Leaving(trainer, len(self._world.roles))
        self._guard = FirstInLine(trainer, lambda: self.run.settle())
        self._run: Run | None = None
        self._loaded: Loaded | None = None
        self._data: Data | None = None
        self._evaluations = Evaluations(self._world)
        self._notices: Notices | None = None
        self._restored = False
        self._unprepared = True
        self._held_max_steps: int | None = None
        self._step = 0  # optimizer-step transactions of the run
        self._seen = 0  # trainer.global_step at the last account
        self._taken = 0  # batches the loop had taken at the last acknowledgement
        self._stepped = False  # a step was accounted for since the last boundary
        self._saved: int | None = None  # step of the newest snapshot that was accepted
        self._loss: Any = None
        self._close_s = 600.0
        self._patches = hooks.Patches(
            trainer,
            hooks.Moments(
                resume=self._resume,
                prepare_loader=self._prepare_loader,
                prepare_evaluation=self._evaluations.prepare,
                before_run=self._before_run,
                run_started=self._run_started,
                epoch_entered=self._epoch_entered,
                boundary=self._boundary,
                epoch_batches_done=self._epoch_batches_done,
                before_run_end=self._before_run_end,
            ),
        )

    @property
    def run(self) -> Run:
        assert self._run is not None
        return self._run

    @property
    def reporter(self) -> Reporter | None:
        """``None`` before the run is open."""
        return None if self._run is None else self._run.reporter

    @property
    def data(self) -> Data:
        assert self._data is not None
        return self._data

    @property
    def restored_from(self) -> tuple[int, int] | None:
        return None if self._loaded is None else (self._loaded.c, self._loaded.step)

    def status(self) -> Status | None:
        return None if self._run is None else self._run.status()

    # --- opening and restoring ---------------------------------------------------------------

    def _resume(self, ckpt_path: Any) -> dict[str, Any] | None:
        """The checkpoint dict to restore; None to start anew, or from ``ckpt_path``."""
        if ckpt_path is not None and self._is_automatic(ckpt_path):
            rank_zero_warn(f"DurableCheckpoint: {ckpt_path} of OnExceptionCheckpoint is not used")
            ckpt_path = None
        if self._run is None:
            self._open(None if ckpt_path is None else str(ckpt_path))
        elif ckpt_path is not None:
            raise UsageError(
                f"{ckpt_path} was given to start from after the training loader had been asked for",
                hint="read trainer.estimated_stepping_batches in configure_optimizers, not in setup",
            )
        if self._loaded is None:
            return None
        checkpoint: dict[str, Any] = self._loaded.state["checkpoint"]
        return checkpoint

    def _is_automatic(self, ckpt_path: Any) -> bool:
        """Lightning chose the file by itself, and it may lie within an accumulation window."""
        mine = (item for item in hooks.callbacks(self._trainer) if isinstance(item, OnExceptionCheckpoint))
        return any(str(callback.ckpt_path) == str(ckpt_path) for callback in mine)

    def _open(self, external: str | None) -> None:
        """Claim the run; when it has a history, read and verify what this generation restores."""
        options, world = self._options, self._world
        spec = options.spec or derive(self._trainer, self._module, options, world)
        with guard.slurm_explained(external):
            run = Run.open(options.root, world=world, settings=options.settings, spec=spec, external=external)
        self._run = run
        self._notices = Notices(run, self._trainer)
        for warning in run.warnings:
            if warning.startswith("seed: ") and not guard.seed_is_chosen():
                continue  # chance is another in every process; the run's own is what counts
            rank_zero_warn(f"DurableCheckpoint: {warning}")
        self._loaded = loaded = None if run.fresh else run.load()
        self._data = Data(
            replica=world.roles.index(world.role), replicas=len(world.roles), seed=run.seed,
            promise=run.promise, accumulate=hooks.accumulation(self._trainer),
        )  # fmt: skip
        if loaded is None:
            return
        self._data.start_from(loaded.cursor)
        self._step = self._saved = loaded.step
        rank_zero_info(
            f"DurableCheckpoint: {options.root} goes on at step {loaded.step} (checkpoint {loaded.c})"
        )

    def _prepare_loader(self, dataloader: object) -> object:
        if self._run is None:  # a module's setup hook reads estimated_stepping_batches
            self._open(None)
        self._evaluations.check(dataloader)
        prepared = self.data.prepare(dataloader, reloading=self._restored)
        if self.data.loader.endless and hooks.ends_by_epochs_alone(self._trainer):
            rank_zero_warn(
                "DurableCheckpoint: max_epochs never comes, for this data has no end: give the Trainer "
                "max_steps, or the mixture epoch_size"
            )
        return prepared

    def _before_run(self) -> None:
        """A run that ended at ``max_steps`` has its end hooks to pass; the loop must not skip itself."""
        loop = self._trainer.fit_loop.epoch_loop
        if self._is_to_restore(EPOCH_TAIL) and loop.max_steps != -1:
            self._held_max_steps, loop.max_steps = loop.max_steps, -1

    def _run_started(self) -> None:
        if self._loaded is not None and not self._restored:
            was, now = self._loaded.cursor["global_batch"], self.data.loader.global_batch
            if was != now:  # the optimizer steps have kept their samples
                hooks.recount_batches(self._trainer, was, now)
        if self._is_to_restore(AFTER_EPOCH):
            self._restore()

    def _epoch_entered(self) -> None:
        if self._held_max_steps is not None:
            self._trainer.fit_loop.epoch_loop.max_steps, self._held_max_steps = self._held_max_steps, None
        if not self._restored:
            self._restore()

    def _is_to_restore(self, place: str) -> bool:
        return not self._restored and self._loaded is not None and self._loaded.state["fit"]["place"] == place

    def _restore(self) -> None:
        """Lightning has put back its part and run every start hook. Now the rest; random streams last."""
        loaded = self._loaded
        buckets.settle(self._trainer.strategy.model, self._trainer.strategy.root_device)
        if loaded is not None:
            hooks.end_restart(self._trainer)
            state.restore_rest(self._trainer, self._module, loaded.state)
            self._restore_stop(loaded.state["fit"])
        self._leaving.prepare()
        self._guard.watch()
        self.run.confirm()
        self.run.reporter.watch([self._module])
        self._seen = self._trainer.global_step
        self._taken = self._batches_taken()
        if loaded is None:
            self._step = self._seen
        else:
            strict = self.run.promise is Promise.BITWISE
            if loaded.begins:
                state.begin_random(self._module, loaded.begins)
            else:
                state.restore_random(self._module, loaded.role, strict=strict)
            loaded.state.clear()  # all of it is in the trainer now
        self._restored = True

    def _restore_stop(self, saved: dict[str, Any]) -> None:
        """A stop stays one, unless it was asked for by hand and the script now goes further."""
        same = saved["limits"] == hooks.limits(self._trainer)
        early = any(callback.stopped_epoch for callback in self._trainer.early_stopping_callbacks)
        if saved["should_stop"] and (same or early):
            self._trainer.should_stop = True

    # --- checkpoints of others ---------------------------------------------------------------

    def mark(self, checkpoint: dict[str, Any]) -> None:
        """Lightning is making a checkpoint, its own or ours: plain Lightning must be able to load it."""
        hooks.drop_loader_state(checkpoint)
        if self._restored:
            self._account()  # the batch that has just been trained counts
            checkpoint[state.CURSOR] = self.data.loader.state_dict()

    def start_from(self, checkpoint: dict[str, Any]) -> None:
        """A run that begins with a checkpoint made beside this callback begins at its place in the data."""
        if self._loaded is None and state.CURSOR in checkpoint:
            self.data.start_from(checkpoint[state.CURSOR])

    # --- at every step -----------------------------------------------------------------------

    def listen_for_sigterm(self) -> None:
        self._leaving.listen()

    def note_outputs(self, outputs: Any) -> None:
        self._loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs

    def _boundary(self) -> None:
        self.run.reporter.beat()
        if self._saved is None:
            self._save_initial()
        self._account()
        if not self._stepped:
            return
        self._stepped = False
        self.run.integrity.examine(self._step, self._module.named_parameters)
        self._leaving.at_boundary(self.run, self._step, self._save_for_drain)
        self.run.watch(self._step, self.data.loader)
        due = self.run.due(self._step)
        if due is not None:
            self._save(BEFORE_BATCH, due=due)
        elif self._unprepared:  # the optimizers have their moments only now: the state has its full size
            self.run.prepare(self._state(BEFORE_BATCH), self._capture.role())
        self._unprepared = False
        assert self._notices is not None
        self._notices.publish()
        self.run.reporter.goes_on()

    def _account(self) -> None:
        """Count the optimizer step that happened since the last account, and acknowledge its batches."""
        now = self._trainer.global_step
        taken = self._batches_taken()
        uncounted = self._guard.updated and taken > self._taken  # opt.optimizer.step(), past Lightning
        if now == self._seen and not uncounted:
            return
        self._seen = now
        skipped = not self._guard.updated  # by a scaler that met an overflow; it counts as a step
        self._guard.updated = False
        self._step += 1
        self._stepped = True
        self.data.loader.acknowledge(taken - self._taken, step=self._step, no_update=skipped)
        self._taken = taken
        self._note_metrics(updated=not skipped)

    def _account_for_skipped(self) -> None:
        """Batches at an epoch's end that no step used (``on_train_batch_start`` returned -1) are consumed."""
        taken = self._batches_taken()
        if taken > self._taken:
            unused = self._module.automatic_optimization
            self.data.loader.acknowledge(taken - self._taken, step=self._step + 1, no_update=unused)
            self._taken = taken

    def _batches_taken(self) -> int:
        return self._trainer.fit_loop.epoch_loop.batch_progress.total.ready

    def _note_metrics(self, *, updated: bool) -> None:
        optimizers = self._trainer.optimizers
        lr = float(optimizers[0].param_groups[0]["lr"]) if optimizers else None
        norm = hooks.logged(self._trainer, GRADIENT_NORMS)
        found = {"loss": self._loss, "grad_norm": norm}
        unread = {name: value for name, value in found.items() if _is_unread(value)}
        read = {name: None if name in unread else _number(value) for name, value in found.items()}
        self.run.note_metrics(self._step, lr=lr, updated=updated, unread=unread, **read)

    # --- saving ------------------------------------------------------------------------------

    def _state(self, place: str) -> dict[str, Any]:
        trainer = self._trainer
        fit = {"place": place, "should_stop": trainer.should_stop, "limits": hooks.limits(trainer)}
        return {**self._capture.state(), "fit": fit}

    def _save(self, place: str, *, wait: bool = False, due: Due | None = None) -> None:
        """Stage a snapshot. Storage trouble is an event; ``wait`` raises what prevented the commit."""
        trainer = self._trainer
        unchanging: frozenset[int] = frozenset()
        if place == BEFORE_BATCH:  # elsewhere end hooks follow, which may change anything
            unchanging = self._guard.unchanging(self._module)
        try:
            accepted = self.run.save(
                self._state(place),
                self._capture.role(),
                step=self._step,
                cursor=self.data.loader.state_dict(),
                counters={"epoch": trainer.current_epoch, "global_step": self._seen},
                rows=self.data.take_rows(),
                wait=wait,
                due=due,
                unchanging=unchanging,
            )
        except FencedError as error:
            self._leaving.note(error)
            return
        if accepted:
            self._guard.staged()
        if accepted and (due is None or due.checkpoint):
            self._saved = self._step

    def _save_surely(self, place: str, what: str) -> None:
        """Wait for the commit; storage trouble is a warning, as training has somewhere to go on from."""
        try:
            self._save(place, wait=True)
        except (TierError, CommitAborted) as error:
            rank_zero_warn(f"DurableCheckpoint: {what} could not be made durable: {error}")

    def _save_initial(self) -> None:
        """Before the first step: from here on there is always something to restore."""
        self._save_surely(BEFORE_BATCH, "the initial state")
        if self._saved is None:
            self._saved = -1  # tried once; from here on the cadence tries

    def _save_for_drain(self) -> None:
        if self._saved != self._step:
            self._save_surely(BEFORE_BATCH, "the state at SIGTERM")

    def _save_last(self, place: str) -> None:
        if self._saved != self._step and not self.run.completed:
            self._save_surely(place, "the final state")

    def _epoch_batches_done(self) -> None:
        self._guard.settle()  # a batch may have been taken that no hook was called for
        self._account()
        self._account_for_skipped()
        if hooks.fit_is_over(self._trainer):
            self._save_last(EPOCH_TAIL)
        if hooks.epoch_is_complete(self._trainer):
            self.data.loader.end_epoch()

    def _before_run_end(self) -> None:
        self.data.loader.end_epoch()
        self._save_last(AFTER_EPOCH)

    # --- ending ------------------------------------------------------------------------------

    def succeed(self) -> None:
        """The fit ended normally: when its last state is durable, the run is done."""
        run = self.run
        if run.completed or not self._restored:
            return
        try:
            run.flush()
            newest = run.status().newest_step
            if newest == self._step:
                run.succeed(hooks.limits(self._trainer))
                return
        except FencedError as error:
            raise FencedExit from error
        except (TierError, CommitAborted) as error:
            rank_zero_warn(f"DurableCheckpoint: the end of the run could not be recorded: {error}")
            return
        rank_zero_warn(
            f"DurableCheckpoint: the fit ended at step {self._step}, but only step {newest} is durable; "
            "running the script again goes on from there"
        )

    def interrupted(self) -> None:
        """The fit ended by an exception: what was staged becomes durable, live state is never saved.

        In a group the others may be dead, and a commit that waits for them must not hold up this exit.
        """
        if self._run is None:
            return
        try:
            done = self._run.flush(60.0 if len(self._world.roles) == 1 else 5.0)
        except DurableError as error:
            done = False
            rank_zero_warn(f"DurableCheckpoint: {error}")
        if not done:
            self._close_s = 0.0  # it had its time

    def remove(self) -> None:
        """Close the run and leave the trainer as it was found."""
        self._patches.remove()
        self._guard.remove()
        if self._data is not None:
            self._data.close()
        self._evaluations.close()
        if self._run is not None:
            self._run.close(self._close_s)
        self._leaving.remove()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else None


def _is_unread(value: Any) -> bool:
    """A scalar on an accelerator: reading it at every step would wait for the queue."""
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type != "cpu"
