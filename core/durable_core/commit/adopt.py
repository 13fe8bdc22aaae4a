"""L3. Adopting snapshots: what a dead generation had sealed in memory becomes the next checkpoint.

Seals are not journaled, so the memory of a host is believed only as far as the journal bounds it: by the
generation that the claim replaced, as the record of the claim found it. Whatever anybody seals, scribbles
or sends after that record changes nothing but which snapshots are there to choose from.

The order of an adoption, and what a death after each part leaves:

1. *claim* generation g+1. The snapshots of g are adoptable by nobody later: the next claim replaces g+1.
2. *choose* a step; every writer *copies* its snapshot into a slot of its own, verifies every slice, and
   *seals* it under g+1. Dead before all have: the newest commit. Dead after: the copies, for they are
   snapshots of the generation that the next claim replaces.
3. *save* it: the ordinary programs, under g+1. The commit record is the adoption.
4. Only then restore, from that checkpoint or (given up) from the newest commit, and train. A save in doubt
   must be settled first: its commit may not arrive beside a training that began without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from durable_core.commit.claim import Claim
from durable_core.commit.effects import Program
from durable_core.commit.journal import AppendInDoubt, View, replay, settle
from durable_core.commit.landed import landed
from durable_core.commit.request import SaveAborted, SaveOutcome, SaveRequest
from durable_core.commit.save import save_coordinator, save_writer
from durable_core.commit.state import RunState
from durable_core.errors import UsageError
from durable_core.format import canonical, digests
from durable_core.format.seal import Seal

#: Failure classes (REQUIREMENTS 6.5) after which memory is believed no more than the weights in it:
#: damaged checkpoint, non-finite or spiking loss, silent corruption.
UNTRUSTED = frozenset({"F11", "F12", "F13"})


@dataclass(frozen=True)
class Sight:
    """What one sealed snapshot says of itself; its seal has been verified, its bytes not yet.

    ``roles``: the members it knew. ``head`` and ``after``: the newest commit known when it was sealed
    and that one's step; its rows begin there. ``digests``: of the slices that every replica holds alike,
    by key; those that may differ (buffers under DDP, a role's own) are left out. ``content``: one digest
    of everything sealed. ``adopted``: it is a copy, made to adopt a snapshot of that generation.
    ``source``: where it lies, for the caller.
    """

    run_id: str
    generation: int
    launch_id: str
    role: str
    roles: tuple[str, ...]
    step: int
    head: int | None
    after: int | None
    digests: Mapping[str, str] = field(default_factory=dict)
    content: str = ""
    adopted: int | None = None
    source: str = ""

    @classmethod
    def of(cls, seal: Seal, *, alike: Callable[[str], bool], source: str = "") -> Sight:
        """What ``seal`` says. ``alike``: whether the tensor of this key is the same on every replica, so that
        a difference is a fault (parameters and optimizer state are; BatchNorm's buffers are not).

        ``seal.body["adopted"]`` is set by whoever seals a copy: the generation that it is a copy of.
        """
        digest = {f"{info.slice.key}{list(info.slice.offsets)}": info.xxh3 for info in seal.infos}
        whole = {"slices": digest, "body": dict(seal.body)}  # by name: a slot has an order of its own
        return cls(
            run_id=seal.run_id,
            generation=seal.generation,
            launch_id=seal.launch_id,
            role=seal.role,
            roles=seal.roles,
            step=seal.step,
            head=seal.head,
            after=seal.after,
            digests={
                name: xxh3
                for (name, xxh3), info in zip(digest.items(), seal.infos, strict=True)
                if alike(info.slice.key)
            },
            content=digests.xxh3(canonical.dumps(whole)),
            adopted=seal.body.get("adopted"),
            source=source,
        )


@dataclass(frozen=True)
class Replaced:
    """The generation that a claim replaced, as the record of the claim found it.

    ``head`` and ``head_step``: its newest commit, or its restore point; ``None`` before the first commit
    of a run. ``anchors``: its restore point and all its commits, with their steps: where the rows of its
    snapshots may begin. ``bar``: why nothing of it can be adopted, whatever it has sealed.
    """

    run_id: str
    generation: int
    launch_id: str
    members: tuple[str, ...]
    head: int | None
    head_step: int | None
    anchors: Mapping[int | None, int | None] = field(default_factory=dict)
    bar: str = ""

    @classmethod
    def by(cls, claim: Claim) -> Replaced:
        """What ``claim`` replaced. In a chain of claims by one process (the first one's restore point was
        damaged) each replaces the one before, so only the first can adopt what the dead one left."""
        before = claim.before
        return cls(
            run_id=before.run_id,
            generation=before.generation,
            launch_id=before.launch_id,
            members=before.members,
            head=before.head,
            head_step=before.head_step,
            anchors=_anchors(before),
            bar=_bar(before, claim),
        )


@dataclass(frozen=True)
class Adoption:
    """The step to adopt. ``sights``: for each role the snapshots that have it, as they were given.

    Copies are sealed with ``head`` and ``after``, their rows cut to begin there. ``passed``: why newer
    steps, and other snapshots, were passed over.
    """

    generation: int
    step: int
    head: int | None
    after: int | None
    sights: Mapping[str, tuple[Sight, ...]]
    passed: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        return f"step {self.step} was sealed by every writer of generation {self.generation}"


@dataclass(frozen=True)
class Declined:
    """Nothing is adopted; ``passed`` says why each snapshot was passed over."""

    reason: str
    passed: tuple[str, ...] = ()


def choose(replaced: Replaced, sights: Iterable[Sight], *, reason: str = "") -> Adoption | Declined:
    """The newest step whose adoption is sound, or why there is none. ``reason``: the failure class of the
    restart, as whoever restarts knows it (``""``: unknown, so a crash).

    A step is adopted iff every member of the replaced generation sealed it under that generation and
    launch, for this run; it exceeds the newest commit; its rows begin at a commit of that generation or
    at its restore point (later commits cut them); and all that must be alike on the replicas is. A
    generation trains one line of steps, so such a snapshot continues its newest commit, also where the
    writer had not heard of that commit yet. If a copy then fails its digests, leave that sight out and
    choose again. Seals that contradict each other count for nothing: nobody can say which is right.
    """
    bar = replaced.bar
    if reason in UNTRUSTED:
        bar = f"the restart is for {reason}, and memory is what is doubted"
    if bar:
        return Declined(bar)
    passed: dict[str, None] = {}  # in order, each once
    steps: dict[int, dict[str, list[Sight]]] = {}
    for sight in sights:
        why = _unfit(replaced, sight)
        if why:
            passed[f"{sight.role} at step {sight.step}: {why}"] = None
        else:
            steps.setdefault(sight.step, {}).setdefault(sight.role, []).append(sight)
    for step in sorted(steps, reverse=True):
        held = steps[step]
        why = _incomplete(replaced, held) or _discord(held)
        if not why:
            found = {role: tuple(held[role]) for role in replaced.members}
            head, after = replaced.head, replaced.head_step
            return Adoption(replaced.generation, step, head, after, found, tuple(passed))
        passed[f"step {step}: {why}"] = None
    newest = "nothing is committed" if replaced.head is None else f"c{replaced.head} stays the newest"
    return Declined(f"no snapshot of generation {replaced.generation} fits; {newest}", tuple(passed))


def adopt(view: View, request: SaveRequest) -> Program[SaveOutcome]:
    """Save the copied snapshot under the token; ``request.adopted`` names the generation it is of.

    Raises as the save programs: after ``SaveAborted`` the newest commit is what it was, and training may
    start from it. After ``AppendInDoubt`` it may **not**, nor after anything else: the process ends.
    """
    if request.adopted is None:
        raise UsageError("an adoption names the generation whose snapshot it is: request.adopted")
    program = save_coordinator if request.coordinates else save_writer
    try:
        return (yield from program(view, request))
    except AppendInDoubt as doubt:
        view = yield from settle(doubt.view)
        view = yield from replay(view)
        outcome = yield from landed(view, request)
        if outcome is None:
            raise SaveAborted(f"step {request.step}: the adoption did not arrive", view) from doubt
        return outcome


# --- the journal's side ----------------------------------------------------------------------


def _anchors(state: RunState) -> dict[int | None, int | None]:
    steps: dict[int | None, int | None] = {}
    c = state.head
    while c is not None and state.checkpoints[c].generation == state.generation:
        steps[c] = state.checkpoints[c].step
        c = state.checkpoints[c].parent
    steps[c] = None if c is None else state.checkpoints[c].step
    return steps


def _bar(before: RunState, claim: Claim) -> str:
    if before.generation == 0:
        return "no generation has been replaced"
    g = before.generation
    if not before.active:
        return f"generation {g} ended with the run"
    fork = before.pending_fork
    if fork is not None and fork.launch_id == claim.token.launch_id:
        return "a fork starts from the checkpoint it names"
    start = None if claim.restore_point is None else claim.restore_point.c
    if start != before.head:
        return f"the new generation goes back to {_name(start)}, behind {_name(before.head)}"
    members = claim.view.state.members
    if set(members) != set(before.members):
        return f"the roles were {', '.join(before.members)} and are {', '.join(members)}"
    for failure in before.failures:
        if failure.generation == g and failure.payload["class"] in UNTRUSTED:
            return f"generation {g} reported {failure.payload['class']}: its memory is what is doubted"
    return ""


# --- the snapshots' side ---------------------------------------------------------------------

_NOWHERE = object()


def _unfit(replaced: Replaced, sight: Sight) -> str:
    """Why this snapshot cannot be part of any adoption; ``""`` when it can."""
    if sight.run_id != replaced.run_id:
        return f"of run {sight.run_id}"
    if (sight.generation, sight.launch_id) != (replaced.generation, replaced.launch_id):
        return (
            f"sealed under generation {sight.generation} of launch {sight.launch_id}, "
            f"and generation {replaced.generation} of launch {replaced.launch_id} is replaced"
        )
    if set(sight.roles) != set(replaced.members) or sight.role not in replaced.members:
        return f"its writers are {', '.join(sight.roles)}, not {', '.join(replaced.members)}"
    if replaced.head_step is not None and sight.step <= replaced.head_step:
        return f"{_name(replaced.head)} is at step {replaced.head_step}"
    if replaced.anchors.get(sight.head, _NOWHERE) != sight.after:
        return f"its rows begin after {_name(sight.head)}, no commit of generation {sight.generation}"
    if sight.adopted is not None and sight.head != replaced.head:
        return f"adopted from generation {sight.adopted}, which {_name(replaced.head)} does not continue"
    return ""


def _incomplete(replaced: Replaced, held: Mapping[str, list[Sight]]) -> str:
    missing = [role for role in replaced.members if role not in held]
    return f"not sealed by {', '.join(missing)}" if missing else ""


def _discord(held: Mapping[str, list[Sight]]) -> str:
    """Whether these snapshots can be of one state: those of a role are the same, those of all alike."""
    for role, sights in held.items():
        if any(_substance(sight) != _substance(sights[0]) for sight in sights):
            return f"{role} has sealed it more than once, differently"
    first = [sights[0] for sights in held.values()]
    if len({sight.adopted for sight in first}) > 1:
        return "some have a copy of the generation before, others their own"
    alike: dict[str, tuple[str, str]] = {}
    for sight in first:
        for key, digest in sight.digests.items():
            role, other = alike.setdefault(key, (sight.role, digest))
            if other != digest:
                return f"{key} differs between {role} and {sight.role}"
    return ""


def _substance(sight: Sight) -> Sight:
    """All but where it lies, and how much its writer had heard of the journal."""
    return replace(sight, source="", head=None, after=None)


def _name(c: int | None) -> str:
    return "nothing" if c is None else f"c{c}"
