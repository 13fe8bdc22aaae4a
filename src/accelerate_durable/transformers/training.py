"""One ``train`` of a Trainer that a run is attached to: what happens at each moment ``hooks`` reports.

The boundary is the instant before a group of batches is fetched: the optimizer has stepped, and what the
step was the occasion of (logging, evaluation, the best metric, the Trainer's own checkpoint) is done.
"""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any

from accelerate_durable.description import Description
from accelerate_durable.options import DurableOptions
from accelerate_durable.transformers import ending, hooks, loader, spec
from accelerate_durable.transformers.state import FROM_FIRST, Callbacks, Progress
from durable_core.clock import SystemClock
from durable_core.data import DurableLoader
from durable_core.session.plain import DurableSession
from durable_core.session.world import World
from durable_core.state import buckets

if TYPE_CHECKING:
    from transformers import Trainer

#: What the Trainer logs, by the names that a session knows it by.
LOGGED = {"loss": "loss", "lr": "learning_rate", "grad_norm": "grad_norm"}


class Training:
    def __init__(self, trainer: Trainer, options: DurableOptions) -> None:
        self._trainer: Any = trainer
        self._options, self._clock = options, SystemClock()
        self._world = World.torch_distributed()
        self._session: DurableSession | None = None
        self._loader: DurableLoader | None = None
        self._progress = Progress(trainer, self._clock)
        self._resumed = False  # in the middle of the run, rather than at its beginning
        self._seen = 0  # the Trainer's count of steps at the last boundary
        self._asked = False  # the Trainer has saved: so shall we, and wait
        self._logged: dict[str, Any] = {}
        self._unrecorded = False  # the run has ended, and its storage would not have it
        self._patches = hooks.Patches(
            trainer,
            hooks.Moments(
                loader=self._make_loader,
                begin=self._begin,
                is_restored=lambda: self._resumed,
                before_pass=self._before_pass,
                before_end=self._before_end,
                began=self._began,
            ),
        )

    @property
    def session(self) -> DurableSession | None:
        """``None`` before the objects exist whose state it is."""
        return self._session

    # --- opening and restoring ---------------------------------------------------------------

    def _make_loader(self, made: Any) -> Any:
        trainer, world = self._trainer, self._world
        self._loader = loader.durable(
            made,
            trainer.accelerator,
            replica=world.roles.index(world.role),
            replicas=len(world.roles),
            seed=spec.seed_of(trainer.args),
            promise=self._options.settings().promise,
            accumulate=trainer.args.gradient_accumulation_steps,
        )
        return loader.TrainerLoader(self._loader, trainer.accelerator)

    def _begin(self, max_steps: int, at: tuple[int, int]) -> tuple[int, int]:
        """Open the run with all of its objects. What is restored is in place when this returns."""
        trainer, data = self._trainer, self._data
        if at != (0, 0):
            loader.move(data, *at)
        buckets.settle(trainer.model_wrapped, trainer.args.device)
        objects: dict[str, Any] = {
            "model": trainer.model,
            "optimizer": trainer.optimizer,
            "scheduler": trainer.lr_scheduler,
            "trainer": self._progress,
            "callbacks": Callbacks(trainer),
            "hf": Description(trainer.accelerator.unwrap_model(trainer.model)),
            "loader": data,
        }
        if trainer.accelerator.scaler is not None:
            objects["scaler"] = trainer.accelerator.scaler
        derived = spec.derive(
            trainer.model, trainer.args, self._options, self._world, seed=data.seed, max_steps=max_steps
        )
        given = self._options.session()
        self._session = session = DurableSession.open(
            self._options.home(),
            state=objects,
            hold=True,
            from_first=FROM_FIRST,
            world=self._world,
            **{**given, "spec": given["spec"] or derived},
        )
        self._resumed = session.restored is not None and session.steps > 0
        self._seen = trainer.state.global_step
        data.before_next.insert(0, self._boundary)
        if session.run.completed:
            warnings.warn(
                f"durable: the run at {self._options.home()} has ended, at step {self._seen}: its model is "
                "in place, and nothing is trained. Another root (or run_key) is another run",
                stacklevel=2,
            )
        return (data.cursor.epoch, data.cursor.batch) if session.restored is not None else at

    @property
    def _data(self) -> DurableLoader:
        assert self._loader is not None, "the Trainer asks for its loader first"
        return self._loader

    @property
    def _run(self) -> DurableSession:
        assert self._session is not None, "the Trainer settles where it begins before it trains"
        return self._session

    def _began(self, start_time: float) -> float:
        return self._clock.now() - self._progress.seconds if self._resumed else start_time

    # --- at every step -----------------------------------------------------------------------

    def _before_pass(self) -> bool:
        """Before the next pass begins, the loader is told what the last step has used of the one before.
        Ahead of the first pass of a restored run, what its start has changed is put back, random streams
        last."""
        self._put_back()
        if self._trainer.state.global_step != self._seen:
            self._leave_pass()
        self._boundary()
        return not (self._run.run.completed or (self._resumed and self._trainer.control.should_training_stop))

    def _leave_pass(self) -> None:
        """If the Trainer has left the pass before its end (``should_epoch_stop``), so does the loader before
        this step is saved: a restart goes on in the next epoch."""
        data, session = self._data, self._run
        if data.more():
            data.acknowledge(data.outstanding, step=session.steps + 1, no_update=not session.updated)
            data.end_epoch()

    def _put_back(self) -> None:
        if self._resumed:
            self._run.reapply()
        self._run.release()

    def _boundary(self) -> None:
        """Once for each step of the Trainer, whenever it is about to fetch the batches of the next one."""
        step, session = self._trainer.state.global_step, self._run
        if step == self._seen:
            return
        self._seen = step
        saved = session.step(**self._logged)
        self._logged = {}
        if self._asked:
            self._asked = False
            ending.durable(session, staged=saved)

    def note_saved(self) -> None:
        self._asked = True

    def note_logged(self, logs: dict[str, float]) -> None:
        self._logged = {name: float(logs[key]) for name, key in LOGGED.items() if key in logs}

    # --- ending ------------------------------------------------------------------------------

    def _before_end(self) -> None:
        """Training is over: its state is the last one, and the run has succeeded. What the Trainer does now
        (it may load the best model in place of the last) is done again if it is started again."""
        self._put_back()
        self._boundary()
        self._unrecorded = not ending.finished(self._run)

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """``train`` is left, with an error or without: the Trainer is as it was found."""
        self._patches.remove()
        if self._session is not None and self._unrecorded:
            self._session.close()
        elif self._session is not None:
            self._session.__exit__(kind, error, trace)
        elif self._loader is not None:
            self._loader.close()
