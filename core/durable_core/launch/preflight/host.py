"""L5. Checks of the hosts: their clocks, their software, their memory, who stands by."""

from __future__ import annotations

from pathlib import Path

from durable_core.errors import MemoryShortageError
from durable_core.launch.preflight.report import Found, failed, not_applicable, ok
from durable_core.launch.preflight.storage import probe_key
from durable_core.launch.preflight.target import Node, Target
from durable_core.state import budget
from durable_core.tier.posix import PosixTier

#: Seconds that clocks may differ by: times are for people, but logs of several nodes have to make sense.
SKEW_S = 2.0
#: Staging buffers of a save: one is written while the next is filled.
BUFFERS = 2


def clock_skew(target: Target) -> Found:
    """Among the nodes, and between this one and the server of a shared directory."""
    offsets = {name: node.clock_offset_s for name, node in target.nodes.items()}
    if isinstance(target.tier, PosixTier):
        offsets["the root's file system"] = _file_offset(target, target.tier)
    if not offsets:
        return not_applicable("one node, and a store that tells no time")
    spread = max(0.0, *offsets.values()) - min(0.0, *offsets.values())
    worst = max(offsets, key=lambda name: abs(offsets[name]))
    told = f"{spread:.2f} s at most, {worst}"
    return ok(told) if spread <= SKEW_S else failed(told, "synchronize the clocks")


def _file_offset(target: Target, tier: PosixTier) -> float:
    """Seconds that the time of a new file lies outside of the time in which it was made."""
    key = probe_key(target, "clock")
    before = target.clock.now()
    tier.put(key, b"")
    try:
        made = (tier.root / key).stat().st_mtime
    finally:
        tier.delete(key)
    after = target.clock.now()
    return made - before if made < before else max(0.0, made - after)


def versions(target: Target) -> Found:
    """The same on all nodes, and as the spec says."""
    nodes = dict(target.nodes) or {"this node": Node.here()}
    expected = {
        name: str(value)
        for name, value in (
            *target.spec.provenance.environment,
            *(target.spec.determinism.fingerprint if target.spec.determinism else ()),
        )
    }
    wrong = []
    names = sorted({name for node in nodes.values() for name in node.versions})
    for name in names:
        here = {node: known.versions.get(name, "absent") for node, known in nodes.items()}
        if len(set(here.values())) > 1:
            wrong.append(
                f"{name}: " + ", ".join(f"{value} on {node}" for node, value in sorted(here.items()))
            )
        elif name in expected and expected[name] not in here.values():
            wrong.append(f"{name}: {next(iter(here.values()))}, and the spec says {expected[name]}")
    if wrong:
        return failed("; ".join(wrong), "install the same environment everywhere")
    return ok(f"{len(names)} versions on {len(nodes)} nodes")


def memory(target: Target) -> Found:
    """Room for the staging buffers, and for what peers keep here."""
    known = target.size
    if known is None:
        return not_applicable("the size of the state is not known yet")
    share = -(-known * target.local // max(target.workers, 1))  # what this host's workers stage
    needed = BUFFERS * share + target.peer_copies * share
    what = f"{BUFFERS} buffers and {target.peer_copies} peers' copies of {share} bytes"
    folder = Path(target.shared_memory)
    rooms = budget.rooms(folder if folder.is_dir() else None)
    try:
        budget.require(needed, rooms, what=what)
    except MemoryShortageError as error:
        return failed(error.message, error.hint)
    least = f"{rooms[0].free} bytes are free in {rooms[0].what}" if rooms else "no limit is known"
    return ok(f"{needed} bytes for {what}; {least}")


def standbys(target: Target) -> Found:
    """As many processes wait to step in as were asked for; none is an option (SCHED-13)."""
    asked, ready = target.standbys
    if not asked:
        return not_applicable("none was asked for")
    told = f"{ready} of {asked} are ready"
    return ok(told) if ready >= asked else failed(told, "wait for them, or start cold", transient=True)
