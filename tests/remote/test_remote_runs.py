"""Whole runs whose home is an object store: looked at, killed, fenced, and trained through its faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from remote_loop import train
from remote_servers import BUCKET, FaultProxy, Seen, raw_client

from durable_core import DurableSession, events
from durable_core.cli.app import run as durable
from durable_core.engine.inspect import open_run
from tests.session.zombie_tiers import haunt, places

HERE = Path(__file__).parent
STEPS = 11


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run on a local disk that nothing happened to."""
    return train(str(tmp_path_factory.mktemp("calm") / "run"), STEPS)


@pytest.fixture
def root(prefix: str, weed: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", weed)
    return f"s3://{BUCKET}/runs/{prefix}"


def check_whole(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every retained byte verifies, every sample was consumed exactly once, and gc leaves nothing dead."""
    for command in (["gc", root, "--keep-last", "2", "--json"], ["verify", root], ["audit", root]):
        capsys.readouterr()
        assert durable(command) == 0, capsys.readouterr()
        if command[0] == "gc":
            assert json.loads(capsys.readouterr().out)["complete"] is True


def test_every_command_reads_a_run_in_a_store(
    root: str, backend: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = f"{root}?backend={backend}"
    assert train(root, STEPS) == expected
    for command in ("ls", "show", "status", "journal", "verify", "audit"):
        assert durable([command, root]) == 0, command
    assert durable(["export", root, str(tmp_path / "out"), "--format", "safetensors"]) == 0
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 0
    capsys.readouterr()
    assert durable(["status", root + "-none", "--json"]) != 0
    check_whole(root, capsys)
    committed = open_run(root).committed()
    assert committed[-1].step == STEPS


def test_no_run_in_a_store_is_a_typed_error(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert durable(["status", root]) == 3
    assert "no run here" in capsys.readouterr().err


@pytest.mark.parametrize("crash", ["K6:2", "K12:3"])
def test_kill_9_and_resume_from_a_store(
    root: str, expected: str, crash: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        sys.executable,
        "-m",
        "durable_core.testing.crash",
        str(HERE / "remote_loop.py"),
        root,
        str(STEPS),
    ]
    environment = {**os.environ, "DURABLE_TEST_CRASH": crash}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the owner's heartbeat is of a process that is gone
        assert train(root, STEPS, takeover=True) == expected
    check_whole(root, capsys)


@pytest.mark.parametrize("point", ["K6", "K12"])
def test_a_stopped_writer_cannot_commit_over_a_newer_generation_in_a_store(
    root: str, expected: str, point: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, str(HERE / "remote_zombie.py"), root, point]
    zombie = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    woken: list[str] = []

    def wake(step: int, session: DurableSession) -> None:
        session.flush()
        if step == 6:  # well past what the zombie holds, and not yet at the end
            os.kill(zombie.pid, signal.SIGCONT)
            out, err = zombie.communicate(timeout=120)
            assert zombie.returncode == 76, err
            woken.append(out.strip())

    try:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), zombie.communicate()
        assert train(root, STEPS, at=wake, takeover=True) == expected
    finally:
        zombie.kill()
        zombie.wait()
    assert woken and woken[0] in ("Fenced", "Superseded")
    state = open_run(root).state
    assert {state.checkpoints[c].generation for c in state.lineage() if state.checkpoints[c].step > 2} == {2}
    check_whole(root, capsys)


def test_a_stopped_writer_changes_nothing_in_any_tier_before_a_store(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with places(tmp_path, monkeypatch):
        haunt(root, tmp_path, "K12")


def journal_puts(seen: Seen) -> bool:
    return seen.method == "PUT" and "/journal/" in seen.key


def shard_puts(seen: Seen) -> bool:
    return seen.method == "PUT" and "/shard-" in seen.key


def any_put(seen: Seen) -> bool:
    return seen.method == "PUT"


@pytest.mark.parametrize(
    ("backend", "ballast"), [("obstore", 20), ("s3fs", 0)], ids=["obstore-multipart", "s3fs-single"]
)
def test_training_goes_on_through_every_fault_of_the_store(
    proxy: FaultProxy, weed: str, root: str, backend: str, expected: str, ballast: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    url = f"{root}?backend={backend}"
    seen: list[events.Event] = []
    plan: dict[int, Callable[[], object]] = {
        1: lambda: proxy.add("drop-answer", when=journal_puts),
        2: lambda: proxy.add("answer", when=any_put, times=4),
        3: lambda: proxy.add("answer", when=journal_puts, status=409, code="ConditionalRequestConflict"),
        4: lambda: proxy.add("reset", when=shard_puts, times=2),
        5: lambda: proxy.add("answer", times=10**6, status=403, code="ExpiredToken"),
        7: proxy.clear,
        8: lambda: proxy.add("drop-answer", when=shard_puts),
        9: lambda: proxy.add("drop-answer", when=any_put, times=2),
        10: proxy.clear,
    }

    def at(step: int, session: DurableSession) -> None:
        session.flush()
        if session.run.board.listeners and seen.append not in session.run.board.listeners:
            session.run.board.listeners.append(seen.append)
        plan.get(step, lambda: None)()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert train(url, STEPS, ballast=ballast, at=at) == expected
    failed = {event.step: event.error for event in seen if isinstance(event, events.SaveFailed)}
    assert set(failed) <= {6, 7}, failed  # only while nothing at all was let through
    assert failed and all("credentials" in error for error in failed.values())
    assert any("training goes on" in str(each.message) for each in told)
    committed = {event.step for event in seen if isinstance(event, events.SaveCommitted)}
    assert {2, 3, 4, 5, 8, 9, 10} <= committed
    check_whole(url, capsys)
    left = raw_client(weed).list_multipart_uploads(Bucket=BUCKET, Prefix=root.removeprefix(f"s3://{BUCKET}/"))
    assert not left.get("Uploads")
