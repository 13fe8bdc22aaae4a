"""gc --memory, snapshots, secret: what killed runs left in memory is found, kept while needed, freed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runs import Durable

from durable_core.cli import output
from durable_core.clock import SystemClock
from durable_core.engine import heartbeat
from durable_core.engine.inspect import open_run
from durable_core.format import layout
from durable_core.session import Run
from durable_core.state.snapshots import SlotMemory, leftovers
from durable_core.tier.peer.agent import Agent
from durable_core.tier.peer.client import PeerTier
from durable_core.tier.peer.secret import read_secret

KILLED = """
import os, signal, sys
import torch
from durable_core import DurableSession, Memory, Tiers
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tiers = Tiers(memory=Memory(every_n_steps=1, directory=sys.argv[2]))
state = {"model": model, "optimizer": optimizer}
with DurableSession.open(sys.argv[1], state=state, every_n_steps=1000, tiers=tiers) as run:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        run.step()
    run.flush()
    if sys.argv[3] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    run.finish()
"""


@pytest.fixture
def memory() -> Iterator[Path]:
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base, prefix="durable-cli-test-") as path:
        yield Path(path)


def life(root: Path, memory: Path, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(root), str(memory), end],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == (-9 if end == "die" else 0), done.stderr


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("dead")
    (base / "memory").mkdir()
    life(base / "run", base / "memory", "die")
    return base


@pytest.fixture
def killed(dead: Path, tmp_path: Path, memory: Path) -> Path:
    """A run killed at step 3: only the initial state is committed, the rest is in memory."""
    shutil.copytree(dead / "memory", memory, dirs_exist_ok=True)
    return Path(shutil.copytree(dead / "run", tmp_path / "run"))


def test_snapshots_are_listed_with_their_owner(killed: Path, memory: Path, durable: Durable) -> None:
    for arguments in ((killed,), ()):
        document = durable("snapshots", *arguments, "--directory", memory, "--json").document
        newest = document["snapshots"][-1]
        assert (newest["step"], newest["generation"], newest["role"], newest["live"]) == (3, 1, "dp0", False)
        assert newest["run"] == open_run(killed).state.run_id and newest["bytes"] > 0
    (memory / f"durable-{os.geteuid()}" / newest["run"] / newest["file"]).write_bytes(b"scribbled over")
    document = durable("snapshots", killed, "--directory", memory, "--json").document
    assert [each["file"] for each in document["refused"]] == [newest["file"]]
    assert "is no snapshot because" in durable("snapshots", "--directory", memory).out


def test_memory_that_the_next_start_needs_is_freed_only_by_force(
    killed: Path, memory: Path, durable: Durable
) -> None:
    refused = durable("gc", "--memory", killed, "--directory", memory, "--json")
    assert refused.code == output.FAILED and "step 3 is only in memory" in refused.document["refused"]
    assert leftovers(memory)
    freed = durable("gc", "--memory", killed, "--directory", memory, "--force", "--json")
    assert freed.code == 0 and freed.document["freed"] > 0
    assert leftovers(memory) == []


def test_what_a_commit_has_as_well_is_freed(killed: Path, memory: Path, durable: Durable) -> None:
    """The slots of the dead generation are still there when a later one, without memory, has committed."""
    slots = memory / f"durable-{os.geteuid()}"
    kept = {path: path.read_bytes() for path in slots.rglob("*.slot")}
    life(killed, memory, "finish")
    assert leftovers(memory) == []
    for path, data in kept.items():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(data)
    assert durable("gc", "--memory", killed, "--directory", memory).code == 0
    assert leftovers(memory) == []


def test_a_living_owner_keeps_its_slots(memory: Path, durable: Durable) -> None:
    owned = SlotMemory("0" * 32, directory=memory).create()
    owned.reserve(4096)
    try:
        assert durable("gc", "--memory", "--directory", memory, "--force").code == 0
        assert [each.live for each in leftovers(memory)] == [True]
    finally:
        owned.remove()


def test_without_a_root_runs_are_listed_and_freed_by_force(
    killed: Path, memory: Path, durable: Durable
) -> None:
    listed = durable("gc", "--memory", "--directory", memory, "--json")
    (run,) = listed.document["runs"]
    assert listed.code == 0 and run["freed"] == 0 and run["nbytes"] > 0 and not run["live"]
    assert leftovers(memory)
    done = durable("gc", "--memory", "--directory", memory, "--force", "--json")
    assert done.document["runs"][0]["freed"] > 0 and leftovers(memory) == []


def test_peers_forget_a_run(
    killed: Path, memory: Path, tmp_path: Path, durable: Durable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert durable("secret", tmp_path / "secret", "--json").code == 0
    monkeypatch.setenv("DURABLE_PEER_SECRET_FILE", str(tmp_path / "secret"))
    secret = read_secret(tmp_path / "secret")
    state = open_run(killed).state
    with Agent(memory / "agent", secret=secret, capacity_bytes=1 << 24) as agent:
        peer = PeerTier(agent.address, run_id=state.run_id, generation=1, secret=secret, clock=SystemClock())
        peer.put_if_absent(layout.snapshot_key(1, 3, "dp0", "0123abcd"), b"a snapshot")
        life(killed, memory, "finish")  # nothing is left to go on from
        done = durable("gc", "--memory", killed, "--directory", memory, "--peer", agent.address, "--json")
        assert done.code == 0 and done.document["peers"][0]["freed"] > 0
        assert list(peer.list(layout.SNAPSHOTS)) == []
        peer.close()
    gone = durable("gc", "--memory", killed, "--directory", memory, "--peer", agent.address, "--json")
    assert gone.code == output.FAILED and gone.document["peers"][0]["problem"]


def test_peers_keep_what_the_next_start_needs(
    killed: Path, memory: Path, tmp_path: Path, durable: Durable
) -> None:
    durable("secret", tmp_path / "secret")
    secret = read_secret(tmp_path / "secret")
    state = open_run(killed).state
    assert durable("gc", "--memory", "--directory", memory, "--force").code == 0
    with Agent(memory / "agent", secret=secret, capacity_bytes=1 << 24) as agent:
        peer = PeerTier(agent.address, run_id=state.run_id, generation=1, secret=secret)
        key = layout.snapshot_key(1, 3, "dp0", "0123abcd")
        peer.put_if_absent(key, b"a snapshot")
        arguments = (
            "gc", "--memory", killed, "--directory", memory, "--peer", agent.address, "--secret-file",
            tmp_path / "secret",
        )  # fmt: skip
        assert durable(*arguments).code == output.FAILED
        assert list(peer.list(layout.SNAPSHOTS)) == [key]
        assert durable(*arguments, "--force").code == 0
        assert list(peer.list(layout.SNAPSHOTS)) == []
        peer.close()


def test_peers_do_not_forget_a_run_that_is_trained(tmp_path: Path, memory: Path, durable: Durable) -> None:
    durable("secret", tmp_path / "secret")
    secret = read_secret(tmp_path / "secret")
    run = Run.open(tmp_path / "run")
    try:
        with Agent(memory / "agent", secret=secret, capacity_bytes=1 << 24) as agent:
            until(lambda: heartbeat.read(run.tier) is not None)
            refused = durable(
                "gc", "--memory", tmp_path / "run", "--directory", memory, "--peer", agent.address,
                "--secret-file", tmp_path / "secret", "--json",
            )  # fmt: skip
            assert refused.code == output.FAILED and "is being trained" in refused.document["refused"]
    finally:
        run.close()


def until(condition: Callable[[], bool]) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + 20
    while not condition():
        assert clock.monotonic() < deadline, "it did not happen"
        clock.sleep(0.002)


def test_a_secret_is_new_private_and_never_overwritten(tmp_path: Path, durable: Durable) -> None:
    made = durable("secret", tmp_path / "secret")
    assert made.code == 0 and made.out == f"DURABLE_PEER_SECRET_FILE={tmp_path / 'secret'}\n"
    before = (tmp_path / "secret").read_text()
    assert before.strip() not in made.out and (tmp_path / "secret").stat().st_mode & 0o077 == 0
    assert durable("secret", tmp_path / "secret").code == output.USAGE
    assert durable("secret", tmp_path / "absent/secret").code == output.USAGE
    assert (tmp_path / "secret").read_text() == before


@pytest.mark.parametrize("arguments", [("gc",), ("gc", "--force"), ("gc", "--memory", "--peer", "host:1")])
def test_what_gc_cannot_do_is_refused(durable: Durable, arguments: tuple[str, ...]) -> None:
    assert durable(*arguments).code == output.USAGE
