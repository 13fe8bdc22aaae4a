"""A commit record arrives and its acknowledgement does not, where the save is waited for."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from attack_runs import start, state_at

from durable_core.session import Run
from durable_core.tier.posix import PosixTier


def test_a_pause_ends_when_the_commit_in_doubt_has_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was retried as a new save of the same step, refused as such, and training stood still for ever."""
    run = start(tmp_path, rpo_steps=1, on_rpo_breach="pause")
    lost = 0

    def before(self: PosixTier, what: str, path: Path) -> None:
        nonlocal lost
        published = list(tmp_path.glob("checkpoints/*c00000001*/manifest.json"))
        if lost < 8 and what == "fsync-dir" and path.name == "journal" and published:
            lost += 1
            raise OSError(errno.EIO, "Input/output error")

    pauses = 0

    def sleep(seconds: float) -> None:
        nonlocal pauses
        pauses += seconds >= 1
        assert pauses < 20, "training stands still"

    monkeypatch.setattr(PosixTier, "before", before)
    monkeypatch.setattr(run.clock, "sleep", sleep)
    assert run.save(state_at(5), {}, step=5)
    assert lost == 8 and pauses >= 1
    status = run.status()
    assert (status.newest_step, status.rpo_breached, status.last_error) == (5, False, None)
    run.close()
    assert Run.open(tmp_path).restored_from == (1, 5)
