"""The tools that make stores fail do what they say; otherwise a test that uses them proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from durable_core.errors import InDoubt, ObjectNotFoundError, TierDenied, TierFull, TierUnavailable
from durable_core.testing.faulty import Fault, FaultKind, FaultyTier, LyingStore, SimulatedDeath
from durable_core.tier.memory import MemoryTier

JOURNAL = "journal/00000000000000000000.json"


class Ticks:
    """A clock that only sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def new_id(self) -> str:
        return "0" * 32


@pytest.mark.parametrize(
    ("kind", "raised", "applied"),
    [
        (FaultKind.BEFORE, TierUnavailable, False),
        (FaultKind.AFTER, TierUnavailable, True),
        (FaultKind.LOST_ACK, InDoubt, True),
        (FaultKind.LOST_REQUEST, InDoubt, False),
    ],
)
@pytest.mark.parametrize("op", ["put_if_absent", "put", "write_object", "delete"])
def test_writes_fail_as_said(kind: FaultKind, raised: type[Exception], applied: bool, op: str) -> None:
    tier = FaultyTier(MemoryTier(), [Fault(kind, op=op)])
    calls: dict[str, Callable[[], Any]] = {
        "put_if_absent": lambda: tier.put_if_absent("a/b", b"x"),
        "put": lambda: tier.put("a/b", b"x"),
        "write_object": lambda: tier.write_object("a/b", [b"x"]),
        "delete": lambda: tier.delete("a/gone"),
    }
    tier.inner.put_if_absent("a/gone", b"x")
    with pytest.raises(raised):
        calls[op]()
    there = set(tier.inner.list(""))
    assert there == ({"a/gone"} - {"a/gone" if applied and op == "delete" else ""}) | (
        {"a/b"} if applied and op != "delete" else set()
    )
    tier.put_if_absent("a/c", b"the next call works")


def test_a_torn_write_leaves_half_and_the_process_is_dead() -> None:
    tier = FaultyTier(MemoryTier(), [Fault(FaultKind.TORN, op="write_object")])
    with pytest.raises(SimulatedDeath):
        tier.write_object("a/b", [b"0123", b"4567"])
    assert tier.inner.get("a/b") == b"0123"
    assert not issubclass(SimulatedDeath, Exception)


def test_a_torn_read_is_silently_short() -> None:
    tier = FaultyTier(MemoryTier(), [Fault(FaultKind.TORN, op="get"), Fault(FaultKind.TORN, op="read_into")])
    tier.put_if_absent("a/b", b"01234567")
    assert tier.get("a/b") == b"0123"
    out = bytearray(8)
    tier.read_into("a/b", 0, memoryview(out))
    assert out == b"0123\0\0\0\0"
    assert tier.get("a/b") == b"01234567"


def test_slowness_passes_on_the_clock_that_was_given() -> None:
    clock = Ticks()
    tier = FaultyTier(MemoryTier(), [Fault(FaultKind.SLOW, op="put_if_absent", seconds=30)], clock=clock)
    assert tier.put_if_absent("a/b", b"x") is True
    assert clock.slept == [30]


def test_the_nth_call_of_a_kind_and_key_fails() -> None:
    fault = Fault(FaultKind.BEFORE, at=2, times=2, op="put*", key="journal/*", error=TierFull)
    tier = FaultyTier(MemoryTier(), [fault])
    outcomes = []
    for i in range(5):
        tier.put_if_absent(f"other/{i}", b"x")
        try:
            outcomes.append(tier.put_if_absent(f"journal/{i}", b"x"))
        except TierFull:
            outcomes.append(False)
    assert outcomes == [True, False, False, True, True]
    assert tier.calls[:2] == [("put_if_absent", "other/0"), ("put_if_absent", "journal/0")]


def test_faults_can_be_added_and_count_from_then() -> None:
    tier = FaultyTier(MemoryTier())
    tier.put("a/b", b"1")
    tier.add(Fault(FaultKind.BEFORE, error=TierDenied))
    with pytest.raises(TierDenied):
        tier.put("a/b", b"2")
    assert tier.get("a/b") == b"1"


# --- a file system that loses power --------------------------------------------------------


def test_with_every_fsync_what_was_acknowledged_survives() -> None:
    store = LyingStore()
    store.put_if_absent(JOURNAL, b"record")
    store.write_object("checkpoints/c1/a", [b"shard"])
    store.crash()
    assert store.get(JOURNAL) == b"record"
    assert store.get("checkpoints/c1/a") == b"shard"


@pytest.mark.parametrize("missing", ["sync_directory", "sync_parents"])
def test_without_a_directory_fsync_the_name_is_lost(missing: str) -> None:
    store = LyingStore(**{missing: False})
    store.put_if_absent(JOURNAL, b"record")
    assert store.get(JOURNAL) == b"record"  # visible to all, until
    store.crash()
    with pytest.raises(ObjectNotFoundError):
        store.get(JOURNAL)
    assert store.put_if_absent(JOURNAL, b"another") is True


def test_without_a_file_fsync_the_name_survives_and_the_content_does_not() -> None:
    store = LyingStore(sync_files=False)
    store.put_if_absent(JOURNAL, b"record")
    store.crash()
    assert store.get(JOURNAL) == b"rec"


def test_a_lost_name_may_also_survive() -> None:
    store = LyingStore(sync_directory=False)
    store.put_if_absent("journal/0", b"zero")
    store.put_if_absent("journal/1", b"one!")
    store.crash(survives=lambda key: key.endswith("1"))
    assert list(store.list("")) == ["journal/1"]
    store.crash()
    assert list(store.list("")) == ["journal/1"]  # what survived one crash is on the medium


def test_sync_tail_makes_the_tail_durable_and_nothing_else() -> None:
    store = LyingStore(sync_directory=False)
    store.put_if_absent("journal/0", b"x")
    store.put_if_absent("other/0", b"x")
    store.sync_tail("journal/")
    store.crash()
    assert list(store.list("")) == ["journal/0"]


def test_a_deletion_that_was_not_synced_comes_back() -> None:
    store = LyingStore()
    store.put_if_absent("a/b", b"x")
    store.delete("a/b")
    store.crash()
    assert store.get("a/b") == b"x"
    store.delete("a/b")
    store.sync_tail("a/")
    store.crash()
    assert list(store.list("")) == []


def test_a_hint_may_fall_back_to_an_older_one() -> None:
    store = LyingStore()
    store.put("hints/owner.json", b"old")
    store.sync_tail("hints/")
    store.put("hints/owner.json", b"new")
    store.crash()
    assert store.get("hints/owner.json") == b"old"
