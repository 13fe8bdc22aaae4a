"""``DurableCheckpoint``: the one line that a training script gains."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from durable_core.commit.retention import Retention
from durable_core.detect.policy import Integrity
from durable_core.session.places import Tiers
from durable_core.session.settings import Backlog, OnBreach, Resume, Settings
from durable_core.session.status import Status
from durable_core.spec import RunSpec
from durable_core.types import Promise
from lightning_durable import guard, hooks
from lightning_durable.fit import Fit
from lightning_durable.options import Options
from lightning_durable.telling import Telling

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class DurableCheckpoint(Callback):
    """Makes ``trainer.fit`` durable: killed at any instant, the same script run again is the same run.

    ``Trainer(callbacks=[DurableCheckpoint("runs/exp1")])``, then ``trainer.fit(model, loader)`` as ever.

    Args:
        root: directory or URL of the run; one run lives there.
        resume: ``"auto"`` continues the history at ``root`` or starts one; ``"must"`` and ``"never"``
            insist on either; ``"fork"`` goes on under a changed script, on purpose.
        every_n_train_steps: optimizer steps between two checkpoints, or ``"auto"``: from their measured cost.
        train_time_interval: longest time between two checkpoints: a ``timedelta`` or seconds.
        promise: what a resume guarantees: ``"bitwise"``, ``"exact-order"``, ``"coverage"`` or
            ``"distribution"``; one that cannot be kept is refused. ``None``: bitwise, lowered with a warning
            when the software has changed.
        accept_distribution: needed with ``"distribution"``: why the conclusion drawn from the run allows
            samples to be repeated or skipped; recorded in the spec.
        tiers: where copies are kept beside ``root``: ``Tiers(memory=Memory(every_n_steps=1), ...)``, so that
            a killed worker goes on from the newest step that all ranks have in memory; ``None``: nowhere.
        retention: which checkpoints to keep; ``Retention()`` keeps the last three.
        backlog: when storage cannot keep up, ``"skip"`` a snapshot (counted) or ``"delay"`` the loop.
        on_rpo_breach: when more steps are at risk than declared: ``"continue"``, ``"pause"`` or ``"abort"``.
        supply_window: steps over which the supply of data is judged; a warning says when it did not keep up,
            and what held it back. 0: never.
        integrity: what losses (and a logged ``grad_norm``) are checked for, and whether a finding ends the
            process; ``None``: not finite and spikes, told as warnings. ``Integrity(replicas_every=n)``
            compares the replicas' parameters as well.
        spec: the run's spec; ``None`` derives it from the script.
        run_key: names this fit under ``root``; needed when one script makes several.
        takeover: claim the run although another process seems to own it; that one is fenced.

    A plain ``Callback``, not a ``Checkpoint``: nothing of Lightning's own checkpointing changes with it.
    Parameters and optimizer state are copied while the next batch is computed; earlier, before any hook of
    yours that could change them, and at once for optimizers that are not of ``torch.optim``. Weights that
    ``training_step`` itself writes to cost one snapshot, after which everything is copied at once.

    SIGTERM drains: everything is made durable at the next boundary and the process exits with 75; a
    writer that lost the run exits with 76. Storage trouble never stops training unless
    ``on_rpo_breach`` says so; it is warned about at once and shown in ``status``.

    Raises (from ``fit``): ``UsageError`` and its kin for what cannot be made exact or contradicts the
    history, ``RunBusy`` when a live process owns the run, ``NoUsableCheckpoint``; ``NumericFault`` when the
    numbers are wrong and ``integrity`` says to stop.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        resume: Resume = "auto",
        every_n_train_steps: int | str = "auto",
        train_time_interval: timedelta | float | None = None,
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
        self._options = Options.of(
            root,
            resume=resume,
            every_n_train_steps=every_n_train_steps,
            train_time_interval=train_time_interval,
            promise=promise,
            accept_distribution=accept_distribution,
            retention=retention,
            tiers=tiers,
            backlog=backlog,
            on_rpo_breach=on_rpo_breach,
            supply_window=supply_window,
            integrity=integrity,
            spec=spec,
            run_key=run_key,
            takeover=takeover,
        )
        self._fit: Fit | None = None
        self._telling = Telling()
        self._last_status: Status | None = None
        self._last_restored: tuple[int, int] | None = None

    @property
    def root(self) -> str:
        """Where the run lives, the run key included."""
        return self._options.root

    @property
    def status(self) -> Status | None:
        """Newest durable step, lag, skips, failures, last error; ``None`` before the first fit."""
        return self._last_status if self._fit is None else self._fit.status() or self._last_status

    @property
    def restored_from(self) -> tuple[int, int] | None:
        """(checkpoint, step) that the running or last fit resumed from; ``None``: it started anew."""
        return self._last_restored if self._fit is None else self._fit.restored_from

    def flush(self, timeout: float | None = None) -> bool:
        """Wait (at most ``timeout`` seconds) until every snapshot taken so far is durable or has failed.

        False when the time ran out. Does nothing outside a fit.
        """
        return True if self._fit is None else self._fit.run.flush(timeout)

    # --- Lightning's hooks, in the order of a fit ----------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not guard.is_training(trainer, stage):
            return
        hooks.check(trainer)
        guard.check(trainer, pl_module, DurableCheckpoint)
        guard.check_first_fit(self.root)
        self._fit = Fit(trainer, pl_module, self._options)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.listen_for_sigterm()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._fit is not None:
            self._fit.note_outputs(outputs)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._telling.begins(None if self._fit is None else self._fit.reporter)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._telling.goes_on()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._telling.ends()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_validation_start(trainer, pl_module)

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._telling.goes_on()

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._telling.ends()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._fit is not None:
            self._fit.mark(checkpoint)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._fit is not None:
            self._fit.start_from(checkpoint)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.succeed()
            guard.note_finished(self.root)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._fit is not None:
            self._fit.interrupted()
            self._leave()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._fit is not None:
            self._leave()

    def _leave(self) -> None:
        assert self._fit is not None
        self._last_status, self._last_restored = self._fit.status(), self._fit.restored_from
        self._fit.remove()
        self._fit = None
