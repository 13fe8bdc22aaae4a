"""The actors of small worlds. They decide early and append late, on purpose, so that nothing but the
journal's rules stands between a stale decision and its effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable_core.commit import ending
from durable_core.commit.claim import claim_controller, claim_generation, create_run
from durable_core.commit.effects import NewId, Program
from durable_core.commit.journal import AppendInDoubt, Draft, View, append, replay, settle
from durable_core.commit.request import SaveRequest
from durable_core.commit.save import allocate
from durable_core.errors import (
    CommitAborted,
    FencedError,
    LostSlot,
    NoUsableCheckpoint,
    RecordRefused,
    RunNotFoundError,
    TierError,
    TierUnavailable,
)
from durable_core.format.layout import CheckpointName
from durable_core.format.record import Kind
from durable_core.testing.check.explorer import Notes, Start
from durable_core.types import Promise, Token

DIGEST = "sha256:" + "0" * 64
ROLES = ("dp0",)
_GIVES_UP = (LostSlot, RecordRefused, TierError, CommitAborted, NoUsableCheckpoint, RunNotFoundError)
#: Attempts at one slot: the first, and one to settle it.
ATTEMPTS = 2


def guarded(body: Callable[[View, Notes], Program[None]]) -> Start:
    """An actor that stops when it is told to, and when it has nothing left to try."""

    def actor(view: View, notes: Notes) -> Program[None]:
        try:
            yield from body(view, notes)
        except FencedError:
            notes.append(("refused", ""))
        except _GIVES_UP:
            return

    return actor


def record(view: View, notes: Notes, draft: Draft) -> Program[View]:
    """Append one record, pursue a doubt to its end, and note what was told about it."""
    op_id = yield NewId()
    draft = Draft(draft.kind, draft.payload, draft.generation, draft.launch_id, draft.epoch, op_id)
    try:
        view = yield from append(view, draft, attempts=ATTEMPTS)
    except AppendInDoubt as doubt:
        view = yield from settle(doubt.view, attempts=ATTEMPTS)
        view = yield from replay(view)
        return view
    except (FencedError, LostSlot, RecordRefused, TierUnavailable):
        notes.append(("denied", op_id))
        raise
    notes.append(("acked", op_id))
    return view


def commit(
    view: View,
    notes: Notes,
    token: Token,
    step: int,
    reuses: tuple[int, ...] = (),
    adopted: int | None = None,
) -> Program[View]:
    """Allocate with the real program, then commit."""
    request = SaveRequest(
        role="dp0",
        roles=ROLES,
        token=token,
        run_id="run",
        step=step,
        documents={},
        cursor=None,
        spec_digest=DIGEST,
        promise=Promise.BITWISE,
        adopted=adopted,
    )
    view, attempt = yield from allocate(view, request)
    return (yield from record(view, notes, committed(token, attempt.info, reuses)))


def committed(token: Token, info: Any, reuses: tuple[int, ...] = ()) -> Draft:
    name = CheckpointName(info.generation, info.c, info.nonce)
    payload = {
        "c": info.c,
        "step": info.step,
        "parent": info.parent,
        "manifest": name.manifest,
        "manifest_digest": DIGEST,
        "bytes": 1,
        "bytes_written": 1,
        "tiers": ["disk"],
        "cursor_digest": DIGEST,
        "reuses": list(reuses),
        "ledger": None,
    }
    return Draft.by(token, Kind.CHECKPOINT_COMMITTED, payload)


def created(launch: str, commits: int, *, abandon: bool = False) -> Start:
    """A run with one generation of ``launch`` and so many commits, at steps 0, 10, 20, …

    With ``abandon`` the generation starts and commits nothing.
    """

    def prefix(view: View, notes: Notes) -> Program[None]:
        view = yield from create_run(
            view,
            launch_id=launch,
            run_id="run",
            spec={},
            spec_digest=DIGEST,
            seed=1,
            promise=Promise.BITWISE,
        )
        if commits:
            claim = yield from claim_generation(view, launch_id=launch, members=ROLES)
            view = claim.view
            for n in range(0 if abandon else commits):
                view = yield from commit(view, notes, claim.token, 10 * n)

    return prefix


def worker(launch: str, saves: int, *, takeover: bool = False, reuses: tuple[int, ...] = ()) -> Start:
    """Claims the next generation and saves, each time ten steps on."""

    def body(view: View, notes: Notes) -> Program[None]:
        claim = yield from claim_generation(view, launch_id=launch, members=ROLES, takeover=takeover)
        view, point = claim.view, claim.restore_point
        step = 0 if point is None else point.step
        for n in range(saves):
            view = yield from commit(view, notes, claim.token, step + 10 * n + 5, reuses)

    return guarded(body)


def continuing(launch: str, *steps: int, reuses: tuple[int, ...] = (), finish: bool = False) -> Start:
    """The owner of generation 1, in the middle of its life: saves at ``steps``, perhaps finishes."""

    def body(view: View, notes: Notes) -> Program[None]:
        token = Token(1, launch)
        view = yield from replay(view)
        for step in steps:
            view = yield from commit(view, notes, token, step, reuses)
        if finish:
            payload = {"c": view.state.head, "target": None}
            yield from record(view, notes, Draft.by(token, Kind.RUN_SUCCEEDED, payload))

    return guarded(body)


def adopter(launch: str, step: int, *saves: int, replaces: int | None = None) -> Start:
    """Claims, saves at ``saves``, and adopts ``step`` (all too late, if it saved before) of the generation
    that it saw when it came, or believes to have replaced."""

    def body(view: View, notes: Notes) -> Program[None]:
        view = yield from replay(view)
        seen = view.state.generation if replaces is None else replaces
        claim = yield from claim_generation(view, launch_id=launch, members=ROLES)
        view = claim.view
        for save in saves:
            view = yield from commit(view, notes, claim.token, save)
        view = yield from commit(view, notes, claim.token, step, adopted=seen)
        yield from commit(view, notes, claim.token, step + 1)

    return guarded(body)


def impostor(launch: str) -> Start:
    """Its supervisor told it that generation 2 is its own; the journal may say otherwise."""

    def body(view: View, notes: Notes) -> Program[None]:
        view = yield from replay(view)
        payload = {"c": view.state.next_c, "step": 99, "parent": view.state.head}
        draft = Draft.by(Token(2, launch), Kind.CHECKPOINT_ALLOCATED, payload)
        yield from record(view, notes, draft)

    return guarded(body)


def allocator(launch: str, step: int) -> Start:
    """Takes the number that was next when it looked, and aborts what it took, twice."""

    def body(view: View, notes: Notes) -> Program[None]:
        token = Token(1, launch)
        view = yield from replay(view)
        c = view.state.next_c
        payload = {"c": c, "step": step, "parent": view.state.head}
        view = yield from record(view, notes, Draft.by(token, Kind.CHECKPOINT_ALLOCATED, payload))
        for reason in ("first", "second"):
            aborted = Draft.by(token, Kind.CHECKPOINT_ABORTED, {"c": c, "reason": reason})
            view = yield from record(view, notes, aborted)

    return guarded(body)


def late_committer(launch: str) -> Start:
    """Allocates, aborts, and commits all the same: an asynchronous save that was given up too late."""

    def body(view: View, notes: Notes) -> Program[None]:
        token = Token(1, launch)
        view = yield from replay(view)
        payload = {"c": view.state.next_c, "step": 50, "parent": view.state.head}
        view = yield from record(view, notes, Draft.by(token, Kind.CHECKPOINT_ALLOCATED, payload))
        info = view.state.checkpoints[view.state.next_c - 1]
        aborted = Draft.by(token, Kind.CHECKPOINT_ABORTED, {"c": info.c, "reason": "deadline"})
        view = yield from record(view, notes, aborted)
        yield from record(view, notes, committed(token, info))

    return guarded(body)


def backwards(launch: str) -> Start:
    """Commits a step that is behind the head."""

    def body(view: View, notes: Notes) -> Program[None]:
        token = Token(1, launch)
        view = yield from replay(view)
        payload = {"c": view.state.next_c, "step": 3, "parent": view.state.head}
        view = yield from record(view, notes, Draft.by(token, Kind.CHECKPOINT_ALLOCATED, payload))
        yield from record(view, notes, committed(token, view.state.checkpoints[view.state.next_c - 1]))

    return guarded(body)


def controller(launch: str, *acts: tuple[Kind, int]) -> Start:
    """Claims an epoch and maintains what it decided on before it looked again."""

    def body(view: View, notes: Notes) -> Program[None]:
        view, epoch = yield from claim_controller(view, launch)
        for kind, c in acts:
            draft = Draft(kind, {"c": c, "reason": "old"}, view.state.generation, launch, epoch)
            view = yield from record(view, notes, draft)

    return guarded(body)


def reconciler(launch: str, *states: str) -> Start:
    """Takes the reconciling office, and says where the run stands of the generation that it saw then."""

    def body(view: View, notes: Notes) -> Program[None]:
        view, epoch = yield from claim_controller(view, launch, reconciles=True)
        generation = view.state.generation
        for state in states:
            payload = {"state": state, "reason": "seen", "evidence": {}}
            draft = Draft(Kind.RUN_STATE, payload, generation, launch, epoch)
            view = yield from record(view, notes, draft)

    return guarded(body)


def summarizer(launch: str, end: int | None = None) -> Start:
    """Sums up the end that it saw before it took its epoch, or ``end``, whatever it saw."""

    def body(view: View, notes: Notes) -> Program[None]:
        view = yield from replay(view)
        terminal = view.state.terminal
        seen = end if terminal is None else terminal.seq
        view, epoch = yield from claim_controller(view, launch)
        if seen is not None:
            payload = {"end": seen, "key": "runs/x.json", "digest": "sha256:" + "0" * 64}
            draft = Draft(Kind.RUN_SUMMARIZED, payload, view.state.generation, launch, epoch)
            yield from record(view, notes, draft)

    return guarded(body)


def canceller(launch: str, principal: str = "operator") -> Start:
    def body(view: View, notes: Notes) -> Program[None]:
        yield from ending.cancel(view, launch_id=launch, principal=principal, reason="enough")

    return guarded(body)


def stubborn(decide: Callable[[View], Draft]) -> Start:
    """Decides once, at first sight, and sends that again whenever it loses a slot."""

    def body(view: View, notes: Notes) -> Program[None]:
        view = yield from replay(view)
        draft = decide(view)
        for _ in range(3):
            try:
                view = yield from append(view, draft, attempts=ATTEMPTS)
                return
            except LostSlot:
                view = yield from replay(view)

    return guarded(body)


def says(kind: Kind, payload: dict[str, Any], launch: str, *, claims: int = 0) -> Start:
    """One record, decided at first sight: by the generation seen then, or as a claim of the next."""
    return stubborn(lambda view: Draft(kind, payload, view.state.generation + claims, launch))


def starts_from(c: int | None, launch: str) -> Start:
    payload = {
        "restore_point": c,
        "manifest_digest": None if c is None else DIGEST,
        "members": list(ROLES),
        "takeover": False,
    }
    return says(Kind.GENERATION_STARTED, payload, launch, claims=1)


def forker(origin: int, launch: str, start: int | None = None, adopts: int | None = None) -> Start:
    """Forks from ``origin``, then starts: from there, or (wrongly) from ``start``, or (wrongly) adopts."""

    def body(view: View, notes: Notes) -> Program[None]:
        view = yield from ending.fork(
            view, launch_id=launch, spec={}, spec_digest=DIGEST, diff=[], origin=origin
        )
        if start is None:
            claim = yield from claim_generation(view, launch_id=launch, members=ROLES)
            if adopts is not None:
                yield from commit(claim.view, notes, claim.token, adopts, adopted=claim.token.generation - 1)
        else:
            yield from starts_from(start, launch)(view, notes)

    return guarded(body)


def extender(launch: str) -> Start:
    def body(view: View, notes: Notes) -> Program[None]:
        yield from ending.extend(view, launch_id=launch, target=100)

    return guarded(body)


def creator(launch: str) -> Start:
    """The first start of a run, racing with others for its creation."""

    def body(view: View, notes: Notes) -> Program[None]:
        view = yield from create_run(
            view,
            launch_id=launch,
            run_id=launch,
            spec={},
            spec_digest=DIGEST,
            seed=1,
            promise=Promise.BITWISE,
        )
        yield from claim_generation(view, launch_id=launch, members=ROLES)

    return guarded(body)


def nothing(view: View, notes: Notes) -> Program[None]:
    yield from ()


def upgrader(view: View, notes: Notes) -> Program[None]:
    """Is refused, looks up the current generation, and writes as if it were its own."""
    yield from continuing("L1", 10, 20)(view, notes)
    view = yield from replay(view)
    token = Token(view.state.generation, view.state.launch_id)
    payload = {"c": view.state.next_c, "step": 70, "parent": view.state.head}
    yield from record(view, notes, Draft.by(token, Kind.CHECKPOINT_ALLOCATED, payload))
