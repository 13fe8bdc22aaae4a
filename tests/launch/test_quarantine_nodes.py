"""Nodes in quarantine: who is left out, who is not for want of another, and how one comes back."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from durable_core.cli.app import run
from durable_core.clock import SystemClock
from durable_core.commit.state import Failure, RunState
from durable_core.commit.vector import Vector
from durable_core.errors import NodeQuarantined
from durable_core.format.record import Kind
from durable_core.launch.books import Books
from durable_core.launch.classes import F, Unit
from durable_core.launch.classify import Verdict
from durable_core.launch.policy import Policy
from durable_core.launch.quarantine import barred, lifting, quarantined, standing, unrecorded
from durable_core.launch.rendezvous import RunRendezvous
from durable_core.launch.retry import Quarantine, decide
from tests.launch.launching import new_run


def failed(state: RunState, time: float) -> RunState:
    """One more failure that was decided with the quarantine of host ``a``."""
    evidence = {"quarantine": [{"unit": "node", "name": "a"}]}
    payload = {"class": "F2", "signature": "s", "evidence": evidence, "step": 1}
    line = Failure(len(state.failures), 1, f"{len(state.failures):032x}", payload, time)
    return recorded(replace(state, failures=state.failures.append(line)), *unrecorded_after(state, line))


def unrecorded_after(state: RunState, line: Failure) -> list[dict[str, Any]]:
    return list(unrecorded(replace(state, failures=state.failures.append(line))))


def recorded(state: RunState, *payloads: dict[str, Any]) -> RunState:
    return replace(state, quarantines=(*state.quarantines, *payloads))


def test_what_is_lifted_stays_so_until_it_fails_again() -> None:
    run = failed(failed(RunState(run_id="r", failures=Vector[Failure]()), 5.0), 6.0)
    (one,) = standing(run)
    assert (one.unit, one.name, one.reason, one.since) == (Unit.NODE, "a", "F2", 5.0)
    run = recorded(run, lifting(run, Unit.NODE, "a", "mended"))
    assert standing(run) == () and list(unrecorded(run)) == [], "both failures are settled"
    run = failed(run, 9.0)
    assert (Unit.NODE, "a") in quarantined(run) and standing(run)[0].since == 9.0


@pytest.mark.parametrize(("host", "most", "out"), [("a", 2, True), ("b", 2, False), ("a", 1, False)])
def test_a_group_of_one_node_is_not_left_without_any(host: str, most: int, out: bool) -> None:
    run = failed(RunState(run_id="r", failures=Vector[Failure]()), 5.0)
    assert (barred(run, host, most=most) is not None) is out


@pytest.mark.parametrize("failure", [F.F2, F.F6])
def test_no_node_is_put_in_quarantine_that_nothing_can_stand_in_for(failure: F) -> None:
    verdict = Verdict(failure, "s", 1, 0, "it broke", place="a")
    state = RunState(run_id="r", generation=1, active=True)
    with_one, without = (
        decide(state, verdict, Policy(), jitter=0.0, now=0.0, spare=spare) for spare in (True, False)
    )
    assert with_one.quarantine == (Quarantine(Unit.NODE, "a"),)
    assert without == replace(with_one, quarantine=(), reason=without.reason)
    assert "the group has no other node" in without.reason


def test_an_agent_on_such_a_host_does_not_take_part_until_it_is_lifted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, host = new_run(tmp_path / "root"), socket.gethostname()
    said = {"unit": "node", "name": host, "reason": "F13"}
    Books(root, SystemClock(), "one").maintain(Kind.QUARANTINE, said)
    monkeypatch.delenv("DURABLE_LAUNCH_ID", raising=False)
    handler = RunRendezvous(
        RendezvousParameters("durable", "localhost:0", "x", 1, 2, root=str(root)), SystemClock()
    )
    try:
        with pytest.raises(NodeQuarantined, match="F13") as caught:
            handler.next_rendezvous()
        assert f"--lift node {host}" in caught.value.hint
        assert run(["quarantine", str(root), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["quarantined"] == [{**said, "since": None}]
        assert run(["quarantine", str(root), "--lift", "node", host, "--reason", "new cable"]) == 0
        assert run(["quarantine", str(root), "--lift", "node", host]) == 2, "it is not there any more"
        capsys.readouterr()
        handler._refuse_barred()
    finally:
        handler.shutdown()
        handler.remove()
