"""L5. What a run writes into its journal beside checkpoints, and what it reads there of them."""

from __future__ import annotations

from typing import Any

from durable_core.detect.base import Finding
from durable_core.session.opening import Opening, RestorePoint
from durable_core.session.saving import Saver
from durable_core.session.world import World
from durable_core.types import Promise


class Records:
    """The part of ``Run`` that passes its journal on."""

    world: World
    _opening: Opening
    _saver: Saver | None

    def _active(self) -> Saver:
        raise NotImplementedError

    @property
    def newest(self) -> tuple[int, int, str] | None:
        """(c, step, sha256 of its manifest) of the newest checkpoint of the lineage that this process knows
        to be committed. After a save that was waited for it is the same on all writers."""
        point = self._opening.restore
        if self._saver is not None:
            state = self._saver.committer.writer.view.state
            point = None if state.head is None else RestorePoint.of(state.checkpoints[state.head])
        return None if point is None else (point.c, point.step, point.digest)

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
        """Journal that a planned stop has begun."""
        self._active().committer.draining(step, reason)

    def lower_promise(self, to: Promise, reason: str) -> None:
        """Journal that from now on less is promised."""
        self._active().lower_promise(to, reason)

    def _found(self, finding: Finding, action: str) -> None:
        self._active().committer.found(finding, action)
