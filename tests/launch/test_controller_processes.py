"""The controller as a process of its own, beside real workers under ``durable launch``."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from durable_core.clock import SystemClock
from durable_core.commit.claim import create_run
from durable_core.commit.journal import replay
from durable_core.engine.inspect import Reader, open_run
from durable_core.engine.performer import Performer
from durable_core.format.record import Kind
from durable_core.launch.controller import report
from durable_core.launch.machine import Event, State, move
from durable_core.tier.posix import PosixTier
from durable_core.types import Promise
from tests.launch.launching import Launcher, gone, kill, launched, until

WORKER = Path(__file__).parent / "beating_worker.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run that nobody has trained yet."""
    path = tmp_path / "root"
    path.mkdir()
    performer = Performer(PosixTier(path), SystemClock())
    spec = {"roles": ["dp0", "dp1"], "cancel_authority": ["operator"]}
    performer.run(
        create_run(
            performer.run(replay()), launch_id="test", run_id="run", spec=spec, seed=1,
            spec_digest="sha256:" + "0" * 64, promise=Promise.BITWISE,
        )
    )  # fmt: skip
    return path


def controllers(launcher: Launcher) -> list[int]:
    """Those that the launcher has started."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            parent = int((path / "stat").read_bytes().rpartition(b")")[2].split()[1])
            ours = b"durable_core.launch.controller" in (path / "cmdline").read_bytes()
        except OSError:
            continue
        if ours and parent == launcher.pid:
            found.append(int(path.name))
    return found


def states(reader: Reader) -> list[tuple[int, str]]:
    return [(r.generation, r.payload["state"]) for r in said(reader)]


def said(reader: Reader) -> list:
    entries = [entry for entry in reader.entries() if not entry.void]
    return [entry.record for entry in entries if entry.record.kind is Kind.RUN_STATE]


def running(root: Path, generation: int) -> bool:
    return (generation, "running") in states(open_run(root))


def test_it_starts_quickly_and_without_torch(tmp_path: Path) -> None:
    code = "import durable_core.launch.controller.__main__, sys; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_it_ends_with_whoever_started_it(tmp_path: Path, root: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'durable_core.launch.controller', sys.argv[1],"
        " '--launch-id', 'x', '--root', sys.argv[2]])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            until(lambda: open_run(root).state.reconciler > 0)
        finally:
            parent.kill()
    until(lambda: gone(child))


def test_the_second_takes_over_and_the_first_ends_with_76(tmp_path: Path, root: Path) -> None:
    command = [sys.executable, "-m", "durable_core.launch.controller", str(tmp_path), "--launch-id", "x"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for count in (1, 2):
            started.append(subprocess.Popen([*command, "--root", str(root)], stderr=subprocess.PIPE))
            until(lambda count=count: open_run(root).state.reconciler >= count)
        assert started[0].wait(60) == 76
        assert started[1].poll() is None
        started[1].terminate()
        assert started[1].wait(60) == 0
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_a_hang_is_diagnosed_ended_and_gone_around(tmp_path: Path, root: Path) -> None:
    flags = ("--root", str(root), "--step-limit", "6")
    with launched(tmp_path, str(root), "hang", flags=flags, script=WORKER) as launcher:
        first = launcher.seen(2, event="start", generation=1)
        until(lambda: (1, "suspect") in states(open_run(root)), launcher.said)
        assert not any(gone(line["pid"]) for line in first), "suspected, and alive"
        until(lambda: violated(root), launcher.said)
        launcher.seen(2, event="start", generation=2)
        until(lambda: running(root, 2), launcher.said)
        launcher.tell("go")
        assert launcher.ended() == 0, launcher.said()
    reader = open_run(root)
    seen = [state for g, state in states(reader) if g == 1]
    assert seen[:5] == ["restoring", "probation", "running", "suspect", "fencing"]
    (failure,) = reader.state.failures
    assert failure.payload["class"] == "F5" and failure.payload["evidence"]["culprit"] == 1
    fencing = next(record for record in said(reader) if record.payload["state"] == "fencing")
    bundle = json.loads(reader.tier.get(fencing.payload["evidence"]["incident"]))
    assert "in stuck" in bundle["stacks"]["1"] and "in wait_for_peer" in bundle["stacks"]["0"]
    assert reader.state.terminal is not None
    # RECOV-01: found out, ended and recorded under the old generation, fenced by the next, then proven
    order = [(entry.record.kind.value, entry.record.generation, entry.record.payload.get("state"))
             for entry in reader.entries()]  # fmt: skip
    steps = [
        ("run.state", 1, "suspect"), ("run.state", 1, "fencing"), ("failure", 1, None),
        ("generation.started", 2, None), ("run.state", 2, "restoring"), ("run.state", 2, "probation"),
        ("run.state", 2, "running"), ("run.succeeded", 2, None),
    ]  # fmt: skip
    assert [step for step in order if step in steps] == steps


def violated(root: Path) -> bool:
    """Whether the report names who stands."""
    told = report.read(PosixTier(root))
    rows = [] if told is None else told.rows("violations")
    return any((row["invariant"], row["rank"]) == ("progress", 1) for row in rows)


def test_killed_at_random_it_is_replaced_and_the_workers_train_on(tmp_path: Path, root: Path) -> None:
    dice = random.Random(7)
    clock = SystemClock()
    with launched(tmp_path, str(root), "train", flags=("--root", str(root)), script=WORKER) as launcher:
        first = launcher.seen(2, event="start")
        killed: set[int] = set()
        for _ in range(4):
            until(lambda: bool(set(controllers(launcher)) - killed), launcher.said)
            pid = (set(controllers(launcher)) - killed).pop()
            clock.sleep(dice.uniform(0.0, 1.5))  # not a wait: the instant of the kill
            kill(pid)
            killed.add(pid)
        before = open_run(root).state.reconciler
        until(lambda: open_run(root).state.reconciler > before or running(root, 1), launcher.said)
        until(lambda: running(root, 1), launcher.said)
        assert not any(gone(line["pid"]) for line in first)
        launcher.tell("go")
        assert launcher.ended() == 0, launcher.said()
        assert len(launcher.lines(event="start")) == 2, "no worker was started again"
    reader = open_run(root)
    records = said(reader)
    assert [record.payload["state"] for record in records] == ["restoring", "probation", "running"]
    assert len({record.op_id for record in records}) == 3
    for record in records:
        payload = record.payload
        assert move(State(payload["from"]), Event(payload["event"])).target.value == payload["state"]
    assert reader.state.generation == 1 and not reader.state.failures
