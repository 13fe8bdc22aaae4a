"""The end of a run of several writers: each returns from it when it is in the journal, or says why not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from test_two_writers import Meeting, settings, tree

from durable_core import events
from durable_core.commit import ending
from durable_core.commit.effects import Program
from durable_core.commit.journal import View
from durable_core.engine.inspect import open_run
from durable_core.errors import CommitAborted
from durable_core.session import Run, World

DEADLINE_S = 60.0


def trained(root: Path, world: World, deadline_s: float = DEADLINE_S) -> Run:
    run = Run.open(root, world=world, settings=settings(commit_deadline_s=deadline_s))
    run.confirm()
    run.save(*tree(world.roles.index(world.role), 0), step=0, wait=True)
    return run


def test_every_writer_waits_for_the_record_of_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()
    append, wait = ending.succeed, ending.await_success

    def succeed(*given: Any, **named: Any) -> Program[View]:
        assert waiting.wait(DEADLINE_S), "the other one does not wait"
        assert open_run(tmp_path).state.terminal is None
        return (yield from append(*given, **named))

    def await_success(*given: Any, **named: Any) -> Program[View]:
        waiting.set()
        return (yield from wait(*given, **named))

    monkeypatch.setattr(ending, "succeed", succeed)
    monkeypatch.setattr(ending, "await_success", await_success)

    def member(world: World) -> tuple[bool, bool]:
        run = trained(tmp_path, world)
        told: list[events.Event] = []
        run.board.listeners.append(told.append)
        run.succeed()
        there = open_run(tmp_path).state.terminal is not None
        run.close()
        return there, any(isinstance(event, events.RunSucceeded) for event in told)

    assert Meeting(2).all(member) == [(True, True), (True, True)]


def test_a_writer_whose_coordinator_records_no_success_says_so(tmp_path: Path) -> None:
    def member(world: World) -> str:
        run = trained(tmp_path, world, 1.0)
        said = ""
        if not world.coordinator:
            with pytest.raises(CommitAborted) as error:
                run.succeed()
            said = error.value.message
        run.close()
        return said

    assert "has not recorded within 1 s" in Meeting(2).all(member)[1]
