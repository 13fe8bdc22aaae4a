"""Trouble is visible at once: as warnings on rank zero, and as ``durable/…`` metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from lightning.pytorch.utilities import rank_zero_warn

from durable_core import events
from durable_core.session.notices import sentence_of
from durable_core.session.run import Run
from lightning_durable import hooks

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class Notices:
    """Hears every event on the thread it happens on; touches the trainer on the training thread only."""

    def __init__(self, run: Run, trainer: Trainer) -> None:
        self._run, self._trainer = run, trainer
        self._news = True
        self._trouble = False
        run.board.listeners.append(self._hear)

    def _hear(self, event: events.Event) -> None:
        self._news = True
        sentence = sentence_of(event)
        if sentence is not None:
            self._trouble = True
            rank_zero_warn(f"DurableCheckpoint: {sentence}")

    def publish(self) -> None:
        """At a boundary. Costs one test when there is no news."""
        if not self._news:
            return
        self._news = False
        metrics = self._run.status().metrics()
        hooks.publish(self._trainer, {name: torch.tensor(value) for name, value in metrics.items()})
        if self._trouble:  # a logger's file gains columns: only for what a person must see
            self._trouble = False
            for logger in self._trainer.loggers:
                logger.log_metrics(metrics, step=hooks.logger_step(self._trainer))
