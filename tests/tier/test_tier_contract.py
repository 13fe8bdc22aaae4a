"""Every tier we ship passes the contract that we ship."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_core.testing.faulty import FaultyTier, LyingStore
from durable_core.testing.tier_contract import TierContract
from durable_core.tier.memory import MemoryTier
from durable_core.tier.posix import PosixTier


class TestMemory(TierContract):
    race_rounds = 1000

    @pytest.fixture
    def tier(self) -> MemoryTier:
        return MemoryTier()


class TestPosix(TierContract):
    race_rounds = 100

    @pytest.fixture
    def tier(self, tmp_path: Path) -> PosixTier:
        return PosixTier(tmp_path / "run")


class TestPosixInMemory(TierContract):
    """The same primitive where fsync costs nothing: room for many more races."""

    race_rounds = 1000

    @pytest.fixture
    def tier(self, tmp_path: Path) -> Iterator[PosixTier]:
        shared_memory = Path("/dev/shm")
        base = shared_memory if os.access(shared_memory, os.W_OK) else tmp_path
        with tempfile.TemporaryDirectory(dir=base, prefix="durable-tier-") as root:
            yield PosixTier(root)


class TestFaultyWithoutFaults(TierContract):
    race_rounds = 100

    @pytest.fixture
    def tier(self) -> FaultyTier:
        return FaultyTier(MemoryTier())


class TestLyingThatDoesNot(TierContract):
    race_rounds = 100

    @pytest.fixture
    def tier(self) -> LyingStore:
        return LyingStore()
