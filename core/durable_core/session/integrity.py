"""L5. Numeric faults, on the training thread: what every boundary tells is judged by the detectors that are
on.

A finding is an event and a failure in the journal, and by policy the end of this process. What was judged and
found clean vindicates the checkpoints before it (``session.marking``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from durable_core import events
from durable_core.clock import Clock
from durable_core.detect.base import About, Finding, Step
from durable_core.detect.finite import NonFinite
from durable_core.detect.policy import Integrity, OnNumeric
from durable_core.detect.recompute import Recompute, Twice
from durable_core.detect.replay import Replay, Replayed
from durable_core.detect.replicas import Digests, Replicas
from durable_core.detect.spike import Spike
from durable_core.errors import NumericFault, UsageError
from durable_core.session.status import Board
from durable_core.session.world import World
from durable_core.state import bits

#: Steps whose numbers lie on a device before they are read, together: each time, the device is waited for.
READ_EVERY = 16
#: Names of tensors that differ, at most.
NAMED = 5

Parameters = Iterable[tuple[str, Tensor]]


@dataclass(frozen=True)
class Vindicated:
    """States up to ``step`` were judged by ``detectors``, up to step ``through``, and nothing was found."""

    step: int
    through: int
    detectors: tuple[About, ...]

    def evidence(self) -> dict[str, Any]:
        """For the journal."""
        judges = [
            {"name": each.name, "version": each.version, "period": each.period, "window": each.window}
            for each in self.detectors
        ]
        return {"judged_through": self.through, "detectors": judges}


class Watch:
    """``record`` is told of every finding and what is done about it. ``begin`` comes first; ``vindicated``
    and ``window`` may be asked on another thread."""

    def __init__(
        self, settings: Integrity, world: World, board: Board, clock: Clock,
        record: Callable[[Finding, OnNumeric], None],
    ) -> None:  # fmt: skip
        self._settings, self._world, self._board, self._clock = settings, world, board, clock
        self._record = record
        self._action = settings.decided()
        spikes = settings.spikes
        self._spikes = [] if spikes is None else [Spike("loss", spikes), Spike("grad_norm", spikes)]
        self._numbers: list[NonFinite | Spike] = [
            *([NonFinite()] if settings.non_finite else []),
            *self._spikes,
        ]
        self._replay = Replay()
        self._replicas: Replicas | None = None
        self._recompute: Recompute | None = None
        self._restored = self._step = 0
        self._clean: deque[int] = deque(maxlen=max((each.about.window for each in self._numbers), default=0))
        self._through: int | None = None  # states up to it have been vindicated by the numbers that followed
        self._fed = False
        self._unread: list[tuple[Step, Mapping[str, Tensor]]] = []
        self._recomputed = -1
        self._fault: NumericFault | None = None

    def begin(self, step: int, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Training goes on after ``step``; ``rows``: of the metrics window that was restored with it."""
        self._restored = self._step = step
        if self._settings.replicas_every is not None and len(self._world.roles) > 1:
            self._replicas = Replicas(self._settings.replicas_every, step)
        if self._settings.recompute_every is not None:
            self._recompute = Recompute(self._settings.recompute_every, step)
        history = [Step(row["step"], row.get("loss"), row.get("grad_norm")) for row in rows]
        for spike in self._spikes:
            spike.warm(history)

    # --- at every boundary -------------------------------------------------------------------

    def note(
        self, sample: Step, difference: str = "", unread: Mapping[str, Tensor] | None = None
    ) -> None:
        """The numbers of one step; ``difference``: from its first execution, when it is done again.

        ``unread``: ``loss`` and ``grad_norm`` that lie on a device. They are read, and judged, ``READ_EVERY``
        steps together, and before anything is saved.
        """
        if difference:
            self._tell(self._replay.judge(Replayed(sample.step, self._restored, difference)))
        if unread:
            self._unread.append((sample, {name: value.detach().clone() for name, value in unread.items()}))
            if len(self._unread) < READ_EVERY:
                return
            self._read()
        else:
            self._read()
            self._judge(sample)

    def _read(self) -> None:
        pending, self._unread = self._unread, []
        flat = [value.reshape(()).float() for _, values in pending for value in values.values()]
        numbers = iter(torch.stack(flat).tolist() if flat else ())
        for sample, values in pending:
            self._judge(replace(sample, **{name: next(numbers) for name in values}))

    def _judge(self, sample: Step) -> None:
        self._step = sample.step
        for detector in self._numbers:
            self._tell(detector.judge(sample))
        reported = sample.loss is not None or sample.grad_norm is not None
        if not (self._numbers and sample.updated and reported):
            return
        self._fed = True
        if any(detector.standing for detector in self._numbers):
            self._clean.clear()
            return
        self._clean.append(sample.step)
        if len(self._clean) == self._clean.maxlen:
            self._through = self._clean[0] - 1

    def examine(self, step: int, parameters: Callable[[], Parameters]) -> None:
        """What is due at this boundary; raises ``NumericFault`` for what was found until now, if that is the
        policy. ``UsageError`` when a step was to be computed twice and was not."""
        if self._replicas is not None and self._due(self._replicas.about.period, step, self._replicas.agreed):
            self._tell(self._replicas.judge(self._compared(step, parameters)))
        if self.recomputes(step) and step != self._recomputed:
            raise UsageError(
                f"recompute_every={self._settings.recompute_every}, and step {step} was computed once",
                hint="compute gradients in run.recompute(lambda: ...), at every step",
            )
        self.raise_found()

    def before_saving(self) -> None:
        """Nothing may be saved, or be called a success, after a finding that ends the process."""
        self._read()
        self.raise_found()

    def raise_found(self) -> None:
        """``NumericFault`` for what was found until now, if that is the policy."""
        if self._fault is not None:
            raise self._fault

    def recomputes(self, step: int) -> bool:
        return self._recompute is not None and step % self._recompute.about.period == 0

    def recomputed(self, step: int, first: str, second: str) -> None:
        assert self._recompute is not None
        self._recomputed = step
        self._tell(self._recompute.judge(Twice(step, first, second)))

    def _due(self, period: int, step: int, last: int | None) -> bool:
        return step % period == 0 or (last is None and step == self._restored + 1)

    def _compared(self, step: int, parameters: Callable[[], Parameters]) -> Digests:
        """Collective. Only replicas that differ say in which tensors."""
        mine, roles = bits.sums(parameters()), self._world.roles
        whole = self._world.all_gather(bits.digest(mine))
        if len(set(whole)) == 1:
            return Digests(step, dict(zip(roles, whole, strict=True)))
        everyone = self._world.all_gather(mine)
        names = [name for name in mine if len({sums.get(name) for sums in everyone}) > 1]
        return Digests(step, dict(zip(roles, whole, strict=True)), tuple(names[:NAMED]))

    def _tell(self, finding: Finding | None) -> None:
        if finding is None:
            return
        self._board.emit(
            events.NumericFaultFound(
                self._clock.now(), finding.step, finding.onset, finding.failure, finding.detector,
                finding.reason, self._action, finding.suspects,
            )
        )  # fmt: skip
        self._record(finding, self._action)
        if self._action == "stop" and self._fault is None:
            self._fault = NumericFault(
                f"{finding.failure}, found by {finding.detector}: {finding.reason}", failure=finding.failure,
                signature=finding.signature, onset=finding.onset, found=finding.step,
                suspects=finding.suspects,
                hint=f"start it again: it goes back to a checkpoint before step {finding.onset}",
            )  # fmt: skip

    # --- what has been judged ----------------------------------------------------------------

    @property
    def _judges(self) -> list[About]:
        """Those that had something to judge."""
        judges = [each.about for each in self._numbers] if self._fed else []
        return judges + [each.about for each in (self._replicas, self._recompute) if each is not None]

    @property
    def window(self) -> int:
        """Of the slowest detector that judges, in steps; 0 when none does."""
        return max((about.window for about in self._judges), default=0)

    def vindicated(self) -> Vindicated | None:
        """The newest step whose state all that judge have vindicated; ``None``: none yet, or trouble
        stands."""
        if self._replay.standing or not self._judges:
            return None
        steps = [each.agreed for each in (self._replicas, self._recompute) if each is not None]
        steps += [self._through] if self._fed else []
        if any(step is None for step in steps):
            return None
        return Vindicated(min(step for step in steps if step is not None), self._step, tuple(self._judges))
