"""L5. What a session offers to an adapter, whose user's script has a loop of its own."""

from __future__ import annotations

from durable_core.errors import UsageError
from durable_core.session.putting_back import PuttingBack
from durable_core.session.restoring import Loaded, Visited
from durable_core.session.run import Run


class ForAdapters:
    """The part of ``DurableSession`` that a plain loop has no use for."""

    run: Run
    _back: PuttingBack
    _updated: bool
    _step: int
    _updates: int
    _unprepared: bool
    _visited: Visited | None

    def _save(self, *, wait: bool = False) -> bool:
        raise NotImplementedError

    def _saved(self) -> bool:
        raise NotImplementedError

    @property
    def updated(self) -> bool:
        """Whether an optimizer has stepped since the last boundary."""
        return self._updated

    @property
    def newest(self) -> tuple[int, int, str] | None:
        """(checkpoint, step, sha256 of its manifest) of the newest durable checkpoint of the lineage; of the
        visited one after ``visit``. After ``save(wait=True)`` it is the same on all writers."""
        if self._visited is not None:
            point = self._visited.point
            return point.c, point.step, point.digest
        return self.run.newest

    def pin(self, c: int) -> None:
        """Checkpoint ``c`` is not retired until ``unpin``. Returns when that is in the journal.

        Raises ``RecordRefused`` for one that is not there any more, and the tier's errors.
        """
        self.run.pin(c, pinned=True)

    def unpin(self, c: int) -> None:
        """The retention policy may let go of checkpoint ``c`` again. Raises as ``pin``."""
        self.run.pin(c, pinned=False)

    def reapply(self, *, modes: bool = True) -> None:
        """Put what was restored in place once more: the objects, then the random streams; the loader is left
        alone. For a script that computes between its start and the batch that it goes on with.

        ``modes=False`` leaves modules in training or evaluation, and parameters frozen or not, as the script
        has set them. Nothing happens without ``open(hold=True)``, on a fresh run and after ``release``.
        Raises as ``capture.restore``.
        """
        self.run.settle()
        self._back.again(modes=modes)

    def release(self) -> None:
        """Training goes on: what was held for ``reapply`` is let go."""
        self._back.release()

    def look(self, c: int) -> None:
        """Put checkpoint ``c`` of this run in place to be read, verified: objects and streams. The run,
        its loader and what is held for ``reapply``, which takes it back, are left alone: save nothing
        meanwhile. Raises as ``visit``, before anything is touched."""
        _, loaded = self.run.visit(c)
        self.run.settle()
        self._back.shown(loaded)

    def visit(self, c: int) -> Loaded:
        """Put checkpoint ``c`` of this run in place, verified: objects, loader (its pass under way ends) and
        random streams. The steps up to here are made durable first.

        The run itself is where it was until ``step()`` is called: that claims a generation which begins at
        ``c``, and goes on there; what came after ``c`` is abandoned then. ``finish()`` before it
        leaves the run at its head. Raises ``CheckpointNotFoundError`` and ``CorruptError`` before anything
        is touched, ``UsageError`` in the middle of a step, and as ``save`` and ``capture.restore``.
        """
        if self._updated:
            raise UsageError(
                f"visit({c}) after an optimizer has stepped since the boundary of step {self._step}",
                hint="call step() when the step is complete, then visit()",
            )
        untouched = self._visited is None and not self.run.completed
        if untouched and not self.run.world.all(self._saved()):
            self._save(wait=True)
        visited, loaded = self.run.visit(c)
        self.run.settle()
        self._back.visited(loaded)
        self._step = loaded.step
        self._updates = loaded.counters.get("optimizer_step", loaded.step)
        newest = self.run.newest
        self._visited = None if newest is not None and newest[0] == c else visited
        return loaded

    def _go_on(self) -> None:
        """A step was done after a visit: the run goes on from what was visited."""
        if self._visited is not None:
            self.run = self.run.rolled_back(self._visited)
            self._visited, self._unprepared = None, True
