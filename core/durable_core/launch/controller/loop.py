"""L5. The loop of a controller: look, move, attend, report.

Every effect follows from the journal and from what is seen, under an op_id that follows from them too. Killed
between any two, the next controller finds what was done and does the rest: a move is recorded before what it
asks for is asked, and a bundle is stored before the record that names it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from durable_core.clock import Clock
from durable_core.commit.state import Failure, RunState
from durable_core.engine import words
from durable_core.engine.beats import Beat
from durable_core.engine.launched import RunFiles
from durable_core.engine.words import Facts, Member
from durable_core.errors import DurableError, FencedError, LostSlot, TierError
from durable_core.format import layout
from durable_core.format.record import Kind
from durable_core.launch import declared, quarantine
from durable_core.launch.classes import F, Unit
from durable_core.launch.controller import incident, looking, report
from durable_core.launch.controller.asking import ask
from durable_core.launch.controller.looking import Glimpse
from durable_core.launch.controller.office import Office
from durable_core.launch.controller.watching import Watched
from durable_core.launch.evidence import Unfit
from durable_core.launch.invariants import (
    Invariant,
    Observation,
    Terms,
    Violation,
    failures,
    noted,
    violations,
)
from durable_core.launch.liveness import Limits
from durable_core.launch.machine import ACTIVE, Effect, Event, GroupPhase, State, current, move
from durable_core.launch.reconcile import Due, due, operation
from durable_core.spec.codec import decode

#: Seconds between two looks, and for one question to the journal.
POLL_S = 0.5
DEADLINE_S = 5.0
#: Members that a report shows.
MAX_ROWS = 256
_UP = frozenset({GroupPhase.STARTING, GroupPhase.UP, GroupPhase.DRAINING})
#: What of a report makes a new one due at once.
_CHANGING = ("generation", "state", "violations", "trouble", "stragglers")

#: Seconds that a script may go on for after its run has succeeded: an evaluation, an export. A process whose
#: script has ended has the limit of the phase EXIT.
AFTER_S = 86400.0


@dataclass(frozen=True)
class Settings:
    """``evict``: a straggler's node is drained once it is named; not by itself, for it costs a restart.
    ``pilot``: what the evidence of every state says of the run's pilot, ``""`` for nothing."""

    terms: Terms = field(default_factory=Terms)
    limits: Limits = field(default_factory=Limits)
    evict: bool = False
    pilot: str = ""


