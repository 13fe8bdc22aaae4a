"""A start dies, or its disk is full, before any step others can see; the next start goes on as if not."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_runs import start, state_at

from durable_core import errors
from durable_core.session import Run, Settings
from durable_core.spec import ModelSpec, RunSpec, Target
from durable_core.tier.posix import PosixTier


class Death(BaseException):
    """Nothing that handles errors may survive it."""


class Fuse:
    """Fails at the ``at``-th step of a write; after a death nothing more is done at all."""

    def __init__(self, at: int, fault: Callable[[], BaseException]) -> None:
        self.at, self.fault, self.count = at, fault, 0

    def __call__(self, tier: PosixTier, action: str, path: Path) -> None:
        if action not in ("link", "rename", "fsync-dir"):  # the rest changes nothing that others see
            return
        self.count += 1
        if self.count == self.at:
            raise self.fault()
        if self.count > self.at and self.fault is Death:
            raise Death


def _fresh(root: Path) -> None:
    """Nothing is there yet."""


def _trained(root: Path) -> None:
    run = start(root, spec=RunSpec(model=ModelSpec(cls="A"), target=Target(max_steps=2)))
    for step in (1, 2):
        run.save(state_at(step), {}, step=step, wait=True)
    run.close()


def _damaged(root: Path) -> None:
    _trained(root)
    for path in root.glob("checkpoints/*c00000002*/shard-*"):
        path.write_bytes(b"")


def _finished(root: Path) -> None:
    _trained(root)
    run = start(root, spec=RunSpec(model=ModelSpec(cls="A"), target=Target(max_steps=2)))
    run.succeed({"max_steps": 2})
    run.close()


def _again(root: Path, **settings: object) -> Run:
    """A new process: whoever wrote the hint is dead."""
    (root / "hints/owner.json").unlink(missing_ok=True)
    return start(root, **settings)  # type: ignore[arg-type]


A, B = ModelSpec(cls="A"), ModelSpec(cls="B")
SCENARIOS: dict[str, tuple[Callable[[Path], None], dict[str, object], int]] = {
    # name: (before, how it is opened, the step it must stand at)
    "fresh": (_fresh, {"spec": RunSpec(model=A, target=Target(max_steps=2))}, 0),
    "resume": (_trained, {"spec": RunSpec(model=A, target=Target(max_steps=2))}, 2),
    "takeover": (_trained, {"spec": RunSpec(model=A, target=Target(max_steps=2)), "takeover": True}, 2),
    "step down": (_damaged, {"spec": RunSpec(model=A, target=Target(max_steps=2))}, 1),
    "extend": (_finished, {"spec": RunSpec(model=A, target=Target(max_steps=4))}, 2),
    "fork": (_trained, {"spec": RunSpec(model=B), "resume": "fork"}, 2),
    "fork of a finished run": (_finished, {"spec": RunSpec(model=B), "resume": "fork"}, 2),
    "fork from outside": (
        _trained, {"spec": RunSpec(model=B), "resume": "fork", "external": "other.ckpt"}, 0,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the heartbeat dies too
@pytest.mark.parametrize("fault", ["death", "full"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_start_can_die_or_fail_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    prepare, how, step = SCENARIOS[name]
    kind: Callable[[], BaseException] = Death if fault == "death" else lambda: OSError(28, "No space left")
    monkeypatch.setattr("durable_core.clock.SystemClock.sleep", lambda self, seconds: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # no power is lost here
    prepare(tmp_path / "before")
    at, died = 0, True
    while died:
        at += 1
        root = tmp_path / str(at)
        if (tmp_path / "before").exists():
            shutil.copytree(tmp_path / "before", root)
        fuse = Fuse(at, kind)
        with monkeypatch.context() as broken:
            broken.setattr(PosixTier, "before", lambda *args, fuse=fuse: fuse(*args))
            with contextlib.suppress(Death, errors.TierError, errors.CommitAborted):
                _again(root, **how).close()
        died = fuse.count >= at
        later = _again(root, **how)
        assert later.status().newest_step == step, f"killed before step {at} of the start"
        later.save(state_at(step + 1), {}, step=step + 1, wait=True)
        later.close()
        (root / "hints/owner.json").unlink(missing_ok=True)
        final = Run.open(root, settings=Settings(takeover=True), spec=how["spec"])  # type: ignore[arg-type]
        assert final.load().state["step"] == step + 1
        final.close()
    assert at > 10
