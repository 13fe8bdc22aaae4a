"""How all ranks leave the loop together: on SIGTERM, when the run is lost, when policy stops for storage."""

from __future__ import annotations

import atexit
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from durable_core.clock import SystemClock
from durable_core.engine.uncaught import FencedExit
from durable_core.errors import DurableError, FencedError, TierError
from durable_core.session.exchange import keep
from durable_core.session.poll import Poll, Wish
from durable_core.session.run import Run
from durable_core.session.world import collective_timeout
from lightning_durable import hooks
from lightning_durable.exits import DrainExit, SigtermFlag

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


#: What a child may take to exit once everything of it is durable.
CHILD_EXIT_S = 60.0
#: How long a rank that has drained waits for the others to.
OTHERS_S = 60.0


class Leaving:
    def __init__(self, trainer: Trainer, members: int) -> None:
        self._trainer = trainer
        self._members = members
        self._sigterm = SigtermFlag()
        self._trouble: DurableError | None = None
        self._group: Any = None
        self._poll = Poll(self._reduce_max if members > 1 else None)
        self._clock = SystemClock()
        self._children: list[Any] = []

    def prepare(self) -> None:
        """Before the first step, on every rank: a group for polls that never waits for an accelerator."""
        if self._members == 1:
            return
        if torch.distributed.get_backend() != "gloo":
            self._group = torch.distributed.new_group(backend="gloo", timeout=collective_timeout())
        atexit.register(_disconnect)

    def listen(self) -> None:
        self._sigterm.install()

    def note(self, trouble: DurableError) -> None:
        """To be acted on by all ranks at the next poll."""
        self._trouble = trouble

    def at_boundary(self, run: Run, step: int, save: Callable[[], None]) -> None:
        """After step ``step``, on every rank. ``save`` makes this boundary durable.

        Raises ``DrainExit`` or ``FencedExit``, or the error that policy stops for; on all ranks alike.
        """
        agreed = self._poll.at(self._wish(run, step), self._clock.monotonic())
        if agreed is Wish.NOTHING:
            return
        if agreed is Wish.DRAIN:
            self._drain(run, step, save)
            raise DrainExit
        self._release_children()
        if agreed is Wish.FENCED:
            rank_zero_warn(
                f"DurableCheckpoint: another process owns the run: {self._trouble or 'a peer saw it'}"
            )
            raise FencedExit from self._trouble
        raise self._trouble or TierError("another rank gave up the run")

    def remove(self) -> None:
        """Last of all: reap children, put the signal handler back."""
        for child in self._children:
            try:
                child.wait(CHILD_EXIT_S)
            except subprocess.TimeoutExpired:
                child.kill()
        if (
            not self._sigterm.raised
        ):  # the process is about to exit with 75: a second signal must not change that
            self._sigterm.restore()

    def _wish(self, run: Run, step: int) -> Wish:
        try:
            run.boundary(step)
        except DurableError as error:
            self._trouble = error
        if self._trouble is not None:
            return Wish.FENCED if isinstance(self._trouble, FencedError) else Wish.ABORT
        return Wish.DRAIN if self._sigterm.raised else Wish.NOTHING

    def _drain(self, run: Run, step: int, save: Callable[[], None]) -> None:
        rank_zero_info(f"DurableCheckpoint: SIGTERM, draining at step {step}")
        run.draining(step, "SIGTERM")
        save()
        run.flush()
        run.close()
        self._sigterm.ignore()
        hooks.leave_ignored(self._trainer, signal.SIGTERM)
        self._wait_for_others()
        self._release_children()

    def _wait_for_others(self) -> None:
        """A launcher ends all as soon as one has exited, so nobody does before everybody is durable."""
        if self._members == 1:
            return
        try:
            torch.distributed.monitored_barrier(self._group, timeout=timedelta(seconds=OTHERS_S))
        except RuntimeError as error:  # one died meanwhile: of this one all is durable that can be
            rank_zero_warn(f"DurableCheckpoint: leaving without the others: {error}")

    def _release_children(self) -> None:
        """Lightning's observer kills this process when a child of it exits with a non-zero code first.

        The observer shares the launcher's list, so an empty list means that all is well.
        """
        launcher: Any = self._trainer.strategy.launcher
        self._children = list(getattr(launcher, "procs", ()))
        if self._children:
            launcher.procs.clear()

    def _reduce_max(self, values: tuple[int, int]) -> tuple[int, int]:
        with torch.inference_mode(False):
            tensor = torch.tensor(values, dtype=torch.int64, device="cpu")
            keep(tensor)
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX, group=self._group)
        wish, steps = tensor.tolist()
        return int(wish), int(steps)


def _disconnect() -> None:
    """Of gloo's threads none may be left when the interpreter ends: with its peer gone it would abort."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
