"""What must hold of every history, said a second time and independently of ``commit.fold``.

The auditor is told every record as it becomes visible, with the verdict of the system under test, and
keeps a plain model of its own. It never consults the fold: a rule that is missing there, or wrong,
shows here as a violation. All of it is pure; the simulator and the model check feed it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from durable_core.format import digests, layout
from durable_core.format import ledger as ledgers
from durable_core.format.record import Kind, Record
from durable_core.testing.facts import Fact, Replaced, Witness
from durable_core.testing.sim.content import ROOT, Model, advance
from durable_core.testing.sim.reading import Broken, Get, read_checkpoint

_WORKER = frozenset(
    {
        Kind.CHECKPOINT_ALLOCATED, Kind.CHECKPOINT_COMMITTED, Kind.CHECKPOINT_ABORTED, Kind.FAILURE,
        Kind.PROMISE_LOWERED, Kind.RUN_DRAINING, Kind.RUN_SUCCEEDED, Kind.RUN_FAILED,
    }
)  # fmt: skip
_HELD = ("committed", "corrupt")
_DOUBTED = ("F11", "F12", "F13")


class Auditor:
    """A second opinion on a journal. ``violations`` grows; nothing is raised.

    ``explicit``: restore points may be named by a person, and need not be the newest. ``witness``: asked
    about adopted checkpoints, which hold what another generation trained.
    """

    def __init__(self, *, explicit: bool = False, witness: Witness | None = None) -> None:
        self.explicit = explicit
        self.witness = witness
        self.violations: list[str] = []
        self.facts: dict[int, Fact] = {}
        self.names: dict[str, int] = {}  # prefix -> c, ever
        self.generation = 0
        self.launch = ""
        self.active = False
        self.superseded: set[str] = set()
        self.restore_point: int | None = None
        self.head: int | None = None
        self.epoch = 0
        self.reconciler = 0
        self.created = False
        self.ended = ""
        self.end = -1
        self.summarized = False
        self.promise = ""
        self.fork: tuple[str, int | None] | None = None  # launch, origin
        self.forked = False  # the current generation began a fork
        self.members: tuple[str, ...] = ()
        self.replaced = Replaced()
        self.doubted: set[int] = set()  # generations that reported numeric or integrity trouble
        self.voids = 0
        self.marks: frozenset[str] = frozenset()

    def complain(self, message: str) -> None:
        self.violations.append(message)

    def observe(self, record: Record, effective: bool) -> None:
        """One more record, in the order of the journal."""
        if not effective:
            self.voids += 1
            return
        where = f"slot {record.seq}, {record.kind.value} of g{record.generation}"
        if not self.created and record.kind not in (Kind.RUN_CREATED, Kind.NOOP):
            self.complain(f"{where}: effective although no run exists")
        if record.kind in _WORKER:
            self._worker(record, where)
        rule = self._RULES.get(record.kind)
        if rule is not None:
            rule(self, record, where)

    # -- who may write

    def _worker(self, record: Record, where: str) -> None:
        if record.generation != self.generation:
            self.complain(f"{where}: effective although generation {self.generation} had started")
        elif record.launch_id != self.launch:
            self.complain(f"{where}: effective although the generation is launch {self.launch}'s")
        if self.ended or not self.active:
            self.complain(f"{where}: effective although the run had ended")

    def _create(self, record: Record, where: str) -> None:
        if self.created:
            self.complain(f"{where}: a second run in one journal")
        self.created, self.promise = True, record.payload["promise"]

    def _start(self, record: Record, where: str) -> None:
        c = record.payload["restore_point"]
        if record.generation != self.generation + 1:
            self.complain(f"{where}: follows generation {self.generation}")
        if record.launch_id in self.superseded and not record.payload["takeover"]:
            self.complain(f"{where}: a superseded launch fenced the healthy one")
        if self.ended:
            self.complain(f"{where}: effective although the run had ended")
        committed = any(fact.fate in ("committed", "corrupt", "retired") for fact in self.facts.values())
        if c is None and committed:
            self.complain(f"{where}: starts over although checkpoints are committed")
        if c is not None and (c not in self.facts or self.facts[c].fate != "committed"):
            self.complain(f"{where}: restores from c{c}, which is not usable")
        due = self.newest_usable()
        if self.fork is not None and self.fork[0] == record.launch_id:
            due = self.fork[1]
            if c != due:
                self.complain(f"{where}: starts from c{c}, but its launch forked from c{due}")
        if c != due and not self.explicit:
            self.complain(f"{where}: restores from c{c} although c{due} is committed")
        self.forked = self.fork is not None and self.fork[0] == record.launch_id
        self.replaced = Replaced(self.generation, self.head, self.members)
        self.members = tuple(record.payload["members"])
        if self.launch and self.launch != record.launch_id:
            self.superseded.add(self.launch)
        self.superseded.discard(record.launch_id)
        self.generation, self.launch, self.active = record.generation, record.launch_id, True
        self.restore_point = self.head = c
        self.fork = None

    def _fork(self, record: Record, where: str) -> None:
        origin = record.payload["from"]
        if record.generation != self.generation + 1:
            self.complain(f"{where}: follows generation {self.generation}")
        if origin not in self.facts or self.facts[origin].fate != "committed":
            self.complain(f"{where}: forks from c{origin}, which is not usable")
        self.fork = (record.launch_id, origin)

    def _lower(self, record: Record, where: str) -> None:
        if record.payload["from"] != self.promise:
            self.complain(f"{where}: lowers {record.payload['from']}, but the promise is {self.promise}")
        self.promise = record.payload["to"]

    def newest_usable(self) -> int | None:
        """The newest sound checkpoint of the lineage: what nothing but a person may pass over."""
        c = self.head
        while c is not None and self.facts[c].fate != "committed":
            c = self.facts[c].parent
        return c

    # -- checkpoints

    def _allocate(self, record: Record, where: str) -> None:
        p = record.payload
        c = p["c"]
        if c in self.facts:
            self.complain(f"{where}: reuses number c{c}")
        fact = Fact(
            c, record.generation, p["step"], p["parent"], record.op_id[:8], adopted=p.get("adopted"),
            marks=self.marks,
        )  # fmt: skip
        if fact.adopted is not None:
            self._adopt(fact, where)
        if fact.name.prefix in self.names:
            self.complain(f"{where}: reuses prefix {fact.name.prefix}")
        self.names[fact.name.prefix] = c
        self.facts[c] = fact

    def _adopt(self, fact: Fact, where: str) -> None:
        """Adoption comes first in a generation, and takes up where the one it replaced left off."""
        replaced = self.replaced
        if fact.adopted != {"generation": replaced.generation, "step": fact.step}:
            self.complain(f"{where}: adopts {fact.adopted}, but replaced generation {replaced.generation}")
        own = [
            other for other in self.facts.values()
            if other.generation == fact.generation and (other.adopted is None or other.payload)
        ]  # fmt: skip
        if own:
            self.complain(f"{where}: adopts after a history of its own, c{own[0].c}")
        if self.restore_point != replaced.head and not self.explicit:
            self.complain(f"{where}: adopts although it went back behind c{replaced.head}")
        if set(self.members) != set(replaced.members):
            self.complain(f"{where}: adopts for other roles than sealed")
        if self.forked:
            self.complain(f"{where}: adopts in a fork")
        if replaced.generation in self.doubted:
            self.complain(f"{where}: adopts what generation {replaced.generation} itself doubted")

    def _failure(self, record: Record, where: str) -> None:
        if record.payload["class"] in _DOUBTED:
            self.doubted.add(record.generation)

    def _commit(self, record: Record, where: str) -> None:
        p = record.payload
        fact = self.facts.get(p["c"])
        if fact is None or fact.fate != "allocated" or fact.generation != record.generation:
            self.complain(f"{where}: commits c{p['c']}, which this generation has not open")
            return
        if p["parent"] != self.head:
            self.complain(f"{where}: parent c{p['parent']} is not the head c{self.head}")
        if (p["step"], p["parent"]) != (fact.step, fact.parent):
            self.complain(f"{where}: not the step and parent that were allocated")
        if self.head is not None and p["step"] <= self.facts[self.head].step:
            self.complain(f"{where}: step {p['step']} does not exceed the head's")
        reusable = set() if self.head is None else {self.head, *self.facts[self.head].payload["reuses"]}
        for c in p["reuses"]:
            if c not in reusable:
                self.complain(f"{where}: reuses objects of c{c}, which its parent does not")
        if p["reuses"] and fact.marks != self.marks:
            self.complain(f"{where}: reuses objects while damage has been found since it was planned")
        fact.fate, fact.payload = "committed", p
        self.head = fact.c

    def _abort(self, record: Record, where: str) -> None:
        fact = self.facts.get(record.payload["c"])
        if fact is None or fact.fate != "allocated":
            self.complain(f"{where}: aborts what is not open")
            return
        fact.fate = "aborted"

    def _succeed(self, record: Record, where: str) -> None:
        if record.payload["c"] != self.head:
            self.complain(f"{where}: the final checkpoint is not the head")
        self._end(record, where)

    def _end(self, record: Record, where: str) -> None:
        if self.ended:
            self.complain(f"{where}: a second end")
        self.ended, self.active, self.end = record.kind.value, False, record.seq

    def _cancel(self, record: Record, where: str) -> None:
        if record.payload["principal"] != "operator":
            self.complain(f"{where}: {record.payload['principal']} may not cancel")
        self._end(record, where)

    def _extend(self, record: Record, where: str) -> None:
        if self.ended != Kind.RUN_SUCCEEDED.value:
            self.complain(f"{where}: extends a run that has not succeeded")
        self.ended, self.summarized = "", False

    # -- maintenance

    def _summary(self, record: Record, where: str) -> None:
        if record.epoch != self.epoch:
            self.complain(f"{where}: effective under epoch {record.epoch}, current is {self.epoch}")
        if not self.ended or record.payload["end"] != self.end:
            self.complain(f"{where}: sums up no end, or another one")
        if self.summarized:
            self.complain(f"{where}: a second summary")
        self.summarized = True

    def _claim(self, record: Record, where: str) -> None:
        self._not_superseded(record, where)
        if record.epoch != self.epoch + 1:
            self.complain(f"{where}: epoch {record.epoch} follows {self.epoch}")
        self.epoch = record.epoch
        if record.payload.get("reconciles"):
            self.reconciler = record.epoch

    def _state(self, record: Record, where: str) -> None:
        if record.epoch != self.reconciler:
            self.complain(f"{where}: under epoch {record.epoch}, but {self.reconciler} reconciles")
        if record.generation != self.generation:
            self.complain(f"{where}: said of g{record.generation} in g{self.generation}")
        if self.ended:
            self.complain(f"{where}: effective although the run had ended")

    def _not_superseded(self, record: Record, where: str) -> None:
        if record.launch_id in self.superseded:
            self.complain(f"{where}: a superseded launch maintains the run of {self.launch}")

    def _mark(self, record: Record, where: str) -> Fact | None:
        self._not_superseded(record, where)
        if record.epoch != self.epoch:
            self.complain(f"{where}: effective under epoch {record.epoch}, current is {self.epoch}")
        fact = self.facts.get(record.payload["c"])
        if fact is None or fact.fate not in _HELD:
            self.complain(f"{where}: c{record.payload['c']} is not held")
            return None
        return fact

    def _corrupt(self, record: Record, where: str) -> None:
        fact = self._mark(record, where)
        if fact is not None:
            fact.fate = "corrupt"
            self.marks |= frozenset(record.payload.get("objects", ())) or {fact.name.prefix}

    def _pin(self, record: Record, where: str) -> None:
        fact = self._mark(record, where)
        if fact is not None:
            fact.pinned = record.kind is Kind.CHECKPOINT_PINNED

    def _known_good(self, record: Record, where: str) -> None:
        fact = self._mark(record, where)
        if fact is not None and fact.fate != "committed":
            self.complain(f"{where}: c{fact.c} is {fact.fate}, not known good")

    def _retire(self, record: Record, where: str) -> None:
        fact = self._mark(record, where)
        if fact is None:
            return
        if fact.c == self.head:
            self.complain(f"{where}: retires the head c{fact.c}")
        if self.active and fact.c == self.restore_point:
            self.complain(f"{where}: retires the restore point c{fact.c} of a live generation")
        if self.fork is not None and fact.c == self.fork[1]:
            self.complain(f"{where}: retires c{fact.c}, from which a fork is about to start")
        if fact.pinned:
            self.complain(f"{where}: retires the pinned c{fact.c}")
        fact.fate = "retired"

    _RULES: Mapping[Kind, Callable[[Auditor, Record, str], Any]] = {
        Kind.RUN_CREATED: _create,
        Kind.GENERATION_STARTED: _start,
        Kind.CONTROLLER_CLAIMED: _claim,
        Kind.RUN_STATE: _state,
        Kind.CHECKPOINT_ALLOCATED: _allocate,
        Kind.CHECKPOINT_COMMITTED: _commit,
        Kind.CHECKPOINT_ABORTED: _abort,
        Kind.FAILURE: _failure,
        Kind.RUN_SUCCEEDED: _succeed,
        Kind.RUN_FAILED: _end,
        Kind.RUN_CANCELLED: _cancel,
        Kind.RUN_FORKED: _fork,
        Kind.PROMISE_LOWERED: _lower,
        Kind.RUN_EXTENDED: _extend,
        Kind.RUN_SUMMARIZED: _summary,
        Kind.CHECKPOINT_CORRUPT: _corrupt,
        Kind.CHECKPOINT_KNOWN_GOOD: _known_good,
        Kind.CHECKPOINT_PINNED: _pin,
        Kind.CHECKPOINT_UNPINNED: _pin,
        Kind.CHECKPOINT_RETIRED: _retire,
    }

    # -- what the history means

    def held(self) -> list[Fact]:
        """Checkpoints that must restore: committed, not retired (corrupt: not by this simulator's doing)."""
        return [fact for fact in self.facts.values() if fact.fate in _HELD]

    def model_at(self, c: int) -> Model:
        """What training must have produced at ``c``: every step since the root, by who trained it."""
        chain = []
        at: int | None = c
        while at is not None:
            chain.append(self.facts[at])
            at = self.facts[at].parent
        history, step = ROOT, 0
        for fact in reversed(chain):
            if fact.adopted is not None and self.witness is not None:
                model, _ = self.witness(fact)
                history, step = model.history, model.step
            while step < fact.step:
                step += 1
                history = advance(history, fact.generation, step)
        return Model(history, step)

    def may_delete(self, key: str) -> str:
        """Why ``key`` may not be deleted now; ``""`` when it may (``check_store`` sees what others reuse)."""
        parsed = layout.parse_checkpoint_key(key)
        if parsed is None or parsed.what in ("ledger", "index"):
            return f"{key} is no object of a checkpoint"
        fact = self.facts.get(parsed.name.c)
        if fact is not None and fact.name == parsed.name:
            if fact.fate in _HELD:
                return f"c{fact.c} is {fact.fate}"
            if fact.fate == "allocated" and fact.generation == self.generation and self.active:
                return f"c{fact.c} is being written by the live generation"
        return ""

    def check_store(self, get: Get) -> None:
        """Every held checkpoint restores, completely and consistently; every ledger ever committed reads."""
        for fact in self.held():
            try:
                model = read_checkpoint(get, fact.payload["manifest"], fact.payload["manifest_digest"])
            except Broken as error:
                self.complain(f"committed c{fact.c} does not restore: {error}")
                continue
            if model != self.model_at(fact.c):
                self.complain(f"c{fact.c} holds {model}, its lineage says {self.model_at(fact.c)}")
        for fact in self.facts.values():
            if fact.payload:
                self._check_ledger(fact, get)

    def check_residue(self, keys: Iterable[str]) -> None:
        """After a sweep of a run at rest only what is held is there, and what that reuses."""
        held = {fact.name.prefix for fact in self.held()}
        held |= {self.facts[c].name.prefix for fact in self.held() for c in fact.payload["reuses"]}
        for key in keys:
            if key.rpartition("/")[0] + "/" not in held:
                self.complain(f"{key} is left after a sweep")

    def _check_ledger(self, fact: Fact, get: Get) -> None:
        """The segments of every role cover exactly the steps since the parent, trained by this generation."""
        reference = fact.payload["ledger"]
        data = get(reference["key"])
        if data is None or digests.sha256(data) != reference["digest"]:
            self.complain(f"the ledger index of c{fact.c} is gone or differs")
            return
        after = 0 if fact.parent is None else self.facts[fact.parent].step
        wanted = [[step, fact.generation] for step in range(after + 1, fact.step + 1)]
        if fact.adopted is not None and self.witness is not None:
            _, wanted = self.witness(fact)
        for role, segment in ledgers.decode_index(data, key=reference["key"]).segments.items():
            rows = get(segment.key)
            if rows is None or digests.sha256(rows) != segment.digest:
                self.complain(f"the ledger segment of {role} for c{fact.c} is gone or differs")
            elif json.loads(rows) != wanted:
                self.complain(f"the ledger of {role} for c{fact.c} says {rows!r}, not {wanted}")
