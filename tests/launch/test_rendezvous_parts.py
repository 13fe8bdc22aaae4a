"""The parts of the rendezvous: one round's meeting, who is there, the run directory, logs that are kept."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from test_books import Ticking
from torch.distributed.elastic.multiprocessing import Std
from torchrun_runs import until

from durable_core.clock import SystemClock
from durable_core.engine.launched import Launched
from durable_core.errors import FormatError, NoUsableCheckpoint, RunBusy, Superseded, rebuilt
from durable_core.launch.rendezvous import KeptLogs, roster, rundir
from durable_core.launch.rendezvous.roster import Roster
from durable_core.launch.rendezvous.terms import TOLD, Disbanded, Here, Meeting, Terms, freshest

TERMS = Terms("host", 5, "launch", 2, "root", ("dp0", "dp1"), "run", 3, "F12", 9)


@pytest.fixture
def store() -> dist.HashStore:
    return dist.HashStore()


def meeting(store: Any, clock: Any = None, restless: Callable[[], bool] = lambda: False) -> Meeting:
    return Meeting(store, clock or SystemClock(), restless)


# --- a meeting -------------------------------------------------------------------------------


def test_node_0_decides_when_all_are_here_and_all_hold_the_same(store: dist.HashStore) -> None:
    heres: list[tuple[Here, ...]] = []

    def decide(found: tuple[Here, ...]) -> Terms:
        heres.append(found)
        return TERMS

    with ThreadPoolExecutor() as pool:
        leading = pool.submit(meeting(store).lead, 3, decide)
        following = [pool.submit(meeting(store).follow) for _ in (1, 2)]
        assert not leading.done()
        for rank in range(3):
            meeting(store).arrive(rank, Here(f"n{rank}", roles=("dp0",), size=rank))
        assert [each.result(60) for each in (leading, *following)] == [TERMS] * 3
    assert [here.node for here in heres[0]] == ["n0", "n1", "n2"]


def test_nothing_is_decided_while_somebody_is_missing(store: dist.HashStore) -> None:
    clock = Ticking()
    meeting(store).arrive(0, Here("n0"))
    with pytest.raises(Disbanded, match="node 1 was not heard of"):
        meeting(store, clock).lead(2, lambda _: pytest.fail("decided"))
    assert clock.at < 1040


def test_whoever_waits_goes_when_somebody_wants_to_join(store: dist.HashStore) -> None:
    clock = Ticking()
    with pytest.raises(Disbanded, match="waits to join"):
        meeting(store, clock, restless=lambda: clock.at > 1005).follow()
    assert clock.at < 1008


def test_terms_of_another_version_are_refused(store: dist.HashStore) -> None:
    store.set("durable/terms", json.dumps({**asdict(TERMS), "more": 1}))
    with pytest.raises(FormatError, match="another version"):
        meeting(store).follow()


def test_what_is_told_is_what_a_worker_reads(tmp_path: Path) -> None:
    told = TERMS.environment()
    assert set(told) == set(TOLD), "everything that may be told is removed before the next attempt"
    launched = Launched.of(told)
    assert (launched.generation, launched.run_id) == (3, "run")
    assert (launched.attempt, launched.reason, launched.onset) == ("launch/2", "F12", 9)
    assert Terms("host", 5, "launch", 1).environment() == {
        "DURABLE_LAUNCH_ID": "launch", "DURABLE_ATTEMPT": "launch/1",
    }  # fmt: skip


def test_of_what_nodes_know_the_newest_counts() -> None:
    new, old = Here("a"), Here("b", "launch", 3, "root")
    assert freshest((new, old, Here("c", "launch", 2, "other"))) == old


@pytest.mark.parametrize("error", [RunBusy("x"), Superseded("x"), NoUsableCheckpoint("x")])
def test_an_error_of_another_process_is_handled_as_what_it_is(error: Any) -> None:
    again = rebuilt(type(error).__name__, "node 0: x")
    assert (type(again), again.exit_code, str(again)) == (type(error), error.exit_code, "node 0: x")
    assert type(rebuilt("Nonsense", "x")).__name__ == "DurableError"
    assert type(rebuilt("annotations", "x")).__name__ == "DurableError"


# --- who is there ----------------------------------------------------------------------------


def test_who_waits_is_told_who_else_does(
    store: dist.HashStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(roster, "LOOK_S", 0.05)
    monkeypatch.setattr(roster, "QUIET_S", 0.0)
    caplog.set_level(logging.WARNING)
    clock = SystemClock()
    first = Roster(store, "n1:10", clock, least=3, seconds=600)
    second = Roster(store, "n2:20", clock, least=3, seconds=600)
    try:
        until(lambda: set(first.seen) == {"n1:10", "n2:20"}, 60, "both are seen")
        second.stop()
        until(lambda: first.seen == ("n1:10",), 60, "one went")
    finally:
        first.stop()
    assert any("2 of 3 are here (n1:10, n2:20)" in line for line in caplog.messages)


# --- the run directory -----------------------------------------------------------------------


def test_a_run_directory_is_private_and_goes_with_its_launcher(tmp_path: Path) -> None:
    made = rundir.RunDir(tmp_path)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    made.files.facts.write_text("{}")
    made.remove()
    made.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_is_in_memory_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "_MEMORY", tmp_path / "memory")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert rundir.place() == tmp_path, "a host without it"
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(rundir, "_ROOM", 0)
    assert rundir.place() == tmp_path / "memory"
    monkeypatch.setattr(rundir, "_ROOM", 1 << 62)
    assert rundir.place() == tmp_path, "a container may have 64 MB, and workers fill it"


def launcher(within: Path) -> tuple[int, Path]:
    """A forked process that has made a run directory and waits to be killed; its pid, and the directory."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, os.fsencode(rundir.RunDir(within).path))
        signal.pause()
        os._exit(0)
    os.close(writing)
    path = os.read(reading, 4096)
    os.close(reading)
    return pid, Path(os.fsdecode(path))


