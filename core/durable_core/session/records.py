"""L5. What a run notes beside its checkpoints: numbers, lines in its journal, where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from durable_core import events
from durable_core.clock import Clock
from durable_core.detect.base import Finding, Step
from durable_core.session.curve import Curve
from durable_core.session.integrity import Watch
from durable_core.session.opening import Opening, RestorePoint
from durable_core.session.reporting import Reporter
from durable_core.session.saving import Saver
from durable_core.session.status import Board, Status
from durable_core.session.world import World
from durable_core.types import Promise, Token


class Records:
    """The part of ``Run`` that saves and restores nothing."""

    world: World
    clock: Clock
    board: Board
    integrity: Watch
    reporter: Reporter
    _opening: Opening
    _saver: Saver | None
    _curve: Curve

    def _active(self) -> Saver:
        raise NotImplementedError

    @property
    def run_id(self) -> str:
        return self._opening.run_id

    @property
    def generation(self) -> int:
        return self._opening.generation

    @property
    def token(self) -> Token:
        return Token(self._opening.generation, self._opening.launch_id)

    @property
    def seed(self) -> int:
        return self._opening.seed

    @property
    def promise(self) -> Promise:
        return self._opening.promise

    @property
    def newest(self) -> tuple[int, int, str] | None:
        """(c, step, sha256 of its manifest) of the newest checkpoint of the lineage that this process knows
        to be committed. After a save that was waited for it is the same on all writers."""
        point = self._opening.restore
        if self._saver is not None:
            state = self._saver.committer.writer.view.state
            point = None if state.head is None else RestorePoint.of(state.checkpoints[state.head])
        return None if point is None else (point.c, point.step, point.digest)

    def status(self) -> Status:
        return self.board.read(self._saver.pending if self._saver else 0)

    def note_metrics(
        self, step: int, *, loss: float | None = None, lr: float | None = None,
        grad_norm: float | None = None, updated: bool = True, unread: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """One row of the metrics window, which the detectors judge; a step that is being replayed is compared
        with its first run. ``updated``: an optimizer has stepped. ``unread``: a ``loss`` and ``grad_norm``
        that are judged later, so that no device is waited for now; they are in no row.

        Tensors and numpy scalars of one element are taken for their value (a device is waited for).
        Raises ``UsageError`` for what is no number.
        """
        given = {"loss": loss, "lr": lr, "grad_norm": grad_norm}
        row, difference = self._curve.note(step, given, self.promise)
        if difference:
            self.board.emit(events.ReplayMismatched(self.clock.now(), step, difference))
        self.integrity.note(Step(step, row.loss, row.grad_norm, updated), difference, unread)

    @property
    def replayed(self) -> int:
        """Steps compared so far with the rows their first execution left behind."""
        return self._curve.replayed

    def pin(self, c: int, *, pinned: bool) -> None:
        """Retention spares checkpoint ``c``, or no longer does. Returns when that is in the journal.

        Raises ``RecordRefused`` for one that is not held any more, ``UsageError`` before ``confirm``, and as
        ``claim.maintain``.
        """
        active = self._active()
        self.world.decide(lambda: active.committer.pin(c, pinned=pinned))

    def note_failure(self, failure_class: str, signature: str, evidence: Any, step: int | None) -> None:
        """Append a line to the run's failure history, in the background."""
        self._active().committer.note_failure(failure_class, signature, evidence, step)

    def draining(self, step: int, reason: str) -> None:
        """Journal that a planned stop has begun. What the launcher says of it counts: it has heard another
        signal than its workers, or none."""
        self._active().committer.draining(step, self.reporter.stopped_for or reason)

    def lower_promise(self, to: Promise, reason: str) -> None:
        """Journal that from now on less is promised."""
        self._active().lower_promise(to, reason)

    def _found(self, finding: Finding, action: str) -> None:
        self._active().committer.found(finding, action)
