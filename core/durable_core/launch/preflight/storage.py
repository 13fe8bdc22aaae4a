"""L5. Checks of the store, by experiment: what it does, not what it says it is."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from durable_core.errors import DurableError, ObjectNotFoundError, TierUnavailable, UnsupportedError
from durable_core.launch.preflight.report import Found, failed, not_applicable, ok
from durable_core.launch.preflight.target import Target
from durable_core.tier.base import Tier
from durable_core.tier.posix import PosixTier

PREFIX = "hints/preflight/"
#: Writers that race for one key, and how often.
RACERS, ROUNDS = 4, 3
#: Bytes that the bandwidth is measured with, at most: enough to leave the caches of most disks behind.
MEASURED_BYTES = 64 << 20
_PART = 1 << 20
#: Room that must be left besides what is retained: a checkpoint under way, and one that is not yet collected.
SPARE_CHECKPOINTS = 2


#: Seconds after which what a check that was killed has left behind is removed by the next one.
LEFT_S = 3600


def probe_key(target: Target, what: str) -> str:
    """A key of this check alone, which tells when it was made."""
    return f"{PREFIX}{int(target.clock.now())}-{what}-{target.clock.new_id()}"


def _is_left(key: str, now: float) -> bool:
    made = key[len(PREFIX) :].partition("-")[0]
    return made.isdecimal() and now - int(made) > LEFT_S


@contextmanager
def _removed(tier: Tier, *keys: str) -> Iterator[None]:
    try:
        yield
    finally:
        for key in keys:
            tier.delete(key)


def access(target: Target) -> Found:
    """Write, read, list and delete, with the credentials that the run will have."""
    tier, key = target.tier, probe_key(target, "access")
    body = key.encode()
    with _removed(tier, key):
        if not tier.put_if_absent(key, body):
            return failed(f"{key} is new, and the store says that it is there", "use another store")
        if tier.get(key) != body:
            return failed("what is read is not what was written", "use another store")
        listed = set(tier.list(PREFIX))
        for left in listed:
            if _is_left(left, target.clock.now()):
                tier.delete(left)
        if key not in listed:
            return failed("what was written is not listed", "use a store that lists what it holds")
    try:
        tier.get(key)
    except ObjectNotFoundError:
        return ok(f"written, read, listed and deleted in {tier.location}")
    return failed("what was deleted can still be read", "let the credentials delete below the root")


def create_exclusive(target: Target) -> Found:
    """Of writers that create one key at once exactly one succeeds, and what it wrote is there (REC-08)."""
    for number in range(ROUNDS):
        key = probe_key(target, f"race{number}")
        with _removed(target.tier, key):
            wrong = _race(target.tier, key)
        if wrong:
            return failed(wrong, "without it two generations can both commit: use another store")
    return ok(f"{RACERS} writers raced {ROUNDS} times, one won each time")


def _race(tier: Tier, key: str) -> str:
    start, answers = threading.Barrier(RACERS), [False] * RACERS
    errors: list[DurableError | OSError] = []

    def write(place: int) -> None:
        start.wait(10.0)
        try:
            answers[place] = tier.put_if_absent(key, f"{key}:{place}".encode())
        except (DurableError, OSError) as error:
            errors.append(error)

    # No pool: one of those would keep the process from ending while a write hangs.
    threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    winners = [place for place in range(RACERS) if answers[place]]
    if len(winners) != 1:
        return f"{len(winners)} of {RACERS} writers were told that they created the same key"
    return "" if tier.get(key) == f"{key}:{winners[0]}".encode() else "the winner's bytes are not there"


def posix(target: Target) -> Found:
    """Hard links that refuse to replace, and directories that can be made durable."""
    if not isinstance(target.tier, PosixTier):
        return not_applicable(f"{target.tier.location} is no directory")
    try:
        target.tier.probe()
    except UnsupportedError as error:
        return failed(error.message, error.hint)
    return ok("link() refuses a name that is taken; files and directories are synced")


def bandwidth(target: Target) -> Found:
    """Measured, against what the cadence and the RTO need of a checkpoint's bytes."""
    size = target.size
    if size is None:
        return not_applicable("the size of the state is not known yet")
    write, read = _measure(target, min(size, MEASURED_BYTES))
    needs = _needs(target, size)
    told = f"writes {write:.3g} bytes/s, reads {read:.3g} bytes/s; {size} bytes of state"
    wrong = [
        f"{what} needs {needed:.3g} bytes/s"
        for what, needed, measured in (("the cadence", needs[0], write), ("the RTO", needs[1], read))
        if needed is not None and measured < needed
    ]
    if wrong:
        return failed(f"{told}: {', '.join(wrong)}", "save less often, relax the goal, or use a faster store")
    return ok(told + ("" if any(needs) else "; nothing is required of it"))


def _needs(target: Target, size: int) -> tuple[float | None, float | None]:
    """Bytes per second to write (a checkpoint is done when the next begins) and to read (one part of RTO)."""
    every = target.spec.checkpoint.every_seconds
    goals = [goal.rto_seconds for goal in target.spec.recovery.goals if goal.rto_seconds is not None]
    return (None if every is None else size / every), (size / min(goals) if goals else None)


def _measure(target: Target, nbytes: int) -> tuple[float, float]:
    tier, clock, key = target.tier, target.clock, probe_key(target, "bandwidth")
    part = memoryview(os.urandom(min(_PART, max(nbytes, 1))))  # no store makes it smaller
    count = max(1, nbytes // len(part))
    with _removed(tier, key):
        began = clock.monotonic()
        written = tier.write_object(key, (part for _ in range(count)))
        wrote = clock.monotonic() - began
        into = memoryview(bytearray(len(part)))
        began = clock.monotonic()
        for number in range(count):
            tier.read_into(key, number * len(part), into)
        took = clock.monotonic() - began
    if into != part:
        raise TierUnavailable(f"{tier.location}: what is read is not what was written")
    return written / max(wrote, 1e-9), written / max(took, 1e-9)


def capacity(target: Target) -> Found:
    """Room for what is retained and two more."""
    if not isinstance(target.tier, PosixTier):
        return not_applicable(f"{target.tier.location} tells no free capacity")
    size = target.size
    if size is None:
        return not_applicable("the size of the state is not known yet")
    place = next(path for path in (target.tier.root, *target.tier.root.parents) if path.exists())
    status = os.statvfs(place)
    free, count = status.f_bavail * status.f_frsize, target.spec.checkpoint.keep_last + SPARE_CHECKPOINTS
    told = f"{free} bytes are free, {count} checkpoints of {size} need {count * size}"
    if free >= count * size:
        return ok(told)
    return failed(told, "retain fewer, or free some space (durable gc)")
