"""``durable known-good``: what was judged, by whom, and what is done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import Durable, train

from durable_core.clock import SystemClock
from durable_core.commit import marks
from durable_core.engine.inspect import open_run
from durable_core.engine.performer import Performer
from durable_core.types import Token


def test_nothing_was_judged_and_it_says_so(durable: Durable, root: Path) -> None:
    found = durable("known-good", root, "--json").document
    assert found["known_good"] == [] and found["findings"] == [] and found["tainted"] == []
    assert "did not fire, and no more" in found["limits"]
    assert "no checkpoint" in durable("known-good", root).out


def test_marked_by_hand_on_evidence_and_revoked(durable: Durable, root: Path) -> None:
    marked = durable("known-good", root, "--mark", 2, "--evidence", "eval of step 6", "--json")
    assert marked.document == {"c": 2, "known_good": True}
    found = durable("known-good", root, "--before", 9, "--json").document
    assert found["known_good"] == [{"c": 2, "step": 6, "evidence": {"by_hand": "eval of step 6"}}]
    assert found["before"]["c"] == 2 and "known-good" in found["before"]["reason"]
    assert "by hand: eval of step 6" in durable("known-good", root).out
    assert durable("known-good", root, "--revoke", 2, "--json").document == {"c": 2, "known_good": False}
    assert durable("known-good", root, "--json").document["known_good"] == []
    length = open_run(root).view.next_seq
    durable("known-good", root, "--revoke", 2)
    assert open_run(root).view.next_seq == length, "it is none already"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--mark", 2],
        ["--evidence", "e"],
        ["--mark", 2, "--evidence", ""],
        ["--mark", 2, "--evidence", "e", "--revoke", 2],
    ],
)
def test_a_mark_needs_evidence(wrong: list[object], durable: Durable, root: Path) -> None:
    assert durable("known-good", root, *wrong).code == 2


def test_what_is_in_doubt_is_not_marked(durable: Durable, tmp_path: Path) -> None:
    root = tmp_path / "unfinished"
    train(root, steps=7)
    reader = open_run(root)
    state = reader.state
    token = Token(state.generation, state.launch_id)
    program = marks.record_finding(
        reader.view, token, failure_class="F13", signature="replica-divergence", onset=5, evidence=None
    )
    Performer(reader.tier, SystemClock()).run(program)
    found = durable("known-good", root, "--json").document
    assert [each["onset"] for each in found["findings"]] == [5] and 2 in found["tainted"]
    refused = durable("known-good", root, "--mark", 2, "--evidence", "e")
    assert refused.code == 2 and "in doubt" in refused.err
