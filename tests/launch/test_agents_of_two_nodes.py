"""What an agent does of its own while there are others."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchrun_runs import free_port

from durable_core.engine.inspect import open_run
from tests.launch.launching import QUICK, Launcher, new_run, running, until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return new_run(tmp_path / "root")


@pytest.fixture
def meeting(root: Path) -> tuple[str, ...]:
    """The flags of both nodes."""
    endpoint = f"127.0.0.1:{free_port()}"
    return (
        "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "two",
        "--local-addr", "127.0.0.1", "--root", str(root), "--no-preflight", str(QUICK),
    )  # fmt: skip


def log(tmp_path: Path, node: int) -> Path:
    path = tmp_path / f"node{node}" / "log"
    path.mkdir(parents=True)
    return path


def first(*nodes: Launcher) -> Launcher:
    """Whose workers are ranks 0 and 1."""
    until(lambda: any(node.lines(rank=0, event="ready") for node in nodes), nodes[0].said)
    return next(node for node in nodes if node.lines(rank=0, event="ready"))


def test_a_node_that_has_done_its_part_waits_for_the_end_of_the_run(
    tmp_path: Path, root: Path, meeting: tuple[str, ...]
) -> None:
    one, two = log(tmp_path, 0), log(tmp_path, 1)
    with (
        running(one, *meeting, str(one), "part", str(root)) as a,
        running(two, *meeting, str(two), "part", str(root)) as b,
    ):
        leads = first(a, b)
        follows = b if leads is a else a
        until(lambda: "waited for" in follows.said(), lambda: a.said() + b.said())
        assert follows.alive
        leads.tell("go")
        assert (leads.ended(), follows.ended()) == (0, 0), a.said() + b.said()
    state = open_run(root).state
    assert not state.failures and state.generation == 1
