"""What the controller asks of an agent: once each, and only about the group that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_core.engine import words
from durable_core.engine.inspect import open_run
from durable_core.engine.launched import RunFiles
from durable_core.engine.words import Request
from durable_core.launch.agent.house import House
from durable_core.launch.agent.signals import Signals
from tests.launch.launching import CLOCK, Launcher, launched, new_run, until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return new_run(tmp_path / "root")


def files(launcher: Launcher) -> RunFiles:
    return RunFiles(Path(launcher.lines(event="ready")[0]["told"]["DURABLE_RUN_DIR"]))


def ask(launcher: Launcher, name: str, kind: str, generation: int, failure: str = "") -> None:
    stall = {"phase": "STEP", "age_s": 9.0, "limit_s": 3.0, "rank": 1, "place": "h", "frames": []}
    evidence = {"stall": stall} if failure == "F5" else {}
    request = Request(name, kind, generation, failure, "because", evidence)
    words.write(files(launcher).requests / f"{name}.json", request)


def test_a_restart_is_done_once_and_only_for_the_live_generation(tmp_path: Path, root: Path) -> None:
    with launched(tmp_path, "drain", flags=("--root", str(root))) as launcher:
        launcher.seen(2, event="ready", attempt="1")
        ask(launcher, "a" * 32, "restart", 7, "F5")  # of another generation
        ask(launcher, "b" * 32, "restart", 1, "F5")
        second = launcher.seen(2, event="ready", attempt="2")
        assert {line["told"]["DURABLE_RESTART_REASON"] for line in second} == {"F5"}
        ask(launcher, "c" * 32, "restart", 2, "F5")
        launcher.seen(2, event="ready", attempt="3")
        signal_and_end(launcher)
        assert len(launcher.lines(event="start", rank=0)) == 3
    assert [line.payload["class"] for line in open_run(root).state.failures] == ["F5", "F5"]


def test_a_request_about_a_claim_that_the_agent_does_not_know_of_yet_waits(tmp_path: Path) -> None:
    house = House(RunFiles(tmp_path).prepare(), CLOCK, Signals(), print, tuple)
    try:
        for name, generation in (("a", 1), ("b", 2), ("c", 3)):
            path = house.files.requests / f"{name}.json"
            words.write(path, Request(name, "restart", generation, "F5", "it stands"))
        assert house.requests(None) == []
        assert [each.op_id for each in house.requests(2)] == ["b"]
        assert [each.op_id for each in house.requests(3)] == ["c"]
        assert house.requests(3) == []
    finally:
        house.close()


def test_a_drain_is_planned_and_not_charged(tmp_path: Path, root: Path) -> None:
    with launched(tmp_path, "drain", flags=("--root", str(root))) as launcher:
        launcher.seen(2, event="ready", attempt="1")
        ask(launcher, "a" * 32, "drain", 1, "F6")
        launcher.seen(2, event="ready", attempt="2")
        signal_and_end(launcher)
    (failure,) = open_run(root).state.failures
    assert (failure.payload["class"], failure.payload["charged"]) == ("F4", False)


def test_stacks_are_asked_for_where_there_is_a_file_for_them(tmp_path: Path, root: Path) -> None:
    with launched(tmp_path, "drain", flags=("--root", str(root))) as launcher:
        launcher.seen(2, event="ready")
        stacks = [files(launcher).stacks(rank) for rank in (0, 1)]
        until(lambda: all(path.exists() for path in stacks))
        ask(launcher, "a" * 32, "dump", 1)
        until(lambda: all("quick_worker.py" in path.read_text() for path in stacks), launcher.said)
        signal_and_end(launcher)


def test_what_is_no_request_is_told_and_passed_over(tmp_path: Path, root: Path) -> None:
    with launched(tmp_path, "drain", flags=("--root", str(root))) as launcher:
        launcher.seen(2, event="ready")
        (files(launcher).requests / "x.json").write_text("[]")
        until(lambda: "a request is not understood" in launcher.said(), launcher.said)
        signal_and_end(launcher)


def signal_and_end(launcher: Launcher) -> None:
    launcher.process.terminate()
    assert launcher.ended() == 75, launcher.said()
