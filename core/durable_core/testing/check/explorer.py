"""Every interleaving of a few programs over one journal, with lost acknowledgements.

A program is a generator and cannot be copied, but it is deterministic: it is brought to a state by
running it again with the same answers. Two runs are in the same state when their frames stand at the
same instructions with the same variables; then one stands for both. A global state is a journal, the
requests still in flight, and one local state per program. States are remembered; the search is
exhaustive.

Two reductions keep it small and lose nothing: reading a slot that is occupied, and putting to one,
give the same answer whenever they happen, so they are answered at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

from durable_core.commit import effects as fx
from durable_core.commit import journal
from durable_core.commit.effects import Program
from durable_core.commit.journal import EMPTY, View
from durable_core.commit.state import RunState
from durable_core.errors import DurableError, InDoubt, JournalBrokenError
from durable_core.format import layout
from durable_core.testing.invariants import Auditor

#: What a program notes down while it runs, for the checks: ``("acked", op_id)``, ``("denied", op_id)``
#: (it was told that this record does not count) and ``("refused", "")`` (it was told to stop).
Notes = list[tuple[str, str]]
Start = Callable[[View, Notes], Program[None]]

LOST = object()  # the answer to a put whose acknowledgement was lost


@dataclass(frozen=True)
class Scenario:
    """``prefix``: a program that lays the journal's first records; ``faults``: acknowledgements that
    may be lost in one history; ``explicit``: some actor names its restore point itself."""

    name: str
    prefix: Start
    actors: tuple[Start, ...]
    faults: int = 1
    explicit: bool = False


@dataclass
class Local:
    """One program after some answers. ``effect`` is ``None`` when it has ended; ``slot`` is the one
    it asks for; ``number`` identifies the state."""

    number: int
    actor: int
    answers: tuple[Any, ...]
    effect: fx.Get | fx.PutIfAbsent | None
    slot: int
    acked: frozenset[str]
    denied: frozenset[str]
    refused: bool
    children: dict[Any, Local] = field(default_factory=dict)


@dataclass
class Story:
    """One journal: its records, what the fold makes of them, and what the auditor does."""

    records: tuple[bytes, ...]
    view: View
    violations: tuple[str, ...]
    effective: frozenset[str]
    occupied: frozenset[str]
    children: dict[bytes, Story] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    story: int
    flying: frozenset[tuple[int, bytes]]
    locals: tuple[int, ...]
    faults: int


@dataclass
class Report:
    scenario: str
    states: int = 0
    transitions: int = 0
    journals: int = 0
    complete: bool = True
    violations: list[str] = field(default_factory=list)


class Explorer:
    """Searches one scenario. ``view`` carries the authority table under test."""

    def __init__(self, scenario: Scenario, view: View = EMPTY) -> None:
        self.scenario = scenario
        self.start = view
        self.report = Report(scenario.name)
        self._stories: list[Story] = []
        self._story_ids: dict[int, int] = {}
        self._locals: list[Local] = []
        self._known: dict[Any, Local] = {}

    def run(self, *, limit: int = 2_000_000, first_only: bool = False) -> Report:
        """Visit every state, or up to ``limit``; with ``first_only`` stop at the first violation."""
        with mock.patch.object(journal, "absorb", _remembered(journal.absorb)):
            return self._search(limit, first_only)

    def _search(self, limit: int, first_only: bool) -> Report:
        begin = self._settled(self._initial())
        seen = {begin}
        todo = [begin]
        while todo:
            state = todo.pop()
            for after in self._successors(state):
                self.report.transitions += 1
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
            if first_only and self.report.violations:
                break
            if len(seen) > limit:
                self.report.complete = False
                break
        self.report.states = len(seen)
        self.report.journals = len(self._stories)
        return self.report

    # -- states

    def _initial(self) -> State:
        story = self._empty_story()
        local = self._rebuild(-1, ())
        while local.effect is not None:
            if isinstance(local.effect, fx.PutIfAbsent):
                story = self._grown(story, local.effect.data)
                local = self._answered(local, True)
            else:
                data = self._read(story, local.slot)
                local = self._answered(local, data)
        actors = tuple(self._rebuild(i, ()).number for i in range(len(self.scenario.actors)))
        return State(self._story_id(story), frozenset(), actors, self.scenario.faults)

    def _successors(self, state: State) -> Iterator[State]:
        story = self._stories[state.story]
        end = len(story.records)
        for slot, data in state.flying:
            if slot == end:
                yield self._landed(replace(state, flying=state.flying - {(slot, data)}), data)
        for index, local_id in enumerate(state.locals):
            local = self._locals[local_id]
            if local.effect is None:
                continue
            if isinstance(local.effect, fx.Get):
                yield self._moved(state, index, local, None)
                continue
            if local.slot > end:
                self._complain(f"slot {local.slot} is written while slot {end} is empty")
                continue
            data = local.effect.data
            yield self._moved(self._landed(state, data), index, local, True)
            if state.faults:
                fewer = replace(state, faults=state.faults - 1)
                yield self._moved(self._landed(fewer, data), index, local, LOST)
                flying = replace(fewer, flying=fewer.flying | {(local.slot, data)})
                yield self._moved(flying, index, local, LOST)

    def _landed(self, state: State, data: bytes) -> State:
        story = self._grown(self._stories[state.story], data)
        return self._settled(replace(state, story=self._story_id(story)))

    def _moved(self, state: State, index: int, local: Local, answer: Any) -> State:
        after = self._answered(local, answer)
        ids = (*state.locals[:index], after.number, *state.locals[index + 1 :])
        return self._settled(replace(state, locals=ids))

    def _settled(self, state: State) -> State:
        """Answer everything whose answer can no longer change; forget requests that came too late."""
        story = self._stories[state.story]
        end = len(story.records)
        ids = []
        for local_id in state.locals:
            local = self._locals[local_id]
            while local.effect is not None and local.slot < end:
                answer = story.records[local.slot] if isinstance(local.effect, fx.Get) else False
                local = self._answered(local, answer)
            self._check(local, story)
            ids.append(local.number)
        flying = frozenset((slot, data) for slot, data in state.flying if slot >= end)
        return replace(state, locals=tuple(ids), flying=flying)

    # -- programs

    def _answered(self, local: Local, answer: Any) -> Local:
        child = local.children.get(answer)
        if child is None:
            child = local.children[answer] = self._rebuild(local.actor, (*local.answers, answer))
        return child

    def _rebuild(self, actor: int, answers: tuple[Any, ...]) -> Local:
        """Run a program from its start with these answers, to the state they lead to."""
        notes: Notes = []
        start = self.scenario.prefix if actor < 0 else self.scenario.actors[actor]
        program = start(self.start, notes)
        given = iter(answers)
        identities = 0
        resume: Callable[[], Any] = partial(next, program)
        while True:
            try:
                effect = resume()
            except StopIteration:
                return self._local(actor, answers, None, notes, (identities, "ended"))
            except (DurableError, LookupError) as error:
                self._complain(f"actor {actor} dies of {type(error).__name__}: {error}")
                return self._local(actor, answers, None, notes, (identities, "died"))
            value: Any = None
            if isinstance(effect, (fx.Get, fx.PutIfAbsent)):
                try:
                    value = next(given)
                except StopIteration:
                    frames = (identities, *fingerprint(program))
                    return self._local(actor, answers, effect, notes, frames)
            elif isinstance(effect, fx.NewId):
                identities += 1
                value = hashlib.blake2b(f"{actor}/{identities}".encode(), digest_size=16).hexdigest()
            elif isinstance(effect, (fx.Now, fx.WallTime)):
                value = 0.0
            lost = value is LOST
            resume = partial(program.throw, InDoubt("no answer")) if lost else partial(program.send, value)

    def _local(
        self,
        actor: int,
        answers: tuple[Any, ...],
        effect: fx.Get | fx.PutIfAbsent | None,
        notes: Notes,
        frames: tuple[Any, ...],
    ) -> Local:
        """The one local state that stands for all that are the same."""
        key = (actor, effect, tuple(notes), frames)
        local = self._known.get(key)
        if local is None:
            slot = -1 if effect is None else layout.parse_journal_key(effect.key) or 0
            told = {what: frozenset(op for kind, op in notes if kind == what) for what in ("acked", "denied")}
            refused = ("refused", "") in notes
            number = len(self._locals)
            local = Local(number, actor, answers, effect, slot, told["acked"], told["denied"], refused)
            self._known[key] = local
            self._locals.append(local)
        return local

    # -- journals

    def _empty_story(self) -> Story:
        return Story((), self.start, (), frozenset(), frozenset())

    def _story_id(self, story: Story) -> int:
        number = self._story_ids.get(id(story))
        if number is None:
            number = self._story_ids[id(story)] = len(self._stories)
            self._stories.append(story)
        return number

    def _grown(self, story: Story, data: bytes) -> Story:
        child = story.children.get(data)
        if child is None:
            child = story.children[data] = self._judged((*story.records, data))
            for violation in child.violations[len(story.violations) :]:
                self._complain(violation)
        return child

    def _judged(self, records: tuple[bytes, ...]) -> Story:
        view, auditor = self.start, Auditor(explicit=self.scenario.explicit)
        effective, occupied = set(), set()
        for data in records:
            try:
                view, record, verdict = journal.absorb(view, data)
            except (JournalBrokenError, KeyError) as error:
                auditor.complain(f"the fold breaks: {type(error).__name__}: {error}")
                break
            auditor.observe(record, verdict.effective)
            occupied.add(record.op_id)
            if verdict.effective:
                effective.add(record.op_id)
            else:
                auditor.complain(f"slot {record.seq}: a void {record.kind.value} was written")
        return Story(records, view, tuple(auditor.violations), frozenset(effective), frozenset(occupied))

    def _read(self, story: Story, slot: int) -> bytes | None:
        return story.records[slot] if slot < len(story.records) else None

    # -- checks

    def _check(self, local: Local, story: Story) -> None:
        if not local.acked <= story.effective:
            self._complain(f"actor {local.actor}: an acknowledged record is not in the journal")
        if not local.denied.isdisjoint(story.effective):
            self._complain(f"actor {local.actor}: a record counts that was reported as refused")
        if local.refused and isinstance(local.effect, fx.PutIfAbsent):
            self._complain(f"actor {local.actor} was refused, and appends all the same")

    def _complain(self, message: str) -> None:
        if message not in self.report.violations:
            self.report.violations.append(message)


def _remembered(absorb: Callable[..., Any]) -> Callable[..., Any]:
    """``absorb`` is pure, and a view is known by its tail: every program folds the same record once."""
    memory: dict[tuple[str, bytes], Any] = {}

    def remembering(view: View, data: bytes) -> Any:
        key = (view.tail, data)
        if key not in memory:
            memory[key] = absorb(view, data)
        return memory[key]

    return remembering


def fingerprint(program: Program[None]) -> tuple[Any, ...]:
    """Where a suspended program stands: for each frame down to the innermost generator, the function, the
    instruction and the variables."""
    frames: list[Any] = []
    inner: Any = program
    while inner is not None and getattr(inner, "gi_frame", None) is not None:
        frame = inner.gi_frame
        variables = tuple((name, _mark(value)) for name, value in sorted(frame.f_locals.items()))
        frames.append((frame.f_code, frame.f_lasti, variables))
        inner = inner.gi_yieldfrom
    return tuple(frames)


def _mark(value: Any) -> Any:
    """What stands for a variable: a view is known by its journal, a function by its name."""
    if isinstance(value, View):
        return (value.next_seq, value.tail, None if value.doubt is None else value.doubt.op_id)
    if isinstance(value, RunState) or callable(value):
        return None  # a state belongs to a view that is among the variables, a function never changes
    if isinstance(value, BaseException):
        return str(value)
    if is_dataclass(value):
        return tuple(_mark(getattr(value, each.name)) for each in fields(value))
    return repr(value)