def test_what_a_dead_launcher_left_is_removed_and_a_live_ones_is_not(tmp_path: Path) -> None:
    half_gone = tmp_path / f"durable-launch-{os.getuid()}-half-gone"
    (half_gone / "words").mkdir(parents=True)
    being_made = tmp_path / f".durable-launch-{os.getuid()}-being-made"
    being_made.mkdir()
    pid, theirs = launcher(tmp_path)
    try:
        rundir.sweep(tmp_path)
        assert theirs.is_dir()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    rundir.RunDir(tmp_path).remove()
    assert not theirs.exists(), "the next launcher cleans up"
    assert not half_gone.exists(), "its launcher was killed while it removed it"
    assert being_made.is_dir(), "it may be locked the next moment"


# --- logs ------------------------------------------------------------------------------------


def envs(count: int = 0) -> dict[int, dict[str, str]]:
    return {
        rank: {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": str(count), "RANK": str(rank)}
        for rank in range(2)
    }


@pytest.mark.parametrize("told", [True, False])
def test_logs_of_earlier_attempts_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    logs = KeptLogs(log_dir=str(tmp_path), redirects=Std.ALL)
    kept: list[Path] = []
    for attempt in (1, 2, 3):  # a node that came and went: torch counts no restart
        monkeypatch.delenv("DURABLE_ATTEMPT", raising=False)
        if told:
            monkeypatch.setenv("DURABLE_ATTEMPT", f"launch/{attempt}")
        environ = envs(count=0)
        destination = logs.reify(environ)
        assert environ[1]["TORCHELASTIC_RESTART_COUNT"] == "0"
        for rank in range(2):
            path = Path(destination.stdouts[rank])
            assert path.parts[-3] == f"attempt_{attempt}"
            path.write_text(f"{attempt} {rank}")
            kept.append(path)
    assert [path.read_text() for path in kept] == [f"{a} {r}" for a in (1, 2, 3) for r in range(2)]


def test_each_rank_is_told_what_the_launcher_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLE_GENERATION", "4")
    environ = envs()
    environ[1]["DURABLE_GENERATION"] = "its own"
    KeptLogs(log_dir=str(tmp_path)).reify(environ)
    assert [environ[rank]["DURABLE_GENERATION"] for rank in range(2)] == ["4", "its own"]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_roster_ends_quietly_with_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "LOOK_S", 0.02)
    host = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    client = dist.TCPStore("127.0.0.1", host[0].port, is_master=False)
    counting = Roster(client, "n", SystemClock(), least=2, seconds=600)
    until(lambda: host[0].check(["durable/roster/1"]), 60, "it signs")
    host.clear()
    until(lambda: not counting._thread.is_alive(), 60, "its end")
    counting.stop()
