"""L3. Claims: creating a run, starting a generation, taking the controller's epoch.

A claim rests on a choice made from what the journal says at its tail. If another record takes the
slot, the choice is made again; a claim is never carried over to a later slot unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from durable_core.commit import trust
from durable_core.commit.effects import Program
from durable_core.commit.fence import token_error
from durable_core.commit.journal import Draft, View, append, replay, settle
from durable_core.commit.state import CheckpointInfo, RunState
from durable_core.errors import (
    Fenced,
    LostSlot,
    NoUsableCheckpoint,
    RecordRefused,
    RunNotFoundError,
    Superseded,
)
from durable_core.format.record import Kind
from durable_core.types import CheckpointState, Promise, Token

#: Times that a claim chooses anew before it gives up.
CLAIM_ROUNDS = 16


@dataclass(frozen=True)
class Choice:
    """The restore point chosen, and why. ``c`` is ``None`` only while nothing is committed. ``warning``: what
    a person has to know of it. ``asked``: training itself goes back there; nothing has interrupted it."""

    c: int | None
    reason: str
    warning: str = ""
    asked: bool = False


Chooser = Callable[[RunState], Choice]


@dataclass(frozen=True)
class Claim:
    """A generation of our own. ``token`` is the right to write; it is never renewed. ``before``: the run as
    the record of the claim found it, with the generation that it replaces."""

    view: View
    token: Token
    restore_point: CheckpointInfo | None
    choice: Choice
    before: RunState


def choose_restore_point(state: RunState, *, exclude: Collection[int] = ()) -> Choice:
    """The newest checkpoint on the head's lineage that is neither corrupt, retired nor excluded, and not in
    quarantine either, if there is such a one.

    After a generation that ended itself for a numeric fault it is as ``choose_before`` says, whoever starts
    the next one. Raises ``NoUsableCheckpoint`` when there are commits and none qualifies: a run with history
    never starts over by itself.
    """
    fork = state.pending_fork
    if fork is not None and fork.external is not None:
        return Choice(None, f"forked from {fork.external}")
    if state.head is None:
        return Choice(None, "nothing has been committed yet")
    onset = trust.stopped_for(state) if fork is None else None
    if onset is not None:
        return choose_before(state, onset, exclude=exclude)
    c = fork.origin if fork is not None else state.head
    passed: list[str] = []
    suspect, out = None, trust.left_out(state)
    while c is not None:
        info = state.checkpoints[c]
        if info.usable and c not in exclude:
            if c not in out:
                why = f"newest usable checkpoint of the lineage: c{c} at step {info.step}"
                return Choice(c, why + (f" (passed over: {', '.join(passed)})" if passed else ""))
            suspect = suspect or info
            passed.append(f"c{c} in quarantine")
        else:
            passed.append(f"c{c} {'excluded' if info.usable else info.state.value}")
        c = info.parent
    if suspect is not None:
        why = f"in quarantine, and nothing else is left: c{suspect.c} at step {suspect.step}"
        return Choice(suspect.c, why, f"step {suspect.step} is restored from a checkpoint {why}")
    raise NoUsableCheckpoint(
        f"no checkpoint of the lineage can be restored: {', '.join(passed) or 'it is empty'}",
        hint="name another restore point explicitly, or fork",
    )


def choose_before(state: RunState, onset: int, *, exclude: Collection[int] = ()) -> Choice:
    """After a numeric fault (F12, F13): the newest known-good checkpoint of the lineage of a step before
    ``onset``.

    Without one, with a warning, the newest usable one of a step before it that no finding speaks against;
    never one at or after it, and one in quarantine only where no other is left. Raises
    ``NoUsableCheckpoint`` when there is none.
    """
    if state.pending_fork is not None or state.head is None:
        return choose_restore_point(state, exclude=exclude)  # what was named; nothing is committed
    taint, out = trust.tainted(state), trust.left_out(state)
    rows = [state.checkpoints[c] for c in reversed(state.lineage())]
    fit = [i for i in rows if i.usable and i.step < onset and i.c not in taint and i.c not in exclude]
    if not fit:
        raise NoUsableCheckpoint(
            f"nothing is trusted from step {onset} on, and no checkpoint before it is left",
            hint="fork from a checkpoint that you trust; a retention.detection_window_steps keeps older ones",
        )
    chosen = min(fit, key=lambda info: (info.c in out, not info.known_good))  # the newest of the best
    kind = "known-good" if chosen.known_good else "usable"
    why = f"newest {kind} checkpoint before step {onset}: c{chosen.c} at step {chosen.step}"
    passed = [f"c{info.c} in quarantine" for info in fit if info.c in out and info.step > chosen.step]
    doubts = []
    if not chosen.known_good:
        barred = " and out of quarantine" if any(info.known_good for info in fit) else ""
        doubts.append(f"no checkpoint before step {onset} is known good{barred}")
    if chosen.c in out:
        doubts.append("what is left is in quarantine")
    warning = f"{'; '.join(doubts)}: step {chosen.step} is restored all the same" if doubts else ""
    return Choice(chosen.c, why + (f" (passed over: {', '.join(passed)})" if passed else ""), warning)


def create_run(
    view: View,
    *,
    launch_id: str,
    run_id: str,
    spec: Mapping[str, Any],
    spec_digest: str,
    seed: int,
    promise: Promise,
) -> Program[View]:
    """Create the run, or return the view of the one that is there already.

    When several processes try at once one wins; compare ``view.state.run_id``. The seed in the
    journal is the one that counts. Raises the errors of ``append`` but ``LostSlot``.
    """
    payload = {
        "run_id": run_id,
        "spec": dict(spec),
        "spec_digest": spec_digest,
        "seed": seed,
        "promise": promise.value,
    }
    view = yield from replay(view)
    for _ in range(CLAIM_ROUNDS):
        if view.state.exists:
            break
        try:
            view = yield from append(view, Draft(Kind.RUN_CREATED, payload, 0, launch_id))
        except LostSlot:
            view = yield from replay(view)
    return view


def claim_generation(
    view: View,
    *,
    launch_id: str,
    members: tuple[str, ...],
    takeover: bool = False,
    choose: Chooser = choose_restore_point,
    topology: Mapping[str, Any] | None = None,
    after: int | None = None,
) -> Program[Claim]:
    """Start the next generation from the restore point that ``choose`` picks at the tail.

    ``after``: the generation of this launch that the claimant belongs to. Only the one directly after it is
    claimed: a process of an older attempt that wakes up late must not fence the one that replaced it.

    Raises ``Fenced`` when the run is not at ``after``, ``Superseded`` when another launch has taken the run
    over and ``takeover`` is not set, ``RunEnded``, ``RunNotFoundError``, ``NoUsableCheckpoint`` (from
    ``choose``), ``RecordRefused`` for a choice that cannot be restored, ``LostSlot`` after ``CLAIM_ROUNDS``
    lost races, or the tier's errors.
    """
    view = yield from settle(view)  # a doubt that ended later would come between the choice and the claim
    view = yield from replay(view)
    for _ in range(CLAIM_ROUNDS):
        state = view.state
        if not state.exists:
            raise RunNotFoundError("no run in this journal", hint="create it first")
        if after is not None:
            _refuse_unless_live(state, Token(after, launch_id))
        choice = choose(_without_foreign_fork(state, launch_id))
        info = None if choice.c is None else state.checkpoints.get(choice.c)
        payload: dict[str, Any] = {
            "restore_point": choice.c,
            "manifest_digest": None if info is None else info.manifest_digest,
            "members": list(members),
            "takeover": takeover,
            "reason": choice.reason,
        }
        if topology is not None:
            payload["topology"] = dict(topology)
        if choice.asked:
            payload["asked"] = True
        token = Token(state.generation + 1, launch_id)
        try:
            view = yield from append(view, Draft.by(token, Kind.GENERATION_STARTED, payload))
        except LostSlot:
            view = yield from replay(view)
            continue
        return Claim(view, token, info, choice, view.replaced)
    raise LostSlot(f"generation {view.state.generation + 1}: lost {CLAIM_ROUNDS} races for it")


def taken(view: View, token: Token) -> Program[Claim]:
    """The claim of ``token``, that another process of its launch has made for this one.

    Raises ``Fenced`` (``Superseded``) when the run is at another generation, ``RunEnded``, or as ``replay``.
    """
    view = yield from replay(view)
    state = view.state
    _refuse_unless_live(state, token)
    c = state.restore_point
    info = None if c is None else state.checkpoints[c]
    return Claim(view, token, info, Choice(c, f"claimed for launch {token.launch_id}"), view.replaced)


def _refuse_unless_live(state: RunState, token: Token) -> None:
    error = token_error(state, token)
    if error is not None:
        raise error


def _without_foreign_fork(state: RunState, launch_id: str) -> RunState:
    """A fork reserves the next generation for the launch that forked; for others it does not exist."""
    fork = state.pending_fork
    return state if fork is None or fork.launch_id == launch_id else replace(state, pending_fork=None)


def claim_controller(view: View, launch_id: str, *, reconciles: bool = False) -> Program[tuple[View, int]]:
    """Take the next controller epoch; returns it. The one before can maintain the run no more.

    ``reconciles``: from now on this one alone says where the run stands (``enter``). Workers are not
    disturbed. Raises as ``append``; ``LostSlot`` after ``CLAIM_ROUNDS`` lost races.
    """
    view = yield from replay(view)
    payload = {"reconciles": True} if reconciles else {}
    for _ in range(CLAIM_ROUNDS):
        state = view.state
        epoch = state.epoch + 1
        draft = Draft(Kind.CONTROLLER_CLAIMED, payload, state.generation, launch_id, epoch)
        try:
            view = yield from append(view, draft)
        except LostSlot:
            view = yield from replay(view)
            continue
        return view, epoch
    raise LostSlot(f"controller epoch: lost {CLAIM_ROUNDS} races for it")


def enter(
    view: View, payload: Mapping[str, Any], *, launch_id: str, epoch: int, generation: int, op_id: str
) -> Program[View]:
    """``run.state``: the run has come to the state that ``payload`` names, in ``generation``.

    ``op_id`` follows from what led there, so that whoever comes to the same once more appends nothing. Raises
    ``Fenced`` when another controller reconciles this run or it is at another generation, ``RunEnded``, or as
    ``append``.
    """
    phase = view.state.phase
    if phase is not None and phase.op_id == op_id:
        return view
    draft = Draft(Kind.RUN_STATE, payload, generation, launch_id, epoch, op_id)
    return (yield from append(view, draft))


def maintain(view: View, kind: Kind, payload: Mapping[str, Any], launch_id: str) -> Program[View]:
    """Append one fact of maintenance, under this launch's epoch, claimed if it has none.

    An epoch serves one decision here, so losing it to another controller means taking the next one
    for the same fact; a launch that another one has superseded takes none (``Superseded``). Raises as
    ``append``; ``LostSlot`` after ``CLAIM_ROUNDS`` such losses.
    """
    view = yield from replay(view)
    for _ in range(CLAIM_ROUNDS):
        if view.state.controller != launch_id:
            view, _ = yield from claim_controller(view, launch_id)
        state = view.state
        draft = Draft(kind, payload, state.generation, launch_id, state.epoch)
        try:
            return (yield from append(view, draft))
        except Superseded:
            raise
        except Fenced:
            view = yield from replay(view)
    raise LostSlot(f"{kind.value}: lost the controller's epoch {CLAIM_ROUNDS} times")


def mark_corrupt(
    view: View, c: int, *, launch_id: str, reason: str, objects: tuple[str, ...] = ()
) -> Program[View]:
    """Record that checkpoint ``c`` failed verification; ``objects`` are the damaged keys.

    Marked already (for all of these objects) or retired: nothing is appended. Raises as ``append``.
    """
    view = yield from replay(view)
    info = view.state.checkpoints.get(c)
    if info is not None and info.state is CheckpointState.RETIRED:
        return view
    if info is not None and info.state is CheckpointState.CORRUPT and view.state.distrusted >= set(objects):
        return view
    payload = {"c": c, "reason": reason, "objects": list(objects)}
    try:
        return (yield from maintain(view, Kind.CHECKPOINT_CORRUPT, payload, launch_id))
    except RecordRefused:
        view = yield from replay(view)
        if view.state.checkpoints[c].state is not CheckpointState.RETIRED:
            raise
        return view
