"""L5. Checks of the run itself: what its journal says, what its checkpoints hold, who may take part."""

from __future__ import annotations

from durable_core.engine.held import NEEDED, classes_held
from durable_core.errors import CorruptError, NotFoundError
from durable_core.launch.capabilities import obstacles
from durable_core.launch.classes import Unit
from durable_core.launch.preflight.report import Found, failed, not_applicable, ok
from durable_core.launch.preflight.target import Target
from durable_core.launch.quarantine import standing


def journal(target: Target) -> Found:
    """It can be read to its end, the run has not ended, and what workers will be told is its generation."""
    try:
        run = target.run
    except CorruptError as error:
        return failed(error.message, "durable verify ROOT tells what is damaged")
    if run is None:
        return not_applicable("there is no run here yet")
    state = run.state
    told = f"{run.view.next_seq} records, generation {state.generation}"
    if target.generation is not None and target.generation != state.generation:
        return failed(f"{told}: the workers would be told {target.generation}", "another launch owns the run")
    if state.terminal is not None and state.terminal.outcome != "succeeded":
        return failed(f"{told}: the run has {state.terminal.outcome}", "start another run under another root")
    return ok(told)


def quarantine(target: Target) -> Found:
    """The image that the run is to start in is not in quarantine. Data objects and storage that are: the next
    attempt meets them again, unless its dataset or a person sees to it."""
    try:
        run = target.run
    except CorruptError:
        return not_applicable("the journal cannot be read")
    if run is None:
        return not_applicable("there is no run here yet")
    found, image = standing(run.state), target.spec.provenance.image
    lift = f"once it is mended: durable quarantine {target.tier.location} --lift"
    for one in found:
        if (one.unit, one.name) == (Unit.IMAGE, image):
            return failed(str(one), f"start another image; {lift} image {image}")
    met = [one for one in found if one.unit in (Unit.DATA, Unit.STORAGE)]
    if not met:
        return ok("nothing that a start would meet is in quarantine")
    told = "; ".join(map(str, met))
    return ok(told, f"{told} ({lift} {met[0].unit.value} {met[0].name})")


def coverage(target: Target) -> Found:
    """The newest checkpoint holds every class of state that a resume needs."""
    run = target.run
    if run is None:
        return not_applicable("there is no run here yet")
    try:
        info = run.newest_usable()
    except NotFoundError:
        return not_applicable("nothing is committed yet")
    held = classes_held(run.manifest(info))
    told = f"c{info.c}: " + ", ".join(name if there else f"no {name}" for name, there in held.items())
    missing = [name for name in NEEDED if not held[name]]
    return failed(told, f"put the {missing[0]} into the state of the session") if missing else ok(told)


def capabilities(target: Target) -> Found:
    """The number of workers is one that the membership admits, and an elastic range is supported by all."""
    membership = target.spec.membership
    if membership is None:
        return not_applicable("no membership is declared")
    if not membership.admits(target.workers):
        return failed(f"{target.workers} workers, and {membership} were agreed on", "start as many")
    found = obstacles(target.spec, now=target.workers)
    if found:
        return failed("; ".join(map(str, found)), "use membership.fixed until all of them support it")
    return ok(f"{target.workers} workers are admitted")
