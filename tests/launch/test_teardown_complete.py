"""Nothing of a group outlives it: however its processes hide, and whoever of the launcher is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from durable_core.launch.agent import sweeping, teardown
from durable_core.launch.agent.keeper import Keeper
from durable_core.launch.agent.starting import Cold
from tests.launch.launching import CLOCK, gone, kill, launched, marked, until

DEAF = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(1, flush=True); time.sleep(600)"
)
CLEARED = "without environment"


def test_the_launcher_is_killed_and_nothing_is_left(tmp_path: Path) -> None:
    with launched(tmp_path, "parent") as launcher:
        ready = launcher.seen(2, event="ready")
        run_dir = Path(ready[0]["told"]["DURABLE_RUN_DIR"])
        hidden = [line["child"] for line in launcher.lines(event="child") if line["how"] != CLEARED]
        kill(launcher.pid)
        until(lambda: all(gone(pid) for pid in [*hidden, *(line["pid"] for line in ready)]))
        until(lambda: not run_dir.exists())
        end_cleared(launcher.lines(event="child"))


def end_cleared(children: list[dict[str, int]]) -> None:
    """What has cleared its environment is found only by an agent that lives; this test has killed it."""
    for line in children:
        if line["how"] == CLEARED and not gone(line["child"]):
            kill(line["child"])


def test_a_worker_is_killed_and_its_children_with_it(tmp_path: Path) -> None:
    with launched(tmp_path, "parent") as launcher:
        first = launcher.seen(2, event="ready", attempt="1")
        children = launcher.lines(event="child", attempt="1")
        assert len(children) == 6
        kill(first[0]["pid"])
        launcher.seen(2, event="ready", attempt="2")
        left = [line["how"] for line in children if not gone(line["child"])]
        assert not left
        launcher.tell("go")
        assert launcher.ended() == 0, launcher.said()
        assert not [line["how"] for line in launcher.lines(event="child") if not gone(line["child"])]


def test_the_keeper_is_killed_and_another_keeps(tmp_path: Path) -> None:
    with launched(tmp_path, "stubborn") as launcher:
        ready = launcher.seen(2, event="ready")
        run_dir = ready[0]["told"]["DURABLE_RUN_DIR"]
        (keeper,) = keepers(run_dir)
        kill(keeper)
        until(lambda: bool(set(keepers(run_dir)) - {keeper}))
        kill(launcher.pid)
        until(lambda: all(gone(line["pid"]) for line in ready) and not Path(run_dir).exists())


def keepers(run_dir: str) -> list[int]:
    return [pid for pid in marked(Path(run_dir)) if b"keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_the_keeper_does_not_hear_what_the_agent_is_sent(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    keeper = Keeper(run_dir, 0.0)
    deaf = child(run_dir)
    until(lambda: b"keeper" in Path(f"/proc/{keeper.pid}/cmdline").read_bytes())
    until(lambda: ignores(keeper.pid, signal.SIGTERM))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(keeper.pid, number)
    assert not keeper.tend(60.0) and deaf.poll() is None
    assert keeper.close(60)
    assert deaf.wait(60) == -signal.SIGKILL
    assert not run_dir.exists()


def ignores(pid: int, number: signal.Signals) -> bool:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigIgn"], 16) >> (number - 1) & 1)


def child(run_dir: Path, **more: str) -> subprocess.Popen[bytes]:
    """A process with the mark of a run directory, that does not hear SIGTERM."""
    env = {**os.environ, "DURABLE_RUN_DIR": str(run_dir), **more}
    command = [sys.executable, "-S", "-c", DEAF, str(run_dir)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.read(1)
    return process


def test_only_what_carries_the_mark_is_found(tmp_path: Path) -> None:
    ours, of_attempt = child(tmp_path / "a"), child(tmp_path / "a", DURABLE_ATTEMPT="x/1")
    other = child(tmp_path / "ab", DURABLE_ATTEMPT="x/1")
    try:
        entry = sweeping.mark(tmp_path / "a")
        assert sweeping.marked(entry) == {ours.pid, of_attempt.pid}
        assert sweeping.marked(entry, also=b"DURABLE_ATTEMPT") == {of_attempt.pid}
    finally:
        for process in (ours, of_attempt, other):
            process.kill()
            process.wait()
    assert not sweeping.marked(entry)


def test_a_sweep_ends_when_nothing_is_found_twice() -> None:
    """What is between fork and exec shows no environment at one look, and does at the next."""
    looks = iter([{-1}, set(), {-1}, set(), set()])
    waited: list[float] = []
    assert sweeping.sweep(lambda: {pid for pid in next(looks) if pid > 0}, waited.append) == frozenset()
    assert len(waited) == 1


def test_a_sweep_gives_up_on_what_does_not_die() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "0"])
    process.wait()
    waited: list[float] = []
    stuck = sweeping.sweep(lambda: {process.pid}, waited.append, looks=30)
    assert stuck == {process.pid}
    assert waited[0] < waited[-1], "later looks come slowly"


@pytest.mark.parametrize("grace_s", [0.0, 1.0])
def test_a_stop_is_bounded_by_its_grace(tmp_path: Path, grace_s: float) -> None:
    env = {**os.environ, "DURABLE_RUN_DIR": str(tmp_path)}
    out = tmp_path / "out"
    deaf = Cold().start([sys.executable, "-S", "-c", DEAF], env, str(out), "")
    hears = Cold().start([sys.executable, "-S", "-c", "import time; time.sleep(600)"], env, "", "")
    until(lambda: out.read_text() == "1\n")
    begun = CLOCK.monotonic()
    stopped = teardown.stop(
        [deaf, hears], graced=lambda: CLOCK.monotonic() - begun < grace_s, wait=CLOCK.sleep, rest=set
    )
    assert deaf.poll() == -signal.SIGKILL
    assert deaf.pid in stopped.forced and not stopped.stuck
    if grace_s:
        assert hears.poll() == -signal.SIGTERM and stopped.forced == (deaf.pid,)


def test_a_worker_that_has_left_last_words_is_not_waited_for(tmp_path: Path) -> None:
    said = tmp_path / "ready"
    process = Cold().start([sys.executable, "-c", DEAF], os.environ, str(said), "")
    until(lambda: said.read_bytes() != b"")
    end = CLOCK.monotonic() + 60
    stopped = teardown.stop(
        [process], graced=lambda: CLOCK.monotonic() < end, wait=CLOCK.sleep, rest=set, parted=lambda pid: True
    )
    assert process.poll() == -signal.SIGKILL
    assert stopped == teardown.Stopped()
    assert CLOCK.monotonic() < end


def test_a_dead_orphan_is_taken_leave_of_and_a_worker_is_not() -> None:
    """A worker's status is its starter's to read: were it taken here, a failure would look like success."""
    worker = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(7)"])
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    sweeping.reap_adopted({worker.pid})
    assert worker.poll() == 7


def test_a_keeper_gets_what_its_interpreter_needs_and_is_not_tried_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ -n "$LIBRARY_OF_PYTHON" ] && exec {sys.executable} "$@"\nexit 127\n')
    python.chmod(0o755)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("DURABLE_RUN_DIR", str(run_dir))
    keeper = Keeper(run_dir, 0.0)
    until(lambda: gone(keeper.pid))
    assert keeper.tend(1.0), "it may have been killed"
    until(lambda: gone(keeper.pid))
    assert not keeper.tend(2.0), "it cannot live"
    monkeypatch.setenv("LIBRARY_OF_PYTHON", "/opt/python/lib")
    assert keeper.tend(3.5)
    until(lambda: b"-S" in Path(f"/proc/{keeper.pid}/cmdline").read_bytes().split(b"\0")[1:2])
    assert b"DURABLE_" not in Path(f"/proc/{keeper.pid}/environ").read_bytes()
    assert keeper.close(30.0) and not run_dir.exists()
