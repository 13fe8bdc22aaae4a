"""One fit of one run: what happens at each moment that ``hooks`` reports.

The boundary is the instant before the loop takes a batch: the optimizer step, all hooks and any
validation that was due are done, nothing of the next batch is. Snapshots are taken there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from durable_core.clock import SystemClock
from durable_core.errors import CommitAborted, DurableError, FencedError, TierError, UsageError
from durable_core.session.run import Loaded, Run
from durable_core.session.status import Status
from durable_core.session.world import World
from durable_core.types import Promise
from lightning_durable import guard, hooks, state
from lightning_durable.data import Data
from lightning_durable.exits import DrainExit, FencedExit, SigtermFlag
from lightning_durable.notices import Notices
from lightning_durable.options import Options
from lightning_durable.poll import Poll, Wish
from lightning_durable.spec import derive

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

#: where a snapshot lies: before a batch; after an epoch's last batch, its end hooks to come; after those
BEFORE_BATCH, EPOCH_TAIL, AFTER_EPOCH = "before-batch", "epoch-tail", "after-epoch"


class Fit:
    def __init__(self, trainer: Trainer, module: LightningModule, options: Options) -> None:
        self._trainer, self._module, self._options = trainer, module, options
        self._capture = state.Capture(trainer, module)
        self._clock = SystemClock()
        self._world = World.torch_distributed()
        self._poll = Poll(self._reduce_max if len(self._world.roles) > 1 else None)
        self._sigterm = SigtermFlag()
        self._run: Run | None = None
        self._loaded: Loaded | None = None
        self._data: Data | None = None
        self._notices: Notices | None = None
        self._confirmed = False
        self._held_max_steps: int | None = None
        self._step = 0  # optimizer-step transactions of the run
        self._seen = 0  # trainer.global_step at the last account
        self._taken = 0  # batches the loop had taken at the last acknowledgement
        self._stepped = False  # a step was accounted for since the last boundary
        self._saved: int | None = None  # step of the newest snapshot that was accepted
        self._loss: Any = None
        self._children: list[Any] = []
        self._trouble: DurableError | None = None
        self._patches = hooks.Patches(
            trainer,
            hooks.Moments(
                resume=self._resume,
                prepare_loader=self._prepare_loader,
                before_run=self._before_run,
                run_started=self._run_started,
                epoch_entered=self._epoch_entered,
                boundary=self._boundary,
                epoch_batches_done=self._epoch_batches_done,
                before_run_end=self._before_run_end,
            ),
        )

    # --- opening and restoring ---------------------------------------------------------------

    @property
    def run(self) -> Run:
        assert self._run is not None
        return self._run

    @property
    def data(self) -> Data:
        assert self._data is not None
        return self._data

    @property
    def restored_from(self) -> tuple[int, int] | None:
        return None if self._loaded is None else (self._loaded.c, self._loaded.step)

    def status(self) -> Status | None:
        return None if self._run is None else self._run.status()

    def _resume(self, ckpt_path: Any) -> dict[str, Any] | None:
        """The checkpoint dict to restore; None to start anew (or from ``ckpt_path``)."""
        if self._run is None:
            self._open(None if ckpt_path is None else str(ckpt_path))
        elif ckpt_path is not None:
            raise UsageError(
                f"{ckpt_path} was given to start from, after the training loader was already asked for",
                hint="read trainer.estimated_stepping_batches in configure_optimizers, not in setup",
            )
        if self._loaded is None:
            return None
        checkpoint: dict[str, Any] = self._loaded.state["checkpoint"]
        return checkpoint

    def _open(self, external: str | None) -> None:
        """Claim the run; when it has a history, read and verify what this generation restores."""
        spec = self._options.spec or derive(self._trainer, self._module, self._options, self._world)
        run = Run.open(
            self._options.root, world=self._world, settings=self._options.settings, spec=spec, external=external
        )
        self._run = run
        self._notices = Notices(run, self._trainer)
        replica = self._world.roles.index(self._world.role)
        self._data = Data(replica=replica, replicas=len(self._world.roles), seed=run.seed, promise=run.promise)
        for warning in run.warnings:
            rank_zero_warn(f"DurableCheckpoint: {warning}")
        if run.fresh:
            return
        self._loaded = loaded = run.load()
        self._data.start_from(loaded.cursor)
        self._step = self._saved = loaded.step
        rank_zero_info(f"DurableCheckpoint: resuming {self._options.root} at step {loaded.step} (checkpoint {loaded.c})")

    def _prepare_loader(self, dataloader: object) -> object:
        if self._run is None:  # a module's setup hook reads estimated_stepping_batches
            self._open(None)
        return self.data.prepare(dataloader, reloading=self._confirmed)

    def _before_run(self) -> None:
        """A run that ended at ``max_steps`` still has its end hooks to pass, so the loop must not skip itself."""
        loop = self._trainer.fit_loop.epoch_loop
        if self._restores(EPOCH_TAIL) and loop.max_steps != -1:
            self._held_max_steps, loop.max_steps = loop.max_steps, -1

    def _run_started(self) -> None:
        if self._restores(AFTER_EPOCH):
            self._restore()

    def _epoch_entered(self) -> None:
        if self._held_max_steps is not None:
            self._trainer.fit_loop.epoch_loop.max_steps, self._held_max_steps = self._held_max_steps, None
        if not self._confirmed:
            self._restore()

    def _restores(self, place: str) -> bool:
        return self._loaded is not None and not self._confirmed and self._loaded.state["fit"]["place"] == place

    def _restore(self) -> None:
        """Lightning has put back its part and run every start hook; what is left, and random streams last."""
        loaded = self._loaded
        if loaded is not None:
            hooks.end_restart(self._trainer)
            state.restore_rest(self._trainer, self._module, loaded.state)
            ended = loaded.state["fit"]
            if ended["should_stop"] and ended["limits"] == hooks.limits(self._trainer):
                self._trainer.should_stop = True
        self.run.confirm()
        self._seen = self._trainer.global_step
        self._taken = self._batches_taken()
        if loaded is None:
            self._step = self._seen
        else:
            state.restore_random(self._module, loaded.role, strict=self.run.promise is Promise.BITWISE)
            loaded.state.clear()  # its tensors are copies now
        self._confirmed = True

    # --- at every step -------------------------------------------------------------------------

    def listen_for_sigterm(self) -> None:
        self._sigterm.install()

    def note_outputs(self, outputs: Any) -> None:
        self._loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs

    def _boundary(self) -> None:
        if self._saved is None and not self.run.completed:
            self._save_initial()
        self._account()
        if not self._stepped:
            return
        self._stepped = False
        self._act_on(self._poll.at(self._wish(), self._clock.monotonic()))
        if self.run.due(self._step):
            self._save(BEFORE_BATCH)
        if self._notices is not None:
            self._notices.publish()

    def _account(self) -> None:
        """Count the optimizer step that happened since the last account, and acknowledge its batches."""
        now = self._trainer.global_step
        if now == self._seen:
            return
        self._seen = now
        self._step += 1
        self._stepped = True
        taken = self._batches_taken()
        self.data.loader.acknowledge(taken - self._taken, step=self._step)
        self._taken = taken
        self._note_metrics()

    def _account_for_skipped(self) -> None:
        """Batches at an epoch's end that no step used (``on_train_batch_start`` returned -1) count as consumed."""
        taken = self._batches_taken()
        if taken > self._taken:
            skipped = self._module.automatic_optimization
            self.data.loader.acknowledge(taken - self._taken, step=self._step + 1, no_update=skipped)
            self._taken = taken

    def _batches_taken(self) -> int:
        return self._trainer.fit_loop.epoch_loop.batch_progress.total.ready

    def _note_metrics(self) -> None:
        loss, optimizers = self._loss, self._trainer.optimizers
        if isinstance(loss, torch.Tensor):
            # On an accelerator reading it would wait for the queue at every step.
            loss = float(loss) if loss.numel() == 1 and loss.device.type == "cpu" else None
        lr = float(optimizers[0].param_groups[0]["lr"]) if optimizers else None
        self.run.note_metrics(self._step, loss=loss if isinstance(loss, float) else None, lr=lr)

    def _wish(self) -> Wish:
        try:
            self.run.boundary(self._step)
        except DurableError as error:
            self._trouble = error
        if self._trouble is not None:
            return Wish.FENCED if isinstance(self._trouble, FencedError) else Wish.ABORT
        return Wish.DRAIN if self._sigterm.raised else Wish.NOTHING

    def _act_on(self, agreed: Wish) -> None:
        if agreed is Wish.NOTHING:
            return
        if agreed is Wish.DRAIN:
            self._drain()
            raise DrainExit
        self._release_children()
        if agreed is Wish.FENCED:
            rank_zero_warn(f"DurableCheckpoint: stopping, another process owns the run: {self._trouble or 'a peer'}")
            raise FencedExit from self._trouble
        raise self._trouble or TierError("another rank gave up the run")

    def _reduce_max(self, values: tuple[int, int]) -> tuple[int, int]:
        tensor = torch.tensor(values, dtype=torch.int64, device=self._trainer.strategy.root_device)
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
        wish, steps = tensor.tolist()
        return int(wish), int(steps)

    # --- saving --------------------------------------------------------------------------------

    def _save(self, place: str, *, wait: bool = False) -> None:
        """Stage a snapshot of this boundary. A failure of storage is an event, not an exception, unless waited for."""
        place_now = {
            "place": place,
            "should_stop": self._trainer.should_stop,
            "limits": hooks.limits(self._trainer),
        }
        try:
            accepted = self.run.save(
                {**self._capture.state(), "fit": place_now},
                self._capture.role(),
                step=self._step,
                cursor=self.data.loader.state_dict(),
                counters={"epoch": self._trainer.current_epoch, "global_step": self._seen},
                rows=self.data.take_rows(),
                wait=wait,
            )
        except FencedError as error:
            self._trouble = error
            return
        if accepted:
            self._saved = self._step

    def _save_initial(self) -> None:
        """Commit the state before the first step: from here on there is always something to restore."""
        try:
            self._save(BEFORE_BATCH, wait=True)
        except (TierError, CommitAborted) as error:
            rank_zero_warn(f"DurableCheckpoint: the initial state could not be stored, training goes on: {error}")
        if self._saved is None:
            self._saved = -1  # tried; the cadence takes over

    def _save_last(self, place: str) -> None:
        if self._saved != self._step and not self.run.completed:
            self._save(place)

    def _epoch_batches_done(self) -> None:
        self._account()
        self._account_for_skipped()
        if hooks.epoch_is_complete(self._trainer):
            self.data.loader.end_epoch()
        if hooks.fit_is_over(self._trainer):
            self._save_last(EPOCH_TAIL)

    def _before_run_end(self) -> None:
        self.data.loader.end_epoch()
        self._save_last(AFTER_EPOCH)

    # --- leaving -------------------------------------------------------------------------------

    def _drain(self) -> None:
        rank_zero_info(f"DurableCheckpoint: SIGTERM, draining at step {self._step}")
        self.run.draining(self._step, "SIGTERM")
        if self._saved != self._step:
            try:
                self._save(BEFORE_BATCH, wait=True)
            except DurableError as error:
                rank_zero_warn(f"DurableCheckpoint: the state at SIGTERM could not be stored: {error}")
        self.run.flush()
        self.run.close()
        self._release_children()

    def _release_children(self) -> None:
        """Lightning's observer would kill this process when a child leaves with a non-zero code before it."""
        launcher = self._trainer.strategy.launcher
        children = list(getattr(launcher, "procs", ()))
        if children:
            launcher.procs.clear()  # type: ignore[union-attr]  # the subprocess launcher's list, shared with its observer
            self._children = children

    def succeed(self) -> None:
        """The fit ended normally: its last state durable, the run is done."""
        run = self.run
        if not run.completed:
            run.flush()
            newest = run.status().newest_step
            if newest == self._step:
                run.succeed(hooks.limits(self._trainer))
            else:
                rank_zero_warn(
                    f"DurableCheckpoint: the fit ended at step {self._step} but the newest durable state is of step "
                    f"{newest}; running the script again continues from there"
                )

    def interrupted(self) -> None:
        """The fit ended by an exception: what was staged becomes durable, live state is never saved."""
        if self._run is not None and self._confirmed:
            self._run.flush(60.0)

    def remove(self) -> None:
        """Close the run and leave the trainer as it was found."""
        self._patches.remove()
        if self._run is not None:
            self._run.close()
        for child in self._children:
            child.wait()
        if not self._sigterm.raised:  # while draining, further signals change nothing
            self._sigterm.restore()
