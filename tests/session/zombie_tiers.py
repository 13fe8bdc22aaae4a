"""A writer is stopped, others go on without it, it wakes up: what that must leave untouched in every tier."""

from __future__ import annotations

import contextlib
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

from durable_core.engine.inspect import open_run
from durable_core.engine.verify import verify
from durable_core.session.tiers import open_tier
from durable_core.tier.peer.agent import Agent
from durable_core.tier.peer.secret import Secret
from tests.session.session_helpers import check, restored, start, state_at
from tests.session.zombie_tiers_writer import SIZE, STEP, tiers_of

SECRET = "a secret that the zombie knows"


@contextlib.contextmanager
def places(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory, a peer and a disk in ``base``, for ``tiers_of``."""
    monkeypatch.setenv("DURABLE_PEER_SECRET", SECRET)
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="durable-zombie-", dir=shm) as memory,
        Agent(Path(memory) / "agent", secret=Secret(SECRET), capacity_bytes=1 << 26) as agent,
    ):
        (base / "memory").symlink_to(memory)
        (base / "peer").write_text(agent.address)
        yield


def haunt(root: str, base: Path, point: str) -> None:
    """``root`` behind the ``places`` of ``base``; the writer is stopped at crash point ``point``."""
    command = [sys.executable, "-m", "tests.session.zombie_tiers_writer", root, str(base), point]
    zombie = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
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
        held = (root, str(base / "disk"), str(base / "memory" / "agent"))
        before = {place: contents(place) for place in held}
        os.kill(zombie.pid, signal.SIGCONT)
        out, _ = zombie.communicate(timeout=60)
        assert zombie.returncode == 76
    finally:
        zombie.kill()
        zombie.wait()
    check_told([json.loads(line) for line in out.splitlines()], pushed_late=point in ("K4", "K5"))
    for place, was in before.items():
        now = contents(place)
        assert {key: now.get(key) for key in was} == was
        new = now.keys() - was.keys()  # in root and disk what it wrote of its checkpoint, which nobody names
        assert not [key for key in new if key.startswith("journal") or place.endswith("agent")]
    run.close()
    check_line(root, base, first, steps)


def contents(place: str) -> dict[str, str]:
    """Every object and what is in it, but for hints and temporaries."""
    tier = open_tier(place)
    keys = [key for key in tier.list("") if not {"hints", "tmp"}.intersection(key.split("/"))]
    return {key: hashlib.sha256(tier.get(key)).hexdigest() for key in keys}


def check_told(told: list[dict[str, Any]], *, pushed_late: bool) -> None:
    assert not [event for event in told if event["event"] in ("SaveCommitted", "CopyAdded")]
    if pushed_late:
        refused = [event for event in told if event["event"] == "SnapshotFailed"]
        assert [event["step"] for event in refused] == [STEP]
        assert "generation" in refused[0]["error"]


def check_line(root: str, base: Path, first: int, steps: range) -> None:
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