class Controller:
    """``launch``: as in ``DURABLE_LAUNCH_ID``; ``root``: of the run, ``""``: the one that its workers open.
    ``open_office``: from a root to the books. ``secrets``: values that no bundle may hold."""

    def __init__(
        self, run_dir: Path, settings: Settings, clock: Clock, open_office: Callable[[str], Office],
        *, root: str = "", secrets: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.files, self.settings, self.clock = RunFiles(run_dir), settings, clock
        self._open_office, self._root, self._secrets = open_office, root, secrets
        self.office: Office | None = None
        self._teller: report.Teller | None = None
        self._watched = Watched(settings.limits)
        self._terms, self._spec = settings.terms, ""
        self._stand: tuple[int, str] = (-1, "")  # generation and op_id of the state that was last seen
        self._stand_since = 0.0
        self._over_since: float | None = None  # when the success was first seen
        self._run: RunState | None = None
        self._kept: dict[int, Glimpse] = {}  # the last look at a generation, for bundles
        self._bundled: set[str] = set()
        self.trouble = ""

    # --- the loop ----------------------------------------------------------------------------

    def run(self, stopped: Callable[[], bool], wait: Callable[[float], object]) -> None:
        """Until ``stopped``. ``Fenced`` when another controller looks after the run."""
        while not stopped():
            self.step()
            wait(POLL_S)

    def close(self) -> None:
        if self._teller is not None:
            self._teller.close(1.0)

    def step(self) -> None:
        """One look, and all that follows from it. Trouble with the store is told, and looked past."""
        glimpse = looking.look(self.files.root)
        try:
            self._run = self._looked_up()
            self.trouble = ""
        except (TierError, LostSlot) as error:
            self.trouble = error.message
        if self._run is None:
            return
        seen = self._observe(self._run, glimpse)
        if not self.trouble:
            try:
                seen = self._move(seen, glimpse)
                self._attend(seen)
                self._maintain(seen.run)
            except (TierError, LostSlot) as error:
                self.trouble = error.message
            except FencedError:
                pass  # a generation, an end or a controller came meanwhile: the next look says which
        self._report(seen)

    def _looked_up(self) -> RunState | None:
        """The run, under our office; ``None`` while there is none."""
        if self.office is None:
            if not self._root:
                opened = words.read_opened(self.files.opened)
                self._root = "" if opened is None else opened.root
            if not self._root:
                return None
            self.office = self._open_office(self._root)
        run = self.office.state()
        if run is None:
            return None
        if not self.office.epoch:
            run = self.office.take()
            self._teller = report.Teller(self.office.tier(), self.clock)
        return self.office.held(run)

    def _observe(self, run: RunState, glimpse: Glimpse) -> Observation:
        now = self.clock.monotonic()
        if run.spec_digest != self._spec:
            self._spec, self._terms = run.spec_digest, _terms(run, self.settings.terms)
        stand = (run.generation, "" if run.phase is None else run.phase.op_id)
        if stand != self._stand:
            self._stand, self._stand_since = stand, now
        seen = Observation(
            run, glimpse.facts, glimpse.beats, self.clock.now(), now - self._stand_since, mute=glimpse.mute
        )
        self._watched = self._watched.seen(seen, glimpse, now)
        if any(facts.members for facts in seen.groups if facts.generation == run.generation):
            self._kept = {g: kept for g, kept in self._kept.items() if g >= run.generation - 1}
            self._kept[run.generation] = glimpse
        return replace(seen, found=self._watched.found, evict=self._to_evict(seen))

    # --- moving ------------------------------------------------------------------------------

    def _move(self, seen: Observation, glimpse: Glimpse) -> Observation:
        """Every move that is due, one after the other: a look that was missed is made up for."""
        for _ in State:  # no chain is longer; what still is due then is so at the next look
            next_one = due(seen, self._terms)
            if next_one is None:
                return seen
            run = self._enter(seen.run, next_one, glimpse)
            seen = replace(seen, run=run, in_state_s=0.0)
            self._stand = (run.generation, "" if run.phase is None else run.phase.op_id)
            self._stand_since = self.clock.monotonic()
        return seen

    def _enter(self, run: RunState, event: Due, glimpse: Glimpse) -> RunState:
        assert self.office is not None
        state = current(run)
        row = move(state, event.event)
        op_id = operation(run, event.event)
        evidence = {**event.evidence, **({"pilot": self.settings.pilot} if self.settings.pilot else {})}
        if Effect.BUNDLE in row.effects and event.failure is not None:
            what = {
                "about": "run.state", "op_id": op_id, "generation": run.generation, "state": state.value,
                "event": event.event.value, "reason": event.reason, "evidence": evidence,
                "time": self.clock.now(),
            }  # fmt: skip
            if self._store(layout.incident_key(run.generation, op_id), what, glimpse):
                evidence["incident"] = layout.incident_key(run.generation, op_id)
        payload: dict[str, Any] = {
            "state": row.target.value, "reason": event.reason, "evidence": evidence, "from": state.value,
            "event": event.event.value,
        }  # fmt: skip
        if event.failure is not None:
            asks = {Effect.ASK_RESTART: "restart", Effect.ASK_DRAIN: "drain"}
            kind = next((asks[effect] for effect in row.effects if effect in asks), "")
            payload |= {"ask": kind, "failure": event.failure.value}
        return self.office.enter(payload, generation=run.generation, op_id=op_id)

    # --- attending: what follows from the state, as long as it is not done ---------------------

    def _attend(self, seen: Observation) -> None:
        run, state = seen.run, current(seen.run)
        places = looking.nodes(self.files.root)
        up = [facts for facts in seen.groups if facts.phase in _UP]
        if not up:
            return
        anchor = operation(run, Event.DOUBTED) if run.phase is None else run.phase.op_id
        if state in ACTIVE and any(one.invariant is Invariant.PROGRESS for one in seen.found):
            self._ask(places.values(), "dump", anchor, run.generation, reason="a member stands still")
        if state is State.CANCELLED:
            self._ask([self.files], "restart", operation(run, Event.CANCELLED), run.generation,
                      failure=F.F19.value, reason="the run was cancelled")  # fmt: skip
        if self._lingers(state):
            self._ask([self.files], "restart", operation(run, Event.COMPLETED), run.generation,
                      failure=F.F5.value,
                      reason="the run has succeeded, and a worker does not end")  # fmt: skip
        if run.phase is None or not run.phase.payload.get("ask"):
            return
        said = run.phase.payload
        self._ask([self.files], said["ask"], run.phase.op_id, run.generation, failure=said.get("failure", ""),
                  reason=said["reason"], evidence=said["evidence"])  # fmt: skip

    def _ask(self, places: Iterable[RunFiles], kind: str, op_id: str, generation: int, **more: Any) -> None:
        """Where there is no room for it now, it is asked at the next look."""
        try:
            ask(places, kind, op_id, generation, **more)
        except OSError as error:
            self.trouble = f"the agent cannot be asked for a {kind}: {error}"

    def _lingers(self, state: State) -> bool:
        """Whether a group is up for longer after the success than an end may take: nothing is waited for."""
        if state is not State.SUCCEEDED:
            self._over_since = None
            return False
        now = self.clock.monotonic()
        self._over_since = now if self._over_since is None else self._over_since
        over = any((self.files.root / "ended").glob("*"))
        return now - self._over_since > (self.settings.limits.exit.hard_s if over else AFTER_S)

    def _maintain(self, run: RunState) -> None:
        """Quarantines and demotions that are due, and the bundles of failures that agents recorded."""
        assert self.office is not None
        for payload in tuple(quarantine.unrecorded(run, self._terms.quarantine)):
            self.office.maintain(Kind.QUARANTINE, payload)
        if run.terminal is None:
            demoted = quarantine.demotable(run, self._terms.probation_steps)
            if demoted is not None:
                c, reason = demoted
                self.office.demote(c, f"demoted: it {reason}")
        for failure in _recent(run):
            if failure.op_id in self._bundled or noted(failure, "incident"):
                continue
            glimpse = self._kept.get(failure.generation, Glimpse())
            what = {"about": "failure", "op_id": failure.op_id, "generation": failure.generation,
                    "time": failure.time, **failure.payload}  # fmt: skip
            if self._store(layout.incident_key(failure.generation, failure.op_id), what, glimpse):
                self._bundled.add(failure.op_id)

    def _store(self, key: str, what: Mapping[str, Any], glimpse: Glimpse) -> bool:
        """Whether the bundle is there. What another controller stored under that key stands."""
        assert self.office is not None
        data = incident.bundle(what, glimpse, self._secrets)
        trouble = self.office.store(lambda tier: tier.put_if_absent(key, data))
        self.trouble = trouble or self.trouble
        return not trouble

    def _to_evict(self, seen: Observation) -> Unfit | None:
        """The node of a named straggler, if it is not in quarantine: once it is, it was left."""
        if not self.settings.evict:
            return None
        out = quarantine.quarantined(seen.run)
        hosts = {member.rank: member.host for member in seen.members}
        for slow in self._watched.stragglers:
            host = hosts.get(slow.rank, "")
            if host and (Unit.NODE, host) not in out:
                return Unfit(host, slow.reason, slow.rank)
        return None

    # --- reporting ---------------------------------------------------------------------------

    def _report(self, seen: Observation) -> None:
        if self._teller is None or self.office is None:
            return
        run, now = seen.run, self.clock.monotonic()
        found = violations(seen, self._terms) if current(run) in ACTIVE else ()
        document = {
            "launch_id": self.office.name, "epoch": self.office.epoch, "pid": os.getpid(),
            "host": socket.gethostname(), "run_id": run.run_id, "generation": run.generation,
            "state": current(run).value, "since": _since(run), "expected": seen.expected,
            "violations": [_violation(one, seen.time) for one in found],
            "stragglers": [
                {**asdict(slow), "ratio": round(slow.ratio, 3)} for slow in self._watched.stragglers
            ],
            "members": _members(seen, now),
            "agents": {str(node): _agent(facts) for node, facts in seen.facts.items()},
            "trouble": self.trouble, "missed": self._teller.missed,
        }  # fmt: skip
        self._teller.tell(document, changing=_CHANGING)


def _terms(run: RunState, given: Terms) -> Terms:
    """A spec of an older or newer library declares nothing that is understood here."""
    with suppress(DurableError):
        return declared.terms(decode(run.spec), given)
    return given


def _recent(run: RunState) -> Iterator[Failure]:
    """Of the live generation and the one before: older ones had their controller."""
    yield from failures(run)
    for failure in reversed(run.failures):
        if failure.generation < run.generation - 1:
            return
        if failure.generation == run.generation - 1:
            yield failure


def _since(run: RunState) -> float:
    if run.phase is not None:
        return run.phase.time
    newest = next(reversed(run.lives), None)
    return 0.0 if newest is None else newest.began


def _agent(facts: Facts) -> dict[str, Any]:
    return {"phase": facts.phase, "reason": facts.reason, "standbys": facts.standbys, "time": facts.time}


def _violation(one: Violation, now: float) -> dict[str, Any]:
    return {
        "invariant": one.invariant.value, "reason": one.reason, "rank": one.rank, "confirmed": one.confirmed,
        "since": round(now - one.for_s, 1), "failure": None if one.failure is None else one.failure.value,
        "evidence": dict(one.evidence),
    }  # fmt: skip


def _members(seen: Observation, now: float) -> list[dict[str, Any]]:
    """By rank; of a large group those that have not beaten for longest."""
    rows = [_member(member, seen.beat(member), now) for member in seen.members]
    rows.sort(key=lambda row: (row["age_s"] is not None, -(row["age_s"] or 0.0)))
    return sorted(rows[:MAX_ROWS], key=lambda row: int(row["rank"]))


def _member(member: Member, beat: Beat | None, now: float) -> dict[str, Any]:
    row = {
        "rank": member.rank,
        "pid": member.pid,
        "host": member.host,
        "node": member.node,
        "exit": member.exit,
    }
    if beat is None:
        return {**row, "phase": None, "step": None, "durable": None, "age_s": None}
    age = round(max(0.0, now - beat.time), 3)
    return {**row, "phase": beat.phase.name, "step": beat.step, "durable": beat.durable, "age_s": age}
