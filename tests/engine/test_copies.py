"""Restoring from many copies: the fastest whole one for every slice, whatever is damaged in the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_subject import (
    DISK,
    MANIFEST,
    NEW,
    OLD,
    PEER,
    REMOTE,
    Checkpoint,
    checkpoint,
    flipped,
    spoil,
)

from durable_core.engine import restore
from durable_core.engine.copies import Place, SlotSource, Sources, TierSource
from durable_core.errors import (
    CorruptError,
    DigestMismatchError,
    ObjectNotFoundError,
    TierUnavailable,
)
from durable_core.state import memory
from durable_core.testing.faulty import Fault as Planted
from durable_core.testing.faulty import FaultKind, FaultyTier
from durable_core.tier.base import Tier
from durable_core.tier.memory import MemoryTier
from durable_core.tier.posix import PosixTier

DP0, DP1, FIRST = NEW.shard("dp0"), NEW.shard("dp1"), OLD.shard("dp0")


def restored(subject: Checkpoint, *sources: Place | SlotSource) -> restore.Restored:
    """Restored from these, and found to be what was saved."""
    asked = Sources([TierSource(each) if isinstance(each, Place) else each for each in sources])
    found = restore.read(subject.home(), MANIFEST, subject.digest, "dp0", asked)
    for key, data in subject.contents.items():
        assert bytes(memory.writable(found.state[key[6:]])) == data, key
    return found


def test_home_alone_by_default() -> None:
    subject = checkpoint()
    home = subject.home()
    subject.place("home", tier=home)
    found = restore.read(home, MANIFEST, subject.digest, "dp0")
    assert found.bytes_read > sum(map(len, subject.contents.values()))  # the base and the patch of ``rows``
    assert found.bytes_from == {"home": found.bytes_read}
    assert found.faults == ()


def test_the_first_is_asked_for_everything() -> None:
    subject = checkpoint()
    found = restored(subject, subject.place("disk"), subject.place("remote"))
    assert set(found.bytes_from) == {"disk"}


def test_memory_gives_whole_slices_without_objects() -> None:
    subject = checkpoint()
    found = restored(subject, SlotSource("memory", subject.lookup()), Place("disk", MemoryTier(), DISK))
    assert found.bytes_from == {"memory": sum(map(len, subject.contents.values()))}
    assert found.faults == ()


def test_memory_that_has_only_some_is_no_fault() -> None:
    subject = checkpoint()
    found = restored(subject, SlotSource("memory", subject.lookup(w=b"", rows=b"")), subject.place("disk"))
    assert set(found.bytes_from) == {"memory", "disk"}
    assert found.faults == ()


def test_memory_with_other_bytes_is_found_out() -> None:
    subject = checkpoint()
    spoilt = {name: flipped(subject.contents[f"state/{name}"], 7) for name in ("w", "rows")}
    found = restored(subject, SlotSource("memory", subject.lookup(**spoilt)), subject.place("disk"))
    assert {(fault.place, fault.kind) for fault in found.faults} == {("memory", "corrupt")}


def test_memory_overwritten_while_it_is_read() -> None:
    subject = checkpoint()
    lookup = subject.lookup()
    asked: set[str] = set()

    def forgetful(piece: object, xxh3: str) -> memoryview | None:
        first = xxh3 not in asked
        asked.add(xxh3)
        return lookup(piece, xxh3) if first else None  # type: ignore[arg-type]

    found = restored(subject, SlotSource("memory", forgetful), subject.place("disk"))
    assert found.bytes_from.keys() == {"disk"}


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "deleted": lambda data: None,
    "empty": lambda data: b"",
    "truncated": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "zeros": lambda data: bytes(len(data)),
    "header": lambda data: flipped(data, 20),
    "last byte": lambda data: flipped(data, len(data) - 1),
}


@pytest.mark.parametrize("key", [DP0, DP1, FIRST])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_object_is_stepped_around(key: str, damage: str) -> None:
    subject = checkpoint()
    disk, remote = subject.place("disk", DISK), subject.place("remote", REMOTE)
    spoil(disk.tier, key, DAMAGE[damage](subject.objects[key]))
    found = restored(subject, disk, remote)
    assert {(fault.place, fault.object) for fault in found.faults} == {("disk", key)}
    kinds = {fault.kind for fault in found.faults}
    assert kinds == ({"missing"} if damage == "deleted" else {"corrupt"})
    assert "disk" in found.bytes_from  # what is whole there still comes from there


def test_every_slice_for_itself() -> None:
    """Each place is damaged somewhere, none in the same slice: together they are whole."""
    subject = checkpoint()
    places = [subject.place(name, REMOTE) for name in ("disk", "near", "remote")]
    begins = {piece.info.slice.key: piece for piece in subject.pieces().values()}
    for place, key in zip(places, ("state/w", "state/v", "state/b"), strict=True):
        piece = begins[key]
        spoil(place.tier, piece.object, flipped(subject.objects[piece.object], piece.begin + 1))
    found = restored(subject, *places)
    assert {fault.place for fault in found.faults} == {"disk"}
    assert set(found.bytes_from) == {"disk", "near"}


def test_a_twin_in_the_same_place() -> None:
    subject = checkpoint()
    disk = subject.place("disk")
    piece = subject.pieces()["state/frozen"]
    spoil(disk.tier, FIRST, flipped(subject.objects[FIRST], piece.begin))
    assert [fault.object for fault in restored(subject, disk).faults] == [FIRST]


def test_a_stale_copy_is_never_taken_for_the_newest() -> None:
    """A place that has objects of the same names and sizes, of another history."""
    subject, stale = checkpoint(0), checkpoint(1)
    assert {key: len(data) for key, data in subject.objects.items()} == {
        key: len(data) for key, data in stale.objects.items()
    }
    found = restored(subject, stale.place("disk"), subject.place("remote", REMOTE))
    assert set(found.bytes_from) == {"remote"}
    assert {fault.kind for fault in found.faults} == {"corrupt"}
    slot = SlotSource("memory", stale.lookup())
    assert set(restored(subject, slot, subject.place("remote", REMOTE)).bytes_from) == {"remote"}


def read_alone(subject: Checkpoint, *places: Place) -> restore.Restored:
    return restore.read(
        subject.home(), MANIFEST, subject.digest, "dp0", Sources([TierSource(each) for each in places])
    )


def test_nowhere_whole_is_corrupt() -> None:
    subject = checkpoint()
    places = [subject.place(name) for name in ("disk", "remote")]
    at = subject.pieces()["state/w"].begin
    for place in places:
        spoil(place.tier, DP0, flipped(subject.objects[DP0], at))
    with pytest.raises(DigestMismatchError, match="state/w") as raised:
        read_alone(subject, *places)
    assert raised.value.key == DP0


def test_missing_here_and_damaged_there_is_corrupt() -> None:
    subject = checkpoint()
    places = [subject.place(name) for name in ("disk", "remote")]
    spoil(places[0].tier, DP1, subject.objects[DP1][:-1])
    spoil(places[1].tier, DP1, None)
    with pytest.raises(CorruptError):
        read_alone(subject, *places)


def test_nowhere_is_missing_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = checkpoint()
    place = subject.place("disk")
    spoil(place.tier, DP1, None)
    monkeypatch.setattr(memory, "alloc", lambda *args, **more: pytest.fail("allocated"))
    with pytest.raises(ObjectNotFoundError) as raised:
        read_alone(subject, place)
    assert raised.value.key == DP1


def unreachable(inner: Tier) -> FaultyTier:
    return FaultyTier(inner, [Planted(FaultKind.BEFORE, times=10**6, op="*")])


def test_a_lasting_place_that_cannot_be_read_is_waited_for() -> None:
    """It may be whole: nobody may call the checkpoint corrupt."""
    subject = checkpoint()
    disk, remote = subject.place("disk"), subject.place("remote", REMOTE)
    spoil(disk.tier, DP0, None)
    down = Place("remote", unreachable(remote.tier), REMOTE)
    for order in ([disk, down], [down, disk]):
        with pytest.raises(TierUnavailable):
            read_alone(subject, *order)


def test_a_volatile_place_that_cannot_be_read_is_gone() -> None:
    subject = checkpoint()
    disk, peer = subject.place("disk"), subject.place("peer", PEER)
    spoil(disk.tier, DP0, subject.objects[DP0][:-1])
    with pytest.raises(CorruptError):
        read_alone(subject, Place("peer", unreachable(peer.tier), PEER), disk)


def test_a_place_that_does_not_answer_is_asked_last() -> None:
    subject = checkpoint()
    dead = unreachable(subject.place("peer", PEER).tier)
    found = restored(subject, Place("peer", dead, PEER), subject.place("disk"))
    assert set(found.bytes_from) == {"disk"}
    assert {fault.kind for fault in found.faults} == {"unreadable"}
    assert len(dead.calls) == 1


def test_slices_from_a_directory(tmp_path: Path) -> None:
    subject = checkpoint()
    disk = subject.place("disk", tier=PosixTier(tmp_path))
    spoil(disk.tier, DP1, None)
    found = restored(subject, disk, subject.place("remote", REMOTE))
    assert {(fault.object, fault.kind) for fault in found.faults} == {(DP1, "missing")}


@pytest.mark.parametrize("at", [0, 9, 17, 30])
def test_a_damaged_patch_is_found(at: int) -> None:
    subject = checkpoint()
    disk = subject.place("disk")
    extent = subject.pieces()["state/rows"].patches[0]
    spoil(disk.tier, DP0, flipped(subject.objects[DP0], extent.begin + at))
    with pytest.raises(CorruptError) as raised:
        read_alone(subject, disk)
    assert raised.value.key == DP0


def test_a_whole_base_and_whole_patches_that_are_not_the_slice() -> None:
    subject = checkpoint()
    piece = subject.pieces()["state/rows"]
    other = piece._replace(info=piece.info._replace(xxh3="0" * 32))
    objects = {info.key: info for info in subject.manifest.objects}
    with pytest.raises(DigestMismatchError, match="once it is patched"):
        Sources([TierSource(subject.place("disk"))]).read_slice(
            other, objects, memoryview(bytearray(piece.info.nbytes))
        )
