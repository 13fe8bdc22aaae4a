"""L3. What a loader's ledger holds, as the session and the audit ask for it."""

from __future__ import annotations

from durable_core.data.cursor import Cursor
from durable_core.data.ledger import Ledger
from durable_core.format.ledger import Row


class LedgerRows:
    """The part of ``DurableLoader`` that passes its ledger on."""

    _ledger: Ledger

    @property
    def cursor(self) -> Cursor:
        """The position after everything acknowledged; equal on every replica."""
        return self._ledger.cursor

    @property
    def outstanding(self) -> int:
        """Batches handed over and not acknowledged."""
        return self._ledger.outstanding

    def rows_since(self, step: int) -> tuple[Row, ...]:
        """Ledger rows of steps after ``step``; kept until ``forget_rows``, so an aborted save loses none."""
        return self._ledger.rows_since(step)

    def forget_rows(self, through_step: int) -> None:
        """Drop the rows of steps up to ``through_step``: a commit has made them durable."""
        self._ledger.forget_rows(through_step)

    def drain_rows(self) -> tuple[Row, ...]:
        """All ledger rows, which are then forgotten here."""
        return self._ledger.drain_rows()
