"""L6. Commands that write to a run: ``gc``, ``pin``, ``unpin``; as a controller, never as a worker."""

from __future__ import annotations

from durable_core.cli.output import FAILED, OK, Answer, Table
from durable_core.clock import SystemClock
from durable_core.commit import marks
from durable_core.commit.collect import sweep
from durable_core.commit.retention import Retention
from durable_core.engine.collect import Collected, collect
from durable_core.engine.inspect import open_run
from durable_core.engine.performer import Performer
from durable_core.errors import TierError


def gc(root: str, keep_last: int | None, keep_every_n_steps: int | None) -> Answer:
    """Without a policy nothing is retired: the command line does not know the one the run trains with."""
    reader = open_run(root)
    clock = SystemClock()
    performer = Performer(reader.tier, clock)
    policy = None
    if keep_last is not None or keep_every_n_steps is not None:
        policy = Retention(keep_last=keep_last or 3, keep_every_n_steps=keep_every_n_steps)
    found = Collected(reader.view, None)
    retired: list[dict[str, object]] = []
    deleted: list[str] = []
    while True:
        if policy is not None:
            found = collect(performer, found.view, policy, clock.new_id(), found.epoch)
        else:
            found = _sweep(performer, found)
        retired += [{"c": each.c, "reason": each.reason} for each in found.retired]
        deleted += found.deleted
        # Bounded: every round deletes something or retires something, or is the last.
        if found.complete or found.problem or not (found.deleted or found.retired):
            break
    document = {
        "retired": retired,
        "deleted": deleted,
        "complete": found.complete,
        "problem": found.problem or None,
    }
    human: list[Table | str] = []
    if retired:
        human.append(Table(("retired", "because"), [(each["c"], each["reason"]) for each in retired]))
    human.append(f"{len(retired)} checkpoints retired, {len(deleted)} objects deleted")
    if found.problem:
        human.append(f"stopped early: {found.problem}")
    return Answer(document, human, FAILED if found.problem else OK)


def _sweep(performer: Performer, found: Collected) -> Collected:
    try:
        swept = performer.run(sweep(found.view))
        performer.tier.collect_residue()
    except TierError as error:
        return Collected(found.view, None, problem=error.message)
    problem = f"kept for unreadable manifests: {list(swept.kept_unread)}" if swept.kept_unread else ""
    return Collected(swept.view, None, (), swept.deleted, swept.complete, problem)


def pin(root: str, c: int) -> Answer:
    return _mark(root, c, pinned=True)


def unpin(root: str, c: int) -> Answer:
    return _mark(root, c, pinned=False)


def _mark(root: str, c: int, *, pinned: bool) -> Answer:
    reader = open_run(root)
    reader.checkpoint(c)  # says so if there is none
    clock = SystemClock()
    Performer(reader.tier, clock).run(marks.pin(reader.view, c, clock.new_id(), pinned=pinned))
    return Answer({"c": c, "pinned": pinned}, [f"c{c} is {'pinned' if pinned else 'unpinned'}"])
