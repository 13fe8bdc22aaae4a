"""``durable launch`` on workers without a framework: what ends a group, and what the agent does about it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from durable_core.engine.inspect import open_run
from tests.launch.launching import Launcher, gone, kill, launched, new_run, until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return new_run(tmp_path / "root")


def test_a_killed_worker_is_replaced_with_its_whole_group(tmp_path: Path) -> None:
    with launched(tmp_path, "wait") as launcher:
        first = launcher.seen(2, event="ready", attempt="1")
        kill(first[1]["pid"])
        second = launcher.seen(2, event="ready", attempt="2")
        assert all(gone(line["pid"]) for line in first)
        assert {line["pid"] for line in first}.isdisjoint(line["pid"] for line in second)
        assert {line["told"]["DURABLE_RESTART_REASON"] for line in second} == {"F1"}
        launcher.tell("go")
        assert launcher.ended() == 0
        assert "no run was opened" in launcher.said()


def test_a_failure_is_recorded_and_the_next_group_trains_under_the_next_generation(
    tmp_path: Path, root: Path
) -> None:
    with launched(tmp_path, "finish", str(root), flags=("--root", str(root))) as launcher:
        first = launcher.seen(2, event="ready", attempt="1")
        assert {line["told"]["DURABLE_GENERATION"] for line in first} == {"1"}
        kill(first[0]["pid"])
        second = launcher.seen(2, event="ready", attempt="2")
        assert {line["told"]["DURABLE_GENERATION"] for line in second} == {"2"}
        launcher.tell("go")
        assert launcher.ended() == 0, launcher.said()
    state = open_run(root).state
    failure = state.failures[0].payload
    assert (failure["class"], failure["charged"], failure["action"]) == ("F1", True, "restart")
    assert state.failures[0].generation == 1
    assert state.terminal is not None and state.summary is not None


def test_the_same_failure_again_and_again_ends_the_run(tmp_path: Path, root: Path) -> None:
    with launched(tmp_path, "fail", "it never works", flags=("--root", str(root))) as launcher:
        assert launcher.ended() == 1, launcher.said()
        assert len(launcher.lines(rank=1, event="start")) == 3
    state = open_run(root).state
    assert [line.payload["class"] for line in state.failures] == ["F1", "F1", "F7"]
    assert state.terminal is not None and state.terminal.outcome == "failed"
    assert (
        "it never works" in state.terminal.detail["reason"] or "ValueError" in state.terminal.detail["reason"]
    )


def test_without_a_journal_the_same_failure_ends_the_launch(tmp_path: Path) -> None:
    with launched(tmp_path, "fail", "it never works") as launcher:
        assert launcher.ended() == 1, launcher.said()
        assert len(launcher.lines(rank=1, event="start")) == 3


def test_the_budget_of_a_launch_ends_the_launch_and_not_the_run(tmp_path: Path, root: Path) -> None:
    with launched(tmp_path, "wait", flags=("--root", str(root), "--max-restarts", "0")) as launcher:
        kill(launcher.seen(2, event="ready", attempt="1")[0]["pid"])
        assert launcher.ended() == 1, launcher.said()
        assert "--max-restarts 0" in launcher.said()
    state = open_run(root).state
    assert state.terminal is None and len(state.failures) == 1
    (tmp_path / "log" / "go").touch()
    with launched(tmp_path, "finish", str(root), flags=("--root", str(root))) as launcher:
        assert launcher.ended() == 0, launcher.said()


def test_ending_with_0_without_a_final_record_is_a_failure(tmp_path: Path, root: Path) -> None:
    with launched(tmp_path, "leave", "0", flags=("--root", str(root), "--max-restarts", "0")) as launcher:
        assert launcher.ended() == 1, launcher.said()
    state = open_run(root).state
    assert len(state.failures) == 1
    assert "its run did not" in state.failures[0].payload["evidence"]["what"]


def test_a_fenced_worker_ends_the_launch(tmp_path: Path, root: Path) -> None:
    with launched(tmp_path, "leave", "76", flags=("--root", str(root))) as launcher:
        assert launcher.ended() == 76, launcher.said()
        assert len(launcher.lines(rank=1, event="start")) == 1


def test_a_worker_that_ignores_the_signal_does_not_hold_up_the_restart(tmp_path: Path) -> None:
    """torch waits 30 s for it, a number in its code."""
    with launched(tmp_path, "stubborn", flags=("--kill-grace", "0.3")) as launcher:
        first = launcher.seen(2, event="ready", attempt="1")
        kill(first[0]["pid"])
        launcher.seen(2, event="ready", attempt="2")
        assert gone(first[1]["pid"])


def test_a_worker_that_drained_by_itself_is_not_charged(tmp_path: Path, root: Path) -> None:
    with launched(tmp_path, "drain", flags=("--root", str(root), "--stop-grace", "0.3")) as launcher:
        first = launcher.seen(2, event="ready", attempt="1")
        os.kill(first[0]["pid"], signal.SIGTERM)
        launcher.seen(2, event="ready", attempt="2")
    failures = open_run(root).state.failures
    assert [line.payload["class"] for line in failures] == ["F4"]
    assert failures[0].payload["charged"] is False


def test_workers_that_drain_again_and_again_and_get_nowhere_end_the_launch(
    tmp_path: Path, root: Path
) -> None:
    with launched(tmp_path, "leave", "75", flags=("--root", str(root), "--no-preflight")) as launcher:
        assert launcher.ended() == 1, launcher.said()
        assert "budget_exceeded:F4 (10 of 10" in launcher.said()
    state = open_run(root).state
    assert state.terminal is None and not any(line.payload["charged"] for line in state.failures)


def test_a_planned_stop_drains_and_charges_nobody(tmp_path: Path, root: Path) -> None:
    with launched(tmp_path, "drain", flags=("--root", str(root))) as launcher:
        launcher.seen(2, event="ready")
        os.kill(launcher.pid, signal.SIGINT)
        assert launcher.ended() == 75, launcher.said()
        assert len(launcher.lines(event="drained", why="SIGINT")) == 2
    assert not open_run(root).state.failures


def test_a_second_signal_is_for_those_without_time(tmp_path: Path) -> None:
    with launched(tmp_path, "stubborn", flags=("--stop-grace", "600", "--kill-grace", "0.1")) as launcher:
        first = launcher.seen(2, event="ready")
        os.kill(launcher.pid, signal.SIGINT)
        until(lambda: "draining" in facts(first[0]) or not launcher.alive)
        until(lambda: ended_by(launcher, signal.SIGINT), launcher.said)
        assert launcher.ended() == 1, launcher.said()
        assert all(gone(line["pid"]) for line in first)


def ended_by(launcher: Launcher, number: int) -> bool:
    """Whether it has ended; else it gets one more signal."""
    if launcher.alive:
        os.kill(launcher.pid, number)
    return not launcher.alive


def test_one_stop_that_comes_as_two_signals_is_a_drain_all_the_same(tmp_path: Path) -> None:
    """A scheduler, or timeout(1), tells the process, and its process group."""
    with launched(tmp_path, "drain-slowly", flags=("--kill-grace", "0.1")) as launcher:
        launcher.seen(2, event="ready")
        for _ in range(2):
            os.kill(launcher.pid, signal.SIGTERM)
        launcher.seen(2, event="draining")
        os.kill(launcher.pid, signal.SIGTERM)
        assert launcher.ended() == 75, launcher.said()


def facts(line: dict[str, dict[str, str]]) -> str:
    try:
        return (Path(line["told"]["DURABLE_RUN_DIR"]) / "facts.json").read_text()
    except FileNotFoundError:
        return ""


def test_a_command_that_is_not_there_is_a_mistake_and_ends_the_launch(tmp_path: Path, root: Path) -> None:
    flags = ("--root", str(root), "--no-preflight", "--no-python")
    with launched(tmp_path, flags=flags, script=tmp_path / "notthere") as launcher:
        assert launcher.ended() == 2, launcher.said()
    assert "Traceback" not in launcher.said() and "notthere" in launcher.said()
    state = open_run(root).state
    assert state.terminal is None and [line.payload["class"] for line in state.failures] == ["F16"]
