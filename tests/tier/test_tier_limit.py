"""A bandwidth that is kept, by a clock that only the test moves; and a limited tier is still a tier."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from durable_core.clock import SystemClock
from durable_core.errors import ObjectNotFoundError, UsageError
from durable_core.testing.tier_contract import TierContract
from durable_core.tier.base import Tier
from durable_core.tier.limit import PIECE, RateLimit, RateLimited
from durable_core.tier.memory import MemoryTier
from durable_core.tier.posix import PosixTier


class HandClock(SystemClock):
    """Sleeping is what makes time pass."""

    def __init__(self) -> None:
        self.at = 100.0

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def test_a_burst_is_free_and_what_follows_is_paced() -> None:
    clock = HandClock()
    limit = RateLimit(1000, clock, burst_s=2)
    limit.take(2000)
    assert clock.at == 100.0
    limit.take(500)
    assert clock.at == pytest.approx(100.5)
    limit.take(500)
    assert clock.at == pytest.approx(101.0)


def test_what_was_not_used_is_kept_up_to_the_burst() -> None:
    clock = HandClock()
    limit = RateLimit(1000, clock, burst_s=2)
    limit.take(2000)
    clock.at += 3600
    limit.take(2000)
    assert clock.at == 3700.0
    limit.take(1)
    assert clock.at == pytest.approx(3700.001)


@pytest.mark.parametrize("seed", range(5))
def test_never_more_than_the_rate_and_a_burst(seed: int) -> None:
    rng = random.Random(seed)
    clock = HandClock()
    limit = RateLimit(1e6, clock, burst_s=0.5)
    passed: list[tuple[float, int]] = []
    for _ in range(200):
        clock.at += rng.choice((0.0, 0.0, rng.random()))
        nbytes = rng.randrange(1, 400_000)
        limit.take(nbytes)
        passed.append((clock.at, nbytes))
    for first in range(0, 200, 7):
        for last in range(first, 200):
            span = passed[last][0] - passed[first][0]
            assert sum(nbytes for _, nbytes in passed[first + 1 : last + 1]) <= 1e6 * (span + 0.5) + 1


def test_threads_share_it() -> None:
    """Each waits behind what was asked for before it."""
    waits: list[float] = []

    class Still(HandClock):
        def sleep(self, seconds: float) -> None:
            waits.append(seconds)

    limit = RateLimit(1000, Still(), burst_s=0)
    threads = [threading.Thread(target=limit.take, args=(100,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(waits) == pytest.approx([0.1 * n for n in range(1, 9)])


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError):
        RateLimit(0, HandClock())


def test_objects_pass_slowly_in_pieces_and_documents_at_once() -> None:
    clock = HandClock()
    tier = RateLimited(MemoryTier(), RateLimit(PIECE, clock, burst_s=0))
    data = random.Random(1).randbytes(2 * PIECE + 5)
    assert tier.write_object("checkpoints/x", [data[:7], data[7:]]) == len(data)
    assert clock.at - 100 == pytest.approx(len(data) / PIECE)
    written = clock.at
    out, seen = bytearray(len(data)), bytearray()
    tier.stream_into("checkpoints/x", 0, memoryview(out), seen.extend)
    assert out == seen == data
    assert clock.at - written == pytest.approx(len(data) / PIECE)
    read = clock.at
    tier.put_if_absent("journal/0", bytes(PIECE))
    tier.get("journal/0")
    assert clock.at == read


def test_reading_nothing_of_what_is_not_there() -> None:
    tier = RateLimited(MemoryTier(), RateLimit(1, HandClock()))
    with pytest.raises(ObjectNotFoundError):
        tier.read_into("checkpoints/x", 0, memoryview(bytearray()))


class TestLimitedContract(TierContract):
    @pytest.fixture
    def tier(self, tmp_path: Path) -> Tier:
        return RateLimited(PosixTier(tmp_path), RateLimit(1e12, SystemClock()))
