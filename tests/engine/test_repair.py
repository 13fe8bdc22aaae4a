"""Promotion, repair and scrubbing: only verified bytes are spread, whatever fails or is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_subject import DISK, NEW, OLD, PEER, REMOTE, Checkpoint, checkpoint, flipped, spoil

from durable_core.clock import SystemClock
from durable_core.engine.copies import Fault, Place, SlotSource
from durable_core.engine.promote import promote, share
from durable_core.engine.repair import Outcome, lasting_copies, repair, scrub
from durable_core.engine.transfer import Inventory
from durable_core.errors import TierFull, TierUnavailable
from durable_core.format.manifest import Manifest
from durable_core.testing.faulty import Fault as Planted
from durable_core.testing.faulty import FaultKind, FaultyTier, LyingStore
from durable_core.tier.base import Tier
from durable_core.tier.limit import RateLimit
from durable_core.tier.memory import MemoryTier
from durable_core.tier.posix import PosixTier

DP0, DP1, FIRST = NEW.shard("dp0"), NEW.shard("dp1"), OLD.shard("dp0")
KEYS = (FIRST, DP0, DP1)


def empty(name: str = "remote") -> Place:
    return Place(name, MemoryTier(name), REMOTE)


def inventory(subject: Checkpoint) -> Inventory:
    return Inventory([subject.manifest])


def faults(places: list[Place], subject: Checkpoint) -> list[Fault]:
    return [fault for found in scrub(places, inventory(subject)) for fault in found.faults]


def living(subject: Checkpoint, key: str) -> bytes:
    """What a new copy of an object holds: zeros where nothing refers to it any more."""
    if key != FIRST:
        return subject.objects[key]
    data = bytearray(len(subject.objects[key]))
    for each in inventory(subject).contents[key].stored:
        begin, end = each.extent.begin, each.extent.begin + each.extent.nbytes
        data[begin:end] = subject.objects[key][begin:end]
    return bytes(data)


# --- promotion -----------------------------------------------------------------------------


def test_what_a_place_lacks_is_copied_once() -> None:
    subject = checkpoint()
    disk, remote = subject.place("disk"), empty()
    done = promote([disk], remote, KEYS, inventory(subject))
    assert (done.copied, done.complete, done.bytes) == (KEYS, True, sum(map(len, subject.objects.values())))
    assert {key: remote.tier.get(key) for key in KEYS} == {key: living(subject, key) for key in KEYS}
    again = promote([disk], remote, KEYS, inventory(subject))
    assert (again.copied, again.present, again.bytes, again.complete) == ((), KEYS, 0, True)


def test_what_another_checkpoint_holds_is_copied_too() -> None:
    """Of a shared object every slice that somebody refers to: it is copied once for all of them."""
    subject = checkpoint()
    old = replace(subject.manifest, tensors={"state/frozen": subject.manifest.tensors["state/frozen"]})
    new = replace(subject.manifest, tensors={"state/rows": subject.manifest.tensors["state/rows"]})
    remote = empty()
    promote([subject.place("disk")], remote, [FIRST], Inventory([new, old]))
    assert remote.tier.get(FIRST) == living(subject, FIRST)


def test_bad_bytes_are_never_spread() -> None:
    subject = checkpoint()
    disk, remote = subject.place("disk"), empty()
    spoil(disk.tier, DP0, flipped(subject.objects[DP0], subject.pieces()["state/w"].begin))
    done = promote([disk], remote, KEYS, inventory(subject))
    assert set(done.failed) == {DP0} and not done.complete
    assert done.copied == (FIRST, DP1)
    assert set(remote.tier.list("checkpoints/")) == {FIRST, DP1}
    assert [(fault.place, fault.object, fault.kind) for fault in done.faults] == [("disk", DP0, "corrupt")]


def test_a_slot_helps_out() -> None:
    subject = checkpoint()
    disk, remote = subject.place("disk"), empty()
    spoil(disk.tier, DP0, flipped(subject.objects[DP0], subject.pieces()["state/w"].begin))
    slot = SlotSource("memory", subject.lookup())
    assert promote([disk], remote, KEYS, inventory(subject), slots=[slot]).complete
    assert remote.tier.get(DP0) == subject.objects[DP0]


def test_half_an_object_is_replaced() -> None:
    subject = checkpoint()
    remote = subject.place("remote")
    spoil(remote.tier, DP1, subject.objects[DP1][:100])
    done = promote([subject.place("disk")], remote, KEYS, inventory(subject))
    assert (done.copied, done.present) == ((DP1,), (FIRST, DP0))
    assert remote.tier.get(DP1) == subject.objects[DP1]


def test_one_that_another_copied_meanwhile() -> None:
    subject = checkpoint()

    class Racing(MemoryTier):
        def write_object(self, key: str, parts: object) -> int:
            if key not in self._objects:
                super().put_if_absent(key, subject.objects[key])
            return super().write_object(key, parts)  # type: ignore[arg-type]

    done = promote([subject.place("disk")], Place("remote", Racing(), REMOTE), KEYS, inventory(subject))
    assert done.complete


def test_what_was_there_is_made_durable_before_it_counts() -> None:
    """Its maker died between giving the name and syncing the directory."""
    subject = checkpoint()
    store = LyingStore(sync_directory=False)
    remote = subject.place("remote", tier=store)
    assert promote([subject.place("disk")], remote, KEYS, inventory(subject)).present == KEYS
    store.crash()
    assert faults([remote], subject) == []


@pytest.mark.parametrize("error", [TierFull, TierUnavailable])
def test_a_target_that_fails_is_reported_and_taken_up_again(
    error: Callable[[str], TierFull | TierUnavailable],
) -> None:
    subject = checkpoint()
    disk, store = subject.place("disk"), MemoryTier()
    tier = FaultyTier(store, [Planted(FaultKind.BEFORE, at=2, op="write_object", error=error)])
    remote = Place("remote", tier, REMOTE)
    done = promote([disk], remote, KEYS, inventory(subject))
    assert (done.copied, set(done.failed)) == ((FIRST, DP1), {DP0})
    assert promote([disk], remote, KEYS, inventory(subject)).copied == (DP0,)


def test_stopped_between_two_extents_nothing_half_is_there() -> None:
    subject = checkpoint()
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) == 9

    remote = empty()
    done = promote([subject.place("disk")], remote, KEYS, inventory(subject), stop=stop)
    assert done.stopped and not done.complete
    assert set(done.copied) == set(remote.tier.list("checkpoints/")) != set(KEYS)


def test_the_limit_is_kept() -> None:
    class HandClock(SystemClock):
        at = 0.0

        def monotonic(self) -> float:
            return self.at

        def sleep(self, seconds: float) -> None:
            self.at += seconds

    subject, clock = checkpoint(), HandClock()
    done = promote(
        [subject.place("disk")], empty(), KEYS, inventory(subject), limit=RateLimit(1000, clock, burst_s=0)
    )
    assert clock.at == pytest.approx(done.bytes / 1000)


def test_who_copies_what() -> None:
    objects = checkpoint().manifest.objects
    assert share(objects, "dp0", ["dp0", "dp1"], "dp0") == (FIRST, DP0)
    assert share(objects, "dp1", ["dp0", "dp1"], "dp0") == (DP1,)
    assert share(objects, "dp0", ["dp0"], "dp0") == KEYS  # of a role that is gone, the coordinator
    assert share(objects, "dp2", ["dp0", "dp1", "dp2"], "dp0") == ()
    roles = ["dp1", "dp2", "dp7"]
    taken = [key for role in roles for key in share(objects, role, roles, "dp1")]
    assert sorted(taken) == sorted(KEYS)


# --- scrubbing -----------------------------------------------------------------------------


def test_every_byte_that_counts_is_read() -> None:
    subject = checkpoint()
    assert faults([subject.place("disk")], subject) == []
    for key in KEYS:
        for each in inventory(subject).contents[key].stored:
            disk = subject.place("disk")
            for at in (each.extent.begin, each.extent.begin + each.extent.nbytes - 1):
                spoil(disk.tier, key, flipped(subject.objects[key], at))
                found = faults([disk], subject)
                assert [(fault.object, fault.kind) for fault in found] == [(key, "corrupt")], at


def test_missing_short_and_unreadable() -> None:
    subject = checkpoint()
    disk, remote, down = subject.place("disk"), subject.place("remote"), subject.place("down")
    spoil(disk.tier, DP0, None)
    spoil(remote.tier, DP1, subject.objects[DP1] + b"x")
    dead = Place("down", FaultyTier(down.tier, [Planted(FaultKind.BEFORE, times=10**6)]), REMOTE)
    found = {(fault.place, fault.object, fault.kind) for fault in faults([disk, remote, dead], subject)}
    assert found == {
        ("disk", DP0, "missing"), ("remote", DP1, "corrupt"), *(("down", key, "unreadable") for key in KEYS)
    }  # fmt: skip


def test_lasting_copies_are_counted_by_their_rarest_bytes() -> None:
    subject = checkpoint()
    places = [subject.place("disk"), subject.place("peer", PEER)]
    held = inventory(subject)
    assert lasting_copies(scrub(places, held), places, held) == dict.fromkeys(KEYS, 1)
    spoil(places[0].tier, DP0, flipped(subject.objects[DP0], subject.pieces()["state/w"].begin))
    frozen = replace(subject.manifest, tensors={"state/frozen": subject.manifest.tensors["state/frozen"]})
    places.append(subject.place("remote", REMOTE))
    assert lasting_copies(scrub(places, held), places, held) == {FIRST: 2, DP0: 1, DP1: 2}
    twice = Inventory([replace(frozen, objects=tuple(o for o in frozen.objects if o.key != DP0))])
    assert set(lasting_copies(scrub(places, twice), places, twice).values()) == {2}  # their headers, twins 4


# --- repair --------------------------------------------------------------------------------


@pytest.fixture(params=["replacing at once", "deleting first"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Tier]:
    return (lambda name: PosixTier(tmp_path / name)) if "at once" in request.param else MemoryTier


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "deleted": lambda data: None,
    "truncated": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
    "header": lambda data: flipped(data, 20),
    "last byte": lambda data: flipped(data, len(data) - 1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_object_is_made_again(make: Callable[[str], Tier], damage: str) -> None:
    subject = checkpoint()
    places = [subject.place("disk", tier=make("disk")), subject.place("remote", REMOTE)]
    for key in KEYS:
        spoil(places[0].tier, key, DAMAGE[damage](subject.objects[key]))
    done = repair(faults(places, subject), places, inventory(subject))
    assert [(each.object, each.outcome) for each in done] == [(key, Outcome.REPAIRED) for key in KEYS]
    assert faults(places, subject) == []
    assert {key: places[0].tier.get(key) for key in KEYS} == {key: living(subject, key) for key in KEYS}


def test_a_twin_in_the_same_place_is_copy_enough(make: Callable[[str], Tier]) -> None:
    """One flipped bit in what all share, and no other place."""
    subject = checkpoint()
    disk = subject.place("disk", tier=make("disk"))
    spoil(disk.tier, FIRST, flipped(subject.objects[FIRST], subject.pieces()["state/frozen"].begin))
    done = repair(faults([disk], subject), [disk], inventory(subject))
    if disk.tier.replaces_atomically:
        assert [each.outcome for each in done] == [Outcome.REPAIRED]
        assert faults([disk], subject) == []
    else:  # the rest of the object lies nowhere else, so it must not be removed; restores use the twin
        assert [each.outcome for each in done] == [Outcome.LOST]
        assert len(faults([disk], subject)) == 1


def test_two_copies_damaged_in_different_places_make_two_whole_ones(tmp_path: Path) -> None:
    subject = checkpoint()
    places = [subject.place(name, tier=PosixTier(tmp_path / name)) for name in ("disk", "remote")]
    for place, key in zip(places, ("state/w", "state/b"), strict=True):
        spoil(place.tier, DP0, flipped(subject.objects[DP0], subject.pieces()[key].begin))
    done = repair(faults(places, subject), places, inventory(subject))
    assert [each.outcome for each in done] == [Outcome.REPAIRED] * 2
    assert faults(places, subject) == []


def test_no_whole_copy_is_reported_and_nothing_is_touched(make: Callable[[str], Tier]) -> None:
    subject = checkpoint()
    places = [subject.place(name, tier=make(name)) for name in ("disk", "remote")]
    spoilt = flipped(subject.objects[DP0], subject.pieces()["state/w"].begin)
    for place in places:
        spoil(place.tier, DP0, spoilt)
    done = repair(faults(places, subject), places, inventory(subject))
    assert [(each.place, each.outcome) for each in done] == [
        ("disk", Outcome.LOST), ("remote", Outcome.LOST)
    ]  # fmt: skip
    assert [place.tier.get(DP0) for place in places] == [spoilt, spoilt]


def test_a_slot_is_a_copy(tmp_path: Path) -> None:
    subject = checkpoint()
    disk = subject.place("disk", tier=PosixTier(tmp_path))
    spoil(disk.tier, DP0, flipped(subject.objects[DP0], subject.pieces()["state/w"].begin))
    slot = SlotSource("memory", subject.lookup())
    done = repair(faults([disk], subject), [disk], inventory(subject), slots=[slot])
    assert [each.outcome for each in done] == [Outcome.REPAIRED]


def test_an_old_fault_and_what_nobody_holds() -> None:
    subject = checkpoint()
    disk = subject.place("disk")
    calls = FaultyTier(disk.tier)
    old = [
        Fault("disk", DP0, "corrupt", "once"),
        Fault("memory", DP0, "corrupt", "a slot"),
        Fault("disk", "checkpoints/gone", "missing", "retired meanwhile"),
    ]
    done = repair(old, [Place("disk", calls, DISK)], inventory(subject))
    assert [(each.object, each.outcome, each.reason) for each in done] == [
        (DP0, Outcome.REPAIRED, "it is whole")
    ]
    assert {op for op, _ in calls.calls} == {"size", "read_into"}


def test_unreadable_places_wait() -> None:
    subject = checkpoint()
    disk, remote = subject.place("disk"), subject.place("remote", REMOTE)
    down = Place("remote", FaultyTier(remote.tier, [Planted(FaultKind.BEFORE, times=10**6)]), REMOTE)
    spoil(disk.tier, DP0, None)
    found = [Fault("disk", DP0, "missing", ""), Fault("remote", DP1, "unreadable", "")]
    done = repair(found, [disk, down], inventory(subject))
    assert [each.outcome for each in done] == [Outcome.LATER] * 2


# --- death ---------------------------------------------------------------------------------


def steps_of(root: Path, work: Callable[[Tier], object]) -> int:
    """How many steps ``work`` takes on a directory."""
    seen: list[str] = []

    class Counting(PosixTier):
        def before(self, action: str, path: Path) -> None:
            seen.append(action)

    work(Counting(root))
    return len(seen)


def killed_at(root: Path, nth: int, work: Callable[[Tier], object]) -> None:
    """``work`` in a process that is killed before its step ``nth``."""
    left: Iterator[int] = iter(range(nth))

    class Dying(PosixTier):
        def before(self, action: str, path: Path) -> None:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        try:
            work(Dying(root))
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def test_killed_anywhere_a_promotion_leaves_whole_objects_and_goes_on(tmp_path: Path) -> None:
    subject = checkpoint()
    disk = subject.place("disk")

    def work(tier: Tier) -> object:
        return promote([disk], Place("remote", tier, REMOTE), KEYS, inventory(subject))

    for nth in range(steps_of(tmp_path / "dry", work)):
        root = tmp_path / f"run{nth}"
        killed_at(root, nth, work)
        tier = PosixTier(root)
        for key in tier.list("checkpoints/"):
            assert tier.get(key) == living(subject, key), nth
        work(tier)
        assert faults([Place("remote", tier, REMOTE)], subject) == [], nth


def test_killed_anywhere_a_repair_loses_nothing_and_goes_on(tmp_path: Path) -> None:
    """Both copies are damaged, each elsewhere: there is never a moment at which a slice is nowhere."""
    subject = checkpoint()

    def prepared(root: Path) -> None:
        for name, key in (("disk", "state/w"), ("remote", "state/b")):
            place = subject.place(name, tier=PosixTier(root / name))
            spoil(place.tier, DP0, flipped(subject.objects[DP0], subject.pieces()[key].begin))

    def places(root: Path, disk: Tier | None = None) -> list[Place]:
        first = Place("disk", disk or PosixTier(root / "disk"), DISK)
        return [first, Place("remote", PosixTier(root / "remote"), REMOTE)]

    def work(root: Path) -> Callable[[Tier], object]:
        return lambda tier: repair(
            [Fault("disk", DP0, "corrupt", "")], places(root, tier), inventory(subject)
        )

    prepared(tmp_path / "dry")
    for nth in range(steps_of(tmp_path / "dry" / "disk", work(tmp_path / "dry"))):
        root = tmp_path / f"run{nth}"
        prepared(root)
        killed_at(root / "disk", nth, work(root))
        assert len(faults(places(root), subject)) in (1, 2), nth
        repair(faults(places(root), subject), places(root), inventory(subject))
        assert faults(places(root), subject) == [], nth


def test_manifests_that_disagree_are_refused() -> None:
    subject = checkpoint()
    manifest: Manifest = subject.manifest
    changed = replace(manifest.objects[0], nbytes=manifest.objects[0].nbytes + 1)
    with pytest.raises(Exception, match="disagree"):
        Inventory([manifest, replace(manifest, objects=(changed, *manifest.objects[1:]))])
