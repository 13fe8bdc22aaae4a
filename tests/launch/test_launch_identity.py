"""Which launch a launcher is, and which run it looks after: what it is told, not what is around it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from durable_core.clock import SystemClock
from durable_core.engine import launched, words
from durable_core.engine.launched import RunFiles
from durable_core.launch.agent.reporting import Reporter
from durable_core.launch.machine import GroupPhase
from durable_core.launch.rendezvous import RunRendezvous

CLOCK = SystemClock()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*launched.IDENTITY, "DURABLE_TAKEOVER", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def handler(**options: object) -> RunRendezvous:
    parameters = RendezvousParameters("durable", "127.0.0.1:0", "none", 1, 1, "127.0.0.1", **options)
    return RunRendezvous(parameters, CLOCK, size=1)


@pytest.mark.parametrize("worker", [os.getpid(), os.getppid()], ids=["this process", "its parent"])
def test_a_launch_within_another_is_one_of_its_own(worker: int) -> None:
    outer = dict.fromkeys(launched.IDENTITY, "1") | {"SLURM_JOB_ID": "7", "DURABLE_WORKER": str(worker)}
    os.environ.update(outer)
    inner = handler()
    try:
        within = worker != os.getpid()
        assert (inner._asked, inner._root) == (("", "") if within else ("1", "1"))
        left = {name: os.environ[name] for name in outer if name in os.environ}
        assert left == ({"SLURM_JOB_ID": "7"} if within else outer)
    finally:
        inner.remove()


def opened(looked: RunRendezvous, root: Path) -> tuple[str, tuple[str, ...]]:
    words.write(looked.files.opened, words.Opened(str(root), "run", 1, "launch", ("dp0",)))
    looked._look_for_opened()
    return looked._root, looked._roles


def test_the_run_that_a_launch_was_given_stays_its_run(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    given, free = handler(root=str(tmp_path / "run")), handler()
    try:
        assert opened(given, tmp_path / "teacher") == (str(tmp_path / "run"), ())
        assert opened(given, tmp_path / "alias") == (str(tmp_path / "alias"), ("dp0",))
        assert opened(free, tmp_path / "any") == (str(tmp_path / "any"), ("dp0",))
    finally:
        given.remove()
        free.remove()


def test_an_agent_that_cannot_be_heard_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = RunFiles(tmp_path / "run").prepare()
    reporter = Reporter(files, CLOCK)
    reporter.tell(GroupPhase.STARTING)
    shutil.rmtree(files.root)
    with caplog.at_level(logging.WARNING):
        reporter.tell(GroupPhase.UP)
        reporter.tell()
    assert len(caplog.messages) == 1 and not files.root.exists()
    files.prepare()
    reporter.tell()
    facts = words.read_facts(files.facts)
    assert facts is not None and facts.phase == GroupPhase.UP.value
