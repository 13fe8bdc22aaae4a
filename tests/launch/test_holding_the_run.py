"""A launch owns its run also while no worker of it beats."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from durable_core.engine import heartbeat
from durable_core.format import canonical, layout
from durable_core.launch.books import Books, record_name
from durable_core.launch.holding import Holding
from durable_core.tier.posix import PosixTier
from tests.launch.launching import CLOCK, launched, new_run, until


@pytest.fixture
def tier(tmp_path: Path) -> PosixTier:
    return PosixTier(new_run(tmp_path / "root"))


def hint(tier: PosixTier, pid: int, started: int | None = None, rows: tuple[int, ...] = ()) -> None:
    started = heartbeat.process_start(pid) or 0 if started is None else started
    owner = heartbeat.Owner(
        "ours", 3, os.uname().nodename, heartbeat.boot_id(), pid, started, CLOCK.now(), list(rows)
    )
    tier.put(layout.OWNER_HINT, canonical.dumps(vars(owner)))


def held(tier: PosixTier) -> heartbeat.Owner:
    owner = heartbeat.read(tier)
    assert owner is not None
    return owner


def test_it_takes_the_place_of_the_dead_and_keeps_their_rows(tmp_path: Path, tier: PosixTier) -> None:
    holding = Holding(str(tmp_path / "root"), PosixTier, CLOCK, "ours")
    hint(tier, os.getppid())
    holding.hold(tier)
    assert held(tier).pid == os.getppid(), "a worker that lives keeps it"
    hint(tier, os.getppid(), started=1, rows=(1, 2))
    holding.hold(tier)
    assert (held(tier).pid, held(tier).rows) == (os.getpid(), [1, 2])


def test_at_the_end_it_is_nobodys(tmp_path: Path, tier: PosixTier) -> None:
    holding = Holding(str(tmp_path / "root"), PosixTier, CLOCK, "ours")
    holding.end()
    holding.begin(4)
    until(lambda: heartbeat.read(tier) is not None)
    assert held(tier).generation == 4
    holding.end()
    holding.end()
    assert heartbeat.read(tier) is None


def test_an_agent_holds_the_run_while_its_workers_do_not(tmp_path: Path, tier: PosixTier) -> None:
    root = tmp_path / "root"
    with launched(tmp_path, "drain", flags=("--root", str(root), "--no-preflight")) as launcher:
        ready = launcher.seen(2, event="ready")
        until(lambda: heartbeat.read(tier) is not None)
        assert held(tier).pid == launcher.pid
        assert held(tier).launch_id == record_name(ready[0]["told"]["DURABLE_LAUNCH_ID"])
        assert "owns the run" in Books(root, CLOCK, "another").busy()
        os.kill(launcher.pid, signal.SIGTERM)
        assert launcher.ended() == 75, launcher.said()
    assert heartbeat.read(tier) is None
