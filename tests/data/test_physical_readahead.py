"""Reading ahead: whatever the store does, the sequence is the one asked for, in bounded room."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from durable_core.data.physical.readahead import ReadAhead
from durable_core.data.physical.retry import Retries
from durable_core.errors import DataUnavailableError, UsageError

DEADLINE = 20.0


class Store:
    """Answers a read only when the test lets it: each key has a gate, and failures to come first."""

    def __init__(self, *, open_gates: bool = True) -> None:
        self.condition = threading.Condition()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.failures: dict[int, list[Exception]] = {}
        self.open: set[int] | None = None if open_gates else set()

    def __call__(self, key: int) -> bytes:
        with self.condition:
            self.begun.append(key)
            self.condition.notify_all()
            assert self.condition.wait_for(lambda: self.open is None or key in self.open, DEADLINE)
            self.ended.append(key)
            self.condition.notify_all()
            if self.failures.get(key):
                raise self.failures[key].pop(0)
        return bytes([key % 251]) * 10

    def release(self, *keys: int) -> None:
        with self.condition:
            assert self.open is not None
            self.open.update(keys)
            self.condition.notify_all()

    def await_begun(self, count: int) -> list[int]:
        with self.condition:
            assert self.condition.wait_for(lambda: len(self.begun) >= count, DEADLINE)
            return sorted(self.begun)


class Instant:
    """A clock whose pauses are noted and not made."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def new_id(self) -> str:
        return "id"


def value(key: int) -> bytes:
    return bytes([key % 251]) * 10


@pytest.fixture
def made() -> Iterator[Callable[..., ReadAhead[int, bytes]]]:
    all_made: list[ReadAhead[int, bytes]] = []

    def make(store: Store, **options: Any) -> ReadAhead[int, bytes]:
        all_made.append(ReadAhead(store, **{"timeout_s": DEADLINE, **options}))
        return all_made[-1]

    yield make
    for ahead in all_made:
        ahead.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("durable-read")]


Make = Callable[..., ReadAhead[int, bytes]]


@pytest.mark.parametrize("seed", range(20))
def test_no_delay_or_failure_changes_the_sequence(made: Make, seed: int) -> None:
    chance = random.Random(seed)
    store = Store(open_gates=False)
    keys = [chance.randrange(40) for _ in range(60)]  # some more than once
    for key in set(keys):
        store.failures[key] = [OSError("flaky")] * chance.randrange(3)
    ahead = made(
        store,
        threads=chance.randint(1, 5),
        max_items=chance.randint(1, 9),
        max_bytes=chance.choice([5, 35, 1000]),
        size_of=chance.choice([None, lambda key: 10]),
        clock=Instant(),
    )
    stop = threading.Event()

    def let_through() -> None:  # in an order of its own, whatever has been begun
        let = random.Random(seed + 1)
        while not stop.is_set():
            with store.condition:
                assert store.open is not None
                shut = [key for key in store.begun if key not in store.open]
                if shut:
                    store.open.add(let.choice(shut))
                    store.condition.notify_all()
                else:
                    store.condition.wait(0.01)

    thread = threading.Thread(target=let_through)
    thread.start()
    found = list(ahead.over(iter(keys)))
    stop.set()
    thread.join()
    assert found == [value(key) for key in keys]
    assert ahead.depth == 0 and ahead.nbytes == 0


def test_reads_run_in_parallel_and_stop_at_the_bound(made: Make) -> None:
    store = Store(open_gates=False)
    ahead = made(store, threads=4, max_items=4)
    ahead.prefetch(range(10))
    assert store.await_begun(4) == [0, 1, 2, 3]
    store.release(3, 2, 1)  # all but the one that is next in turn
    with store.condition:
        assert store.condition.wait_for(lambda: len(store.ended) == 3, DEADLINE)
    assert ahead.depth == 4 and ahead.metrics.held
    assert store.await_begun(4) == [0, 1, 2, 3]  # nothing more begins: the producer is held
    store.release(*range(10))
    assert [ahead.take(key) for key in range(10)] == [value(key) for key in range(10)]
    assert sorted(store.begun) == list(range(10))


@pytest.mark.parametrize(("max_bytes", "in_flight"), [(25, 2), (9, 1), (1000, 3)])
def test_the_bytes_are_bounded(made: Make, max_bytes: int, in_flight: int) -> None:
    store = Store(open_gates=False)
    ahead = made(store, threads=3, max_items=3, max_bytes=max_bytes, size_of=lambda key: 10)
    ahead.prefetch(range(6))
    assert store.await_begun(in_flight) == list(range(in_flight))
    assert ahead.depth == in_flight and ahead.nbytes == 10 * in_flight
    store.release(*range(6))
    for key in range(6):
        assert ahead.take(key) == value(key)
        assert ahead.nbytes <= max(max_bytes, 10)


