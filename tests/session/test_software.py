"""Changed software: a default promise is lowered and journaled, one insisted on is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from session_helpers import start, train

from durable_core import errors, events
from durable_core.commit import ending
from durable_core.commit.effects import Program
from durable_core.commit.journal import View
from durable_core.engine.inspect import open_run
from durable_core.session import Run, Settings
from durable_core.session.software import promised
from durable_core.state import fingerprint
from durable_core.types import Promise

OLD, NEW = {"torch": "2.12"}, {"torch": "2.13"}


def test_the_decision() -> None:
    assert promised(Promise.BITWISE, asked=None, was=OLD, now=OLD).promise is Promise.BITWISE
    lowered = promised(Promise.BITWISE, asked=None, was=OLD, now=NEW)
    assert lowered.promise is Promise.EXACT_ORDER and "torch was '2.12' and is '2.13'" in lowered.reason
    assert promised(Promise.EXACT_ORDER, asked=None, was=OLD, now=NEW).reason == ""
    assert (
        promised(Promise.BITWISE, asked=Promise.EXACT_ORDER, was=OLD, now=NEW).promise is Promise.EXACT_ORDER
    )
    with pytest.raises(errors.PromiseError, match=r"torch was '2.12'"):
        promised(Promise.BITWISE, asked=Promise.BITWISE, was=OLD, now=NEW)
    late = {**OLD, "framework.accelerate": "1"}
    assert promised(Promise.BITWISE, asked=None, was=OLD, now=late).promise is Promise.BITWISE
    with pytest.raises(errors.PromiseError, match="earlier restart"):
        promised(Promise.EXACT_ORDER, asked=Promise.BITWISE, was=OLD, now=OLD)


def test_a_restart_under_other_software(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(tmp_path)
    train(run, 1, 1)
    run.close()
    now = {**fingerprint.fingerprint(), "torch": "99.0"}
    monkeypatch.setattr(fingerprint, "fingerprint", lambda: now)
    insisting = Run.open(tmp_path, settings=Settings(insist=True))
    with pytest.raises(errors.PromiseError, match=r"99\.0"):
        insisting.load()
    insisting.close()
    run = Run.open(tmp_path)
    seen: list[events.Event] = []
    run.board.listeners.append(seen.append)
    run.load()
    assert run.promise is Promise.EXACT_ORDER
    run.confirm()
    train(run, 2, 2)
    run.close()
    assert [event.now for event in seen if isinstance(event, events.PromiseLowered)] == [Promise.EXACT_ORDER]
    assert open_run(tmp_path).state.promise is Promise.EXACT_ORDER
    again = start(tmp_path)
    assert again.promise is Promise.EXACT_ORDER
    again.close()


def test_a_lowering_that_could_not_be_journaled_is_journaled_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints were of the new software, and the next start promised bits since the beginning."""

    def unavailable(view: View, *_: object, **__: object) -> Program[View]:
        raise errors.TierUnavailable("for a moment")
        yield

    run = start(tmp_path)
    train(run, 1, 1)
    run.close()
    now = {**fingerprint.fingerprint(), "torch": "99.0"}
    monkeypatch.setattr(fingerprint, "fingerprint", lambda: now)
    with monkeypatch.context() as broken:
        broken.setattr(ending, "lower_promise", unavailable)
        run = start(tmp_path)
        train(run, 2, 2)
        run.close()
    assert open_run(tmp_path).state.promise is Promise.BITWISE
    insisting = Run.open(tmp_path, settings=Settings(insist=True))
    with pytest.raises(errors.PromiseError, match="earlier restart"):
        insisting.load()
    insisting.close()
    run = start(tmp_path)
    assert run.promise is Promise.EXACT_ORDER
    run.close()
    assert open_run(tmp_path).state.promise is Promise.EXACT_ORDER
