"""L5. What a launch is held to, from its flags and its run file: how often, how long, for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from durable_core.clock import Clock
from durable_core.commit.state import RunState
from durable_core.engine.roots import open_root
from durable_core.errors import DurableError
from durable_core.launch import declared
from durable_core.launch.agent.flags import Flags
from durable_core.launch.ending import device_seconds, wall_seconds
from durable_core.launch.past import past
from durable_core.launch.preflight import Node, Target, run
from durable_core.launch.retry import Policy
from durable_core.spec import Budgets, RunSpec, runfile
from durable_core.spec.codec import decode

#: Seconds before a start is tried again that failed for something which may pass by itself.
PREFLIGHT_WAITS_S = (1.0, 5.0, 15.0)


@dataclass(frozen=True)
class Terms:
    """``file``: the run file, frozen at ``frozen``; ``None``: there is none, and the script's own spec
    holds."""

    flags: Flags
    file: runfile.Declared | None = None
    frozen: Path | None = None

    @staticmethod
    def of(flags: Flags, run_dir: Path) -> Terms:
        """``UsageError`` for a run file that leaves open what it must state."""
        if not flags.spec:
            return Terms(flags)
        frozen = run_dir / "spec.json"
        return Terms(flags, runfile.freeze(flags.spec, frozen), frozen)

    @property
    def spec(self) -> RunSpec:
        return RunSpec() if self.file is None else self.file.spec

    def declared(self, state: RunState) -> RunSpec:
        """What binds a launch of the run: its run file, or, where it is started again without, what the run
        was begun with. Of another version of the library nothing is understood here."""
        if self.file is None and state.exists:
            with suppress(DurableError):
                return decode(state.spec)
        return self.spec

    def policy(self, state: RunState) -> Policy:
        """The run file's budgets bind every launch, and end the run; ``--max-restarts`` binds this launch,
        and takes the place of a budget that nobody declared."""
        spec = self.declared(state)
        policy, asked = declared.policy(spec), self.flags.max_restarts
        policy = replace(policy, image=self.spec.provenance.image or "")  # this launch's, not the journal's
        if asked is None:
            return policy
        open_ended = spec.failure.max_restarts is None
        return replace(
            policy,
            launch_restarts=asked,
            restarts=max(asked, policy.restarts) if open_ended else policy.restarts,
        )

    def spent(self, clock: Clock) -> Callable[[RunState], Mapping[str, float]]:
        """What counts against the budgets of the run file."""
        return lambda state: _spent(self.declared(state).budgets, state, clock.now())

    @property
    def told(self) -> dict[str, str]:
        """What all workers of the launch are told."""
        spec = "" if self.frozen is None else str(self.frozen)
        timeout = self.spec.failure.collective_timeout_seconds
        told = {
            "DURABLE_ON_NUMERIC": self.flags.on_numeric,
            "DURABLE_SPEC": spec,
            "DURABLE_COLLECTIVE_TIMEOUT_S": "" if timeout is None else str(timeout),
        }
        return {name: value for name, value in told.items() if value}

    def preflight(self, clock: Clock, say: Callable[[str], None], wait: Callable[[float], bool]) -> str:
        """Why the run cannot be started here; ``""``: nothing stands in the way, or nothing can be checked
        yet.

        ``wait`` returns whether it was interrupted. What may pass by itself is tried again a few times.
        """
        flags, config = self.flags, self.flags.config
        if not flags.preflight or not flags.root:
            return ""
        target = Target(
            open_root(flags.root), self.spec, workers=config.nproc_per_node * config.max_nodes,
            local=config.nproc_per_node, nodes={"this node": Node.here()}, clock=clock,
        )  # fmt: skip
        for pause in (*PREFLIGHT_WAITS_S, 0.0):
            report = run(target)
            if not report.transient or not pause:
                break
            say(f"preflight: {report.reason}; trying again in {pause:g} s")
            if wait(pause):
                break
        for note in report.notes:
            say(f"preflight: {note}")
        return report.reason


def _spent(budgets: Budgets, state: RunState, now: float) -> dict[str, float]:
    return declared.spent(
        budgets, device_hours=device_seconds(state, now) / 3600, wall_seconds=wall_seconds(state, now),
        failures=sum(one.charged for one in past(state)),
        lost_steps=_lost(state),
    )  # fmt: skip


def _lost(state: RunState) -> int:
    """Steps between a failure and the newest commit of its generation, over all failures."""
    newest: dict[int, int] = {}
    for info in state.checkpoints.values():
        if info.was_committed:
            newest[info.generation] = max(newest.get(info.generation, 0), info.step)
    steps = [(failure.payload["step"], newest.get(failure.generation)) for failure in state.failures]
    return sum(max(0, step - kept) for step, kept in steps if step is not None and kept is not None)
