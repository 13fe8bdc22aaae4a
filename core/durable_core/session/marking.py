"""L5. Findings and known-good marks, in the journal: on the writer's thread."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from durable_core import events
from durable_core.clock import Clock
from durable_core.commit import marks
from durable_core.commit.journal import View
from durable_core.commit.retention import Retention
from durable_core.detect.base import Finding
from durable_core.engine.performer import Performer
from durable_core.errors import LostSlot, RecordRefused
from durable_core.session.integrity import Watch
from durable_core.session.status import Board
from durable_core.types import Token


class Marker:
    """A finding is written by whichever role found it: the coordinator's numbers may have been right."""

    def __init__(
        self, watch: Watch, performer: Performer, token: Token, role: str, board: Board, clock: Clock
    ) -> None:
        self._watch, self._performer, self._token, self._role = watch, performer, token, role
        self._board, self._clock = board, clock
        self._untold: deque[tuple[Finding, str]] = deque()

    def found(self, finding: Finding, action: str) -> None:
        """On the training thread; ``tell`` writes it."""
        self._untold.append((finding, action))

    def tell(self, view: View) -> View:
        """Journal what was found, and revoke what it speaks against. What fails is tried again after a
        commit.

        Raises as ``journal.append``.
        """
        if not self._untold:
            return view
        while self._untold:
            finding, action = self._untold[0]
            evidence = {
                "detector": finding.detector, "version": finding.version, "reason": finding.reason,
                "found": finding.step, "role": self._role, "suspects": list(finding.suspects),
                "action": action, "values": dict(finding.evidence),
            }  # fmt: skip
            view = self._performer.run(
                marks.record_finding(
                    view, self._token, failure_class=finding.failure, signature=finding.signature,
                    onset=finding.onset, evidence=evidence,
                )
            )  # fmt: skip
            self._untold.popleft()
        return self._performer.run(marks.revoke_tainted(view, self._token.launch_id))

    def after_commit(self, view: View) -> View:
        """The coordinator's: what others found is heeded, and what is vindicated by now is marked.

        Raises ``AppendInDoubt`` and the tier's errors; another commit will do as well.
        """
        if not self._watch.window:
            return view  # nobody judges
        vindicated = self._watch.vindicated()
        try:
            view = self._performer.run(marks.revoke_tainted(view, self._token.launch_id))
            if vindicated is None:
                return view
            view, info = self._performer.run(
                marks.mark_due(view, self._token.launch_id, vindicated.step, vindicated.evidence())
            )
        except (LostSlot, RecordRefused):
            return view  # other controllers are at work, or it was retired or found damaged just now
        if info is not None:
            names = tuple(each.name for each in vindicated.detectors)
            self._board.emit(events.KnownGoodMarked(self._clock.now(), info.c, info.step, names))
        return view

    def retention(self, declared: Retention) -> Retention:
        """At least the window of the slowest detector that judges (SDC-06)."""
        window = max(declared.detection_window_steps, self._watch.window)
        return replace(declared, detection_window_steps=window)
