"""The background thread meets what it was not made for, and nobody waits for ever or trains unsaved."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest
import torch
from attack_runs import start, state_at

from durable_core import errors, events
from durable_core.session import Run
from durable_core.tier.posix import PosixTier


def test_a_listener_that_fails_on_a_failure_is_heard_and_costs_no_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -W error`` makes one of every warning: the thread died of it, without a word."""
    run = start(tmp_path)

    def strict(event: events.Event) -> None:
        if isinstance(event, events.SaveFailed):
            raise UserWarning("a warning turned into an error")

    run.board.listeners.append(strict)

    def full(*_: object) -> int:
        raise errors.TierFull("no space")

    monkeypatch.setattr(PosixTier, "write_object", full)
    run.save(state_at(1), {}, step=1)
    with pytest.raises(UserWarning, match="turned into"):
        run.flush()
    with pytest.raises(UserWarning, match="turned into"):
        run.boundary(2)
    run.close()


def test_jobs_behind_a_fault_of_our_own_end_too(tmp_path: Path) -> None:
    run = start(tmp_path)
    go = threading.Event()

    def broken(event: events.Event) -> None:
        if isinstance(event, events.SaveCommitted):
            go.wait()
            raise ValueError("a bug")

    run.board.listeners.append(broken)
    run.save(state_at(1), {}, step=1)
    run.save(state_at(2), {}, step=2)
    go.set()
    with pytest.raises(ValueError, match="a bug"):
        run.flush(timeout=60)
    assert run.status().pending == 0
    run.close()


def test_what_nobody_was_told_is_raised_by_close(tmp_path: Path) -> None:
    run = start(tmp_path)

    def broken(event: events.Event) -> None:
        if isinstance(event, events.SaveCommitted):
            raise ValueError("a bug")

    run.board.listeners.append(broken)
    run.save(state_at(1), {}, step=1)
    with pytest.raises(ValueError, match="a bug"):
        run.close()
    run.close()
    assert not (tmp_path / "hints/owner.json").exists()


def test_a_process_fenced_in_its_last_save_does_not_end_as_if_all_was_well(tmp_path: Path) -> None:
    first = start(tmp_path)
    second = start(tmp_path, takeover=True)
    first.save(state_at(1), {}, step=1)
    with pytest.raises(errors.FencedError):
        first.close()
    second.close()


def _child(root: Path) -> None:
    torch.set_num_threads(1)
    run = start(root)
    run.save(state_at(1), {}, step=1, wait=True)
    run.close()
    os._exit(7)


def test_a_forked_process_can_train_after_its_parent_did(tmp_path: Path) -> None:
    """The hashing pool was inherited with its books and without its thread: the first save hung."""
    start(tmp_path / "parent").close()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(tmp_path / "child",))
    child.start()
    child.join(60)
    code = child.exitcode
    if code is None:
        child.kill()
        child.join()
    assert code == 7


def test_a_save_that_cannot_be_asked_for_gives_its_slot_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path, slots=1)

    def broken(event: events.Event) -> None:
        if isinstance(event, events.SaveStarted):
            raise ValueError("a listener's")

    run.board.listeners.append(broken)
    for step in (1, 2):
        with pytest.raises(ValueError, match="a listener's"):
            run.save(state_at(step), {}, step=step)
    run.board.listeners.clear()
    assert run.save(state_at(3), {}, step=3)  # not skipped: the slot is free
    run.close()
    assert Run.open(tmp_path).restored_from == (1, 3)
