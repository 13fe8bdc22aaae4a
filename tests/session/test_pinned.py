"""Pins by a session, and what it says of the newest checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from durable_core import DurableSession
from durable_core.commit.retention import Retention
from durable_core.engine.inspect import open_run
from durable_core.errors import RecordRefused
from durable_core.types import CheckpointState


def begin(root: Path) -> DurableSession:
    model = torch.nn.Linear(1, 1)
    return DurableSession.open(
        root, state={"model": model}, every_n_steps=1000, retention=Retention(keep_last=1)
    )


def advance(session: DurableSession) -> None:
    session.step()
    session.save(wait=True)


def test_what_is_pinned_is_kept_until_it_is_not(tmp_path: Path) -> None:
    with begin(tmp_path) as session:
        advance(session)
        session.pin(1)
        session.pin(1)
        for _ in range(3):
            advance(session)
        kept = open_run(tmp_path).view.state.checkpoints
        assert kept[1].pinned and kept[1].state is CheckpointState.COMMITTED
        assert kept[2].state is CheckpointState.RETIRED
        session.unpin(1)
        advance(session)
        advance(session)
        kept = open_run(tmp_path).view.state.checkpoints
        assert not kept[1].pinned and kept[1].state is CheckpointState.RETIRED


def test_a_pin_comes_before_the_next_commit_can_retire_what_it_names(tmp_path: Path) -> None:
    with begin(tmp_path) as session:
        for _ in range(4):
            advance(session)
        with pytest.raises(RecordRefused, match="c1 is retired"):
            session.pin(1)
        advance(session)  # a pin that was refused disturbs nothing
        assert session.newest is not None and session.newest[1] == 5


def test_newest_names_the_checkpoint_by_its_digest(tmp_path: Path) -> None:
    with begin(tmp_path) as session:
        advance(session)
        state = open_run(tmp_path).view.state
        assert session.newest == (1, 1, state.checkpoints[1].manifest_digest)
        session.finish()
    with begin(tmp_path) as session:
        assert session.newest == (1, 1, state.checkpoints[1].manifest_digest)
