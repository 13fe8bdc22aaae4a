"""A run, a run directory with what agents and workers would leave there, and a controller, by hand."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from durable_core.commit import claim, ending
from durable_core.commit.effects import Program
from durable_core.commit.journal import Draft, View, append, replay
from durable_core.commit.state import RunState
from durable_core.engine import beats, words
from durable_core.engine.beats import Phase
from durable_core.engine.inspect import open_tier
from durable_core.engine.launched import RunFiles
from durable_core.engine.performer import Performer
from durable_core.engine.words import Facts, Member
from durable_core.format.record import Kind, Record
from durable_core.launch.books import record_name
from durable_core.launch.controller.loop import Controller, Settings
from durable_core.launch.controller.office import Office
from durable_core.launch.invariants import Terms
from durable_core.launch.liveness import Limit, Limits
from durable_core.launch.machine import GroupPhase
from durable_core.tier.base import Tier
from durable_core.tier.posix import PosixTier
from durable_core.types import Promise, Token

LAUNCH = "l1"
DIGEST = "sha256:" + "0" * 64
LIMITS = Limits(
    step=Limit(2.0, 6.0), first_step=Limit(2.0, 6.0), init=Limit(20.0, 60.0), restore=Limit(20.0, 60.0)
)
TERMS = Terms(join_s=30.0, drain_s=20.0, diagnosis_s=1.0, silence_s=5.0)


@dataclass
class FakeClock:
    wall: float = 1_700_000_000.0
    ids: int = 0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.wall - 1_699_999_000.0

    def sleep(self, seconds: float) -> None:
        self.wall += seconds

    def new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:032x}"


@dataclass
class World:
    """``ranks`` workers on one node. Wall and monotonic clock go together. ``kept``: where the run is."""

    root: Path
    run_dir: Path
    ranks: int = 2
    kept: Tier | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    view: View = field(default_factory=View)
    exits: dict[int, int] = field(default_factory=dict)
    writers: dict[int, beats.Writer] = field(default_factory=dict)
    stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.files = RunFiles(self.run_dir).prepare()
        self.tier = self.kept or PosixTier(self.root)
        self.attempt = self.generation = 0

    # --- the journal -------------------------------------------------------------------------

    def run(self, program: Program[Any]) -> Any:
        return Performer(self.tier, self.clock).run(program)

    def create(self, spec: dict[str, Any] | None = None) -> None:
        self.view = self.run(
            claim.create_run(
                View(), launch_id=record_name(LAUNCH), run_id="r" * 32, spec=spec or {}, spec_digest=DIGEST,
                seed=1, promise=Promise.BITWISE,
            )
        )  # fmt: skip

    def begin(self) -> int:
        """The next generation."""
        members = tuple(f"dp{rank}" for rank in range(self.ranks))
        claimed = self.run(
            claim.claim_generation(self.state_view(), launch_id=record_name(LAUNCH), members=members)
        )
        self.view = claimed.view
        self.attempt += 1
        self.exits.clear()
        for rank in range(self.ranks):
            self.files.clear(rank)
        self.writers.clear()
        self.generation = self.view.state.generation
        return self.generation

    def commit(self, step: int) -> int:
        token, view = self.token, self.state_view()
        c, head = view.state.next_c, view.state.head
        view = self.run(
            append(view, Draft.by(token, Kind.CHECKPOINT_ALLOCATED, {"c": c, "step": step, "parent": head}))
        )
        payload = {
            "c": c, "step": step, "parent": head, "manifest": f"checkpoints/m{c}", "manifest_digest": DIGEST,
            "bytes": 1, "bytes_written": 1, "tiers": ["disk"], "cursor_digest": DIGEST, "reuses": [],
            "ledger": None,
        }  # fmt: skip
        self.run(append(view, Draft.by(token, Kind.CHECKPOINT_COMMITTED, payload)))
        return c

    def failed(self, failure: str, *, step: int | None = None, further: Any = None, **evidence: Any) -> str:
        """As an agent records it; the op_id."""
        op_id = self.clock.new_id()
        self.run(
            ending.record_failure(
                self.state_view(), self.token, failure_class=failure, signature="s", evidence=evidence,
                step=step, op_id=op_id,
                further=further or {},
            )
        )  # fmt: skip
        return op_id

    def cancel(self) -> None:
        self.run(ending.cancel(self.state_view(), launch_id="o", principal="operator", reason="enough"))

    def succeed(self) -> None:
        view = self.state_view()
        self.run(ending.succeed(view, self.token, c=view.state.head, target=None))

    def state_view(self) -> View:
        view: View = self.run(replay())
        return view

    @property
    def state(self) -> RunState:
        return self.state_view().state

    @property
    def token(self) -> Token:
        state = self.state
        return Token(state.generation, state.launch_id)

    def records(self, kind: Kind | None = None) -> list[Record]:
        entries = [entry for entry in open_tier(self.tier).entries() if not entry.void]
        return [entry.record for entry in entries if kind in (None, entry.record.kind)]

    def states(self) -> list[str]:
        return [record.payload["state"] for record in self.records(Kind.RUN_STATE)]

    # --- the run directory -------------------------------------------------------------------

    def group(self, phase: GroupPhase = GroupPhase.UP, *, reason: str = "", host: str = "host0") -> None:
        members = tuple(
            Member(rank, 1000 + rank, host, 0, self.exits.get(rank)) for rank in range(self.ranks)
        )
        early = phase in (GroupPhase.RENDEZVOUS, GroupPhase.QUEUED, GroupPhase.PREFLIGHT)
        now = self.clock.now()
        words.write(
            self.files.facts,
            Facts(
                LAUNCH, self.attempt, phase.value, now, now, None if early else self.generation, self.ranks,
                () if early else members, reason=reason,
            ),
        )  # fmt: skip

    def beat(self, rank: int, phase: Phase, step: int = -1, *, own: float | None = None,
             generation: int | None = None) -> None:  # fmt: skip
        writer = self.writers.get(rank)
        if writer is None:
            writer = self.writers[rank] = beats.Writer(self.files.beat(rank), self.attempt)
            self.stack.callback(writer.close)
        if own is not None:
            writer.own(own)
        g = self.generation if generation is None else generation
        writer.beat(self.clock.monotonic(), phase, generation=g, step=step)

    def steps(self, step: int, *, own: dict[int, float] | None = None) -> None:
        """Every rank is at ``step``."""
        for rank in range(self.ranks):
            self.beat(rank, Phase.STEP, step, own=None if own is None else own[rank])

    def opened(self) -> None:
        words.write(
            self.files.opened, words.Opened(str(self.root), "r" * 32, self.generation, record_name(LAUNCH))
        )

    def requests(self) -> list[words.Request]:
        found = [words.read_request(path) for path in sorted(self.files.requests.glob("*.json"))]
        return [request for request in found if request is not None]

    def incidents(self) -> list[str]:
        return sorted(self.tier.list("incidents/"))

    # --- the controller ----------------------------------------------------------------------

    def controller(self, **settings: Any) -> Controller:
        given = {"terms": TERMS, "limits": LIMITS, **settings}
        made = Controller(
            self.run_dir, Settings(**given), self.clock,
            self.office, secrets=("hunter2secret",),
        )  # fmt: skip
        self.stack.callback(made.close)
        return made

    def office(self, root: str, kind: type[Office] = Office) -> Office:
        return kind(root, self.clock, LAUNCH, deadline_s=30.0, open_tier=lambda _: self.tier)

    def running(self, controller: Controller, *, spec: dict[str, Any] | None = None) -> None:
        """Up to RUNNING, in generation 1, at step 2."""
        self.create(spec)
        self.begin()
        self.opened()
        self.group()
        for step in (0, 1, 2):
            self.steps(step)
            self.clock.wall += 0.5
            controller.step()
        assert self.states()[-1] == "running"