def test_sizes_that_nobody_told_are_learnt(made: Make) -> None:
    store = Store()
    ahead = made(store, threads=2, max_items=50, max_bytes=30)
    found = []
    for key, got in enumerate(ahead.over(range(20))):
        found.append(got)
        assert key == 0 or ahead.nbytes <= 30
    assert found == [value(key) for key in range(20)]


def test_an_object_that_never_comes_is_named(made: Make) -> None:
    store = Store(open_gates=False)
    ahead = made(store, threads=2, max_items=2, timeout_s=0.05, size_of=lambda key: 10)
    store.release(8)
    with pytest.raises(DataUnavailableError, match=r"7: not there after 0.05 s") as error:
        next(ahead.over([7, 8]))
    assert error.value.key == "7"
    assert ahead.depth == 0 and ahead.nbytes == 10  # what is still being read still takes room
    with pytest.raises(DataUnavailableError, match="7: still being read"):
        ahead.close()
    store.release(7)
    for thread in (t for t in threading.enumerate() if t.name.startswith("durable-read")):
        thread.join(DEADLINE)
    assert ahead.nbytes == 0


def test_retries_are_counted_bounded_and_paused_between(made: Make) -> None:
    clock = Instant()
    store = Store()
    store.failures = {1: [OSError("a"), OSError("b")], 2: [OSError("c")] * 3}
    ahead = made(store, threads=1, retries=Retries(attempts=3, base_s=1.0, cap_s=4.0), clock=clock)
    values = ahead.over([0, 1, 2, 3])
    assert [next(values), next(values)] == [value(0), value(1)]
    with pytest.raises(DataUnavailableError, match=r"2: OSError: c \(attempt 3\)"):
        next(values)
    assert ahead.metrics.retries == 4 and len(clock.pauses) == 4
    assert all(0.5 <= pause <= 2.0 for pause in clock.pauses)


def test_what_cannot_heal_is_not_tried_again(made: Make) -> None:
    store = Store()
    store.failures = {1: [FileNotFoundError("gone")], 2: [ValueError("not a record")]}
    ahead = made(store, clock=Instant())
    with pytest.raises(DataUnavailableError, match="FileNotFoundError"):
        list(ahead.over([0, 1]))
    with pytest.raises(ValueError, match="not a record"):
        list(ahead.over([0, 2]))
    assert ahead.metrics.retries == 0


def test_an_error_is_raised_in_its_place(made: Make) -> None:
    store = Store(open_gates=False)
    store.failures = {3: [ValueError("bad")]}
    ahead = made(store, threads=4, max_items=8)
    store.release(3)
    values = ahead.over(range(5))
    ahead_of_it: list[bytes] = []
    store.release(*range(5))
    with pytest.raises(ValueError, match="bad"):
        ahead_of_it.extend(values)
    assert ahead_of_it == [value(0), value(1), value(2)]
    assert ahead.depth == 0


def test_a_pass_left_early_is_given_up(made: Make) -> None:
    store = Store()
    ahead = made(store, threads=2, max_items=4)
    values = ahead.over(range(100))
    next(values)
    values.close()  # type: ignore[attr-defined]
    assert ahead.depth == 0
    ahead.prefetch([50, 51])
    ahead.prefetch([60, 61])
    assert ahead.take(60) == value(60) and ahead.take(61) == value(61)


def test_keys_asked_for_in_another_order_come_all_the_same(made: Make) -> None:
    store = Store()
    ahead = made(store, threads=2, max_items=3)
    ahead.prefetch(range(8))
    assert [ahead.take(key) for key in (5, 0, 7, 2, 2, 1)] == [value(key) for key in (5, 0, 7, 2, 2, 1)]


@pytest.mark.parametrize("bound", [0, -1, None, float("inf"), 2.5])
@pytest.mark.parametrize("name", ["threads", "max_items", "max_bytes"])
def test_no_bound_is_no_setting(name: str, bound: Any) -> None:
    with pytest.raises(UsageError, match=name):
        ReadAhead(value, **{name: bound})


@pytest.mark.parametrize("timeout_s", [0, float("inf"), float("nan")])
def test_waiting_for_ever_is_no_setting(timeout_s: float) -> None:
    with pytest.raises(UsageError, match="timeout_s"):
        ReadAhead(value, timeout_s=timeout_s)


def test_after_close_nothing_begins(made: Make) -> None:
    ahead = made(Store())
    list(ahead.over(range(3)))
    ahead.close()
    ahead.close()
    with pytest.raises(UsageError, match="closed"):
        ahead.prefetch([1])


def test_it_travels_without_its_threads(made: Make) -> None:
    ahead: ReadAhead[int, bytes] = ReadAhead(value, max_items=3)
    list(ahead.over(range(3)))
    other = pickle.loads(pickle.dumps(ahead))
    try:
        assert list(other.over(range(3))) == [value(key) for key in range(3)]
    finally:
        ahead.close()
        other.close()
