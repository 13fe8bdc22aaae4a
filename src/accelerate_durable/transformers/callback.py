"""``DurableTrainerCallback``: the one line that a script with a ``transformers.Trainer`` gains."""

from __future__ import annotations

import os
import sys
from typing import Any, TypeVar

from transformers import TrainerCallback

from accelerate_durable.options import DurableOptions
from accelerate_durable.transformers import foreign, guard, hooks, resuming
from accelerate_durable.transformers.alone import Alone
from accelerate_durable.transformers.telling import Evaluation
from accelerate_durable.transformers.training import Training
from durable_core.commit.retention import Retention
from durable_core.detect.policy import Integrity
from durable_core.errors import UsageError
from durable_core.session.places import Tiers
from durable_core.session.plain import DurableSession
from durable_core.session.settings import Backlog, OnBreach, Resume, Settings
from durable_core.session.status import Status
from durable_core.spec import RunSpec
from durable_core.types import Promise

T = TypeVar("T")


class DurableTrainerCallback(TrainerCallback):
    """Makes ``trainer.train()`` durable: killed at any instant, the same script run again is the same run.

    ``DurableTrainerCallback("runs/exp1").attach(trainer)``, then ``trainer.train()`` as ever; it starts the
    run or goes on with it. ``Trainer`` and its subclasses (TRL's ``SFTTrainer``), PEFT models as they are.

    Args:
        root: directory or URL of the run; one run lives there.
        resume: ``"auto"`` continues the history at ``root`` or starts one; ``"must"`` and ``"never"``
            insist on either; ``"fork"`` goes on under a changed script, on purpose.
        every_n_steps: optimizer steps between two checkpoints, or ``"auto"``: from their measured cost.
            When the Trainer saves (``save_strategy``), so does this, and waits until it is durable.
        every_seconds: longest time between two checkpoints.
        promise: what a resume guarantees: ``"bitwise"``, ``"exact-order"``, ``"coverage"`` or
            ``"distribution"``; one that cannot be kept is refused. ``None``: bitwise, lowered with a warning
            when the software has changed.
        accept_distribution: needed with ``"distribution"``: why the conclusion drawn from the run allows
            samples to be repeated or skipped; recorded in the spec.
        tiers: where copies are kept beside ``root``; ``None``: nowhere.
        retention: which checkpoints to keep; ``Retention()`` keeps the last three.
        backlog: when storage cannot keep up, ``"skip"`` a snapshot (counted) or ``"delay"`` the loop.
        on_rpo_breach: when more steps are at risk than declared: ``"continue"``, ``"pause"`` or ``"abort"``.
        supply_window: steps over which the supply of data is judged. 0: never.
        integrity: what the loss and gradient norm that the Trainer logs are checked for.
        spec: the run's spec; ``None`` derives it from the Trainer.
        run_key: names this run under ``root``, where several share one.
        takeover: claim the run although another process seems to own it; that one is fenced.

    Among ``callbacks=`` and not attached, it keeps what a callback can reach: promise ``"exact-order"`` at
    most, and ``trainer.train(resume_from_checkpoint=last_checkpoint(root))`` to go on. What it cannot keep
    (fp16, the best model, callbacks with a state) is refused.

    The run's own seed counts: of the order of data and of every random stream. Another ``--seed`` on a
    restart is told of in a warning. The Trainer's own ``checkpoint-N`` directories are written as ever, and
    not read; ``load_best_model_at_end`` is, for it comes after the run's end, and is done again when a
    finished run is started again, which trains nothing. SIGTERM drains: exit code 75.

    Raises (from ``train``): ``UnsupportedError`` and its kin for what cannot be made exact or contradicts the
    history, ``RunBusy`` when a live process owns the run, ``NoUsableCheckpoint``; ``NumericFault`` when the
    numbers are wrong and ``integrity`` says to stop.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        resume: Resume = "auto",
        every_n_steps: int | str = "auto",
        every_seconds: float | None = None,
        promise: Promise | str | None = None,
        accept_distribution: str = "",
        tiers: Tiers | None = None,
        retention: Retention | None = None,
        backlog: Backlog = "skip",
        on_rpo_breach: OnBreach = "continue",
        supply_window: int = Settings.supply_window,
        integrity: Integrity | None = None,
        spec: RunSpec | None = None,
        run_key: str | None = None,
        takeover: bool = False,
    ) -> None:
        self._options = DurableOptions(
            root=root,
            resume=resume,
            every_n_steps=every_n_steps,
            every_seconds=every_seconds,
            promise=promise,
            accept_distribution=accept_distribution,
            tiers=tiers,
            retention=retention,
            backlog=backlog,
            on_rpo_breach=on_rpo_breach,
            supply_window=supply_window,
            integrity=integrity,
            spec=spec,
            run_key=run_key,
            takeover=takeover,
        )
        self._trainer: Any = None
        self._training: Training | None = None
        self._alone: Alone | None = None
        self._evaluation = Evaluation()
        self._last: tuple[Status | None, tuple[int, int] | None] = (None, None)

    # --- what a person asks ----------------------------------------------------------------------

    @property
    def root(self) -> str:
        """Where the run lives, the run key included."""
        return self._options.home()

    @property
    def status(self) -> Status | None:
        """Newest durable step, lag, skips, failures, last error; ``None`` before the first ``train``."""
        session = self._session
        return self._last[0] if session is None else session.status()

    @property
    def restored_from(self) -> tuple[int, int] | None:
        """(checkpoint, step) that the running or last ``train`` resumed from; ``None``: it started anew."""
        session = self._session
        return self._last[1] if session is None else session.restored

    def flush(self, timeout: float | None = None) -> bool:
        """Wait (at most ``timeout`` seconds) until every snapshot taken so far is durable or has failed.

        False when the time ran out. Does nothing outside of ``train``.
        """
        session = self._session
        return True if session is None else session.flush(timeout)

    @property
    def _session(self) -> DurableSession | None:
        if self._alone is not None:
            return self._alone.session
        return None if self._training is None else self._training.session

    # --- attaching -------------------------------------------------------------------------------

    def attach(self, trainer: T) -> T:
        """``trainer.train`` starts the run, or goes on with it. Returns ``trainer``.

        Raises ``UsageError`` for a second run of one trainer, or a second trainer; ``UnsupportedError``
        naming what this version of transformers lacks.
        """
        self._attach(trainer)
        return trainer

    def _attach(self, trainer: Any) -> None:
        if self._trainer is trainer:
            return
        if self._trainer is not None:
            raise UsageError("this callback belongs to another trainer", hint="one callback for each")
        found = [
            item for item in trainer.callback_handler.callbacks if isinstance(item, DurableTrainerCallback)
        ]
        if any(item is not self for item in found):
            raise UsageError(
                "two DurableTrainerCallbacks in one Trainer", hint="a run has one history: keep one"
            )
        hooks.check(trainer)
        if not found:
            trainer.add_callback(self)
        self._trainer = trainer
        hooks.wrap_train(trainer, self._train)

    def _train(self, original: Any, resume_from_checkpoint: Any, trial: Any, more: dict[str, Any]) -> Any:
        trainer = self._trainer
        guard.check(trainer, trial)
        start = foreign.start(trainer, resume_from_checkpoint, self.root)
        self._training = training = Training(trainer, self._options)
        try:
            return original(resume_from_checkpoint=start, trial=trial, **more)
        finally:
            session = training.session
            if session is not None:
                self._last = (session.status(), session.restored)
            self._training = None
            self._evaluation.ends()
            training.leave(*sys.exc_info())

    # --- the Trainer's events ----------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if self._trainer is None:
            self._alone = Alone(self._options, args, state, objects)
            resuming.forget()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._alone is not None:
            self._alone.boundary()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        session = self._session
        if session is not None:
            self._evaluation.goes_on(session)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._evaluation.ends()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        for training in (self._training, self._alone):
            if training is not None:
                training.note_saved()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self._training is not None:
            self._training.note_logged(logs or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._alone is not None:
            self._alone.end()
            self._last = (self._alone.session.status(), self._alone.session.restored)
            self._alone = None
