"""L5. The books of a controller: it reads the run, and says where it stands as long as no other one does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from durable_core.commit import claim
from durable_core.commit.effects import Program
from durable_core.commit.journal import View
from durable_core.commit.state import RunState
from durable_core.errors import Fenced, TierError
from durable_core.launch.books import Books
from durable_core.tier.base import Tier


class Office(Books):
    """``epoch``: the one it was taken under; 0: not yet."""

    epoch = 0

    def take(self) -> RunState:
        """From now on this controller says where the run stands. Raises as ``claim_controller``."""
        epochs: list[int] = []
        view = self._run(_noting(claim.claim_controller(self._view, self.name, reconciles=True), epochs))
        self.epoch = epochs[0]
        return view.state

    def held(self, run: RunState) -> RunState:
        """``run``; ``Fenced`` when another controller has the office, or another launch the run."""
        if run.reconciler != self.epoch or self.name in run.superseded:
            raise Fenced(
                f"controller epoch {self.epoch} was replaced by {run.reconciler}",
                hint="another controller looks after this run",
            )
        return run

    def enter(self, payload: Mapping[str, Any], *, generation: int, op_id: str) -> RunState:
        """``run.state``, once. Raises as ``claim.enter``."""
        entering = claim.enter(
            self._view, payload, launch_id=self.name, epoch=self.epoch, generation=generation, op_id=op_id
        )
        return self._run(entering).state

    def demote(self, c: int, reason: str) -> RunState:
        """No restore chooses checkpoint ``c`` any more. Raises as ``claim.mark_corrupt``."""
        return self._run(claim.mark_corrupt(self._view, c, launch_id=self.name, reason=reason)).state

    def tier(self) -> Tier:
        """For hints, from a thread of their own."""
        return self._opened()

    def store(self, put: Callable[[Tier], object]) -> str:
        """Do something else with the root, with the same deadline; what went wrong, ``""``: nothing."""
        try:
            self._bounded.call(lambda _: put(self._opened()), self._deadline_s)
        except TierError as error:
            return error.message
        return ""


def _noting(claiming: Program[tuple[View, int]], epochs: list[int]) -> Program[View]:
    view, epoch = yield from claiming
    epochs.append(epoch)
    return view
