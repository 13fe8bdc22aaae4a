"""L5. What a session offers to an adapter, whose user's script has a loop of its own."""

from __future__ import annotations

from durable_core.session.putting_back import PuttingBack
from durable_core.session.run import Run


class ForAdapters:
    """The part of ``DurableSession`` that a plain loop has no use for."""

    run: Run
    _back: PuttingBack
    _updated: bool

    @property
    def updated(self) -> bool:
        """Whether an optimizer has stepped since the last boundary."""
        return self._updated

    @property
    def newest(self) -> tuple[int, int, str] | None:
        """(checkpoint, step, sha256 of its manifest) of the newest durable checkpoint of the lineage. After
        ``save(wait=True)`` it is the same on all writers."""
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
