"""A stopped writer wakes up when others have gone on without it: no tier takes anything from it any more."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from session_helpers import check, restored, start, state_at
from zombie_tiers_writer import SIZE, STEP, tiers_of

from durable_core.engine.inspect import open_run
from durable_core.engine.verify import verify
from durable_core.tier.peer.agent import Agent
from durable_core.tier.peer.secret import Secret

SECRET = "a secret that the zombie knows"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Memory, a peer and a disk, for ``tiers_of``."""
    monkeypatch.setenv("DURABLE_PEER_SECRET", SECRET)
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="durable-zombie-", dir=shm) as memory,
        Agent(Path(memory) / "agent", secret=Secret(SECRET), capacity_bytes=1 << 26) as agent,
    ):
        (tmp_path / "memory").symlink_to(memory)
        (tmp_path / "peer").write_text(agent.address)
        yield tmp_path


def contents(directory: Path) -> dict[str, str]:
    """Every file and what is in it, but for hints and temporaries."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and not {"hints", "tmp"}.intersection(path.parts)
    }


@pytest.mark.parametrize("point", ["K4", "K5", "K6", "K12"])
def test_nothing_that_a_stopped_writer_does_afterwards_counts_in_any_tier(base: Path, point: str) -> None:
    root = base / "root"
    script = Path(__file__).parent / "zombie_tiers_writer.py"
    zombie = subprocess.Popen(
        [sys.executable, str(script), str(root), str(base), point], stdout=subprocess.PIPE, text=True
    )
    try:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        run = start(root, takeover=True, tiers=tiers_of(base))
        assert run.restored_from is not None
        _, first = run.restored_from  # what it had sealed before it was stopped was adopted
        assert first in (1, STEP) and (first == STEP or point != "K5")
        steps = range(first + 1, first + 4)
        for step in steps:
            run.save(state_at(step), {}, step=step, wait=True)
        run.flush()
        before = {place: contents(base / place) for place in ("root", "disk", "memory/agent")}
        os.kill(zombie.pid, signal.SIGCONT)
        out, _ = zombie.communicate(timeout=60)
        assert zombie.returncode == 76
    finally:
        zombie.kill()
        zombie.wait()
    told: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert not [event for event in told if event["event"] in ("SaveCommitted", "CopyAdded")]
    refused = [event for event in told if event["event"] == "SnapshotFailed"]
    if point in ("K4", "K5"):  # the push came after it was woken up
        assert [event["step"] for event in refused] == [STEP]
        assert "generation" in refused[0]["error"]
    for place, was in before.items():
        now = contents(base / place)
        assert {name: now.get(name) for name in was} == was
        new = now.keys() - was.keys()
        assert not [name for name in new if name.startswith("journal") or place == "memory/agent"]
    run.close()
    check_next(root, base, first, steps)


def check_next(root: Path, base: Path, first: int, steps: range) -> None:
    """The generation after has the line of the living alone, whatever slot of the zombie is there still."""
    state = open_run(root).state
    line = [state.checkpoints[c] for c in state.lineage()]
    assert [info.step for info in line] == [*sorted({0, 1, first}), *steps]
    assert {info.generation for info in line if info.step > 1} == {2}
    assert not verify(open_run(root)).findings
    step, tree = restored(root, tiers=tiers_of(base))
    assert step == steps[-1] != STEP
    check(step, tree)
    assert tree["w"].numel() != SIZE
