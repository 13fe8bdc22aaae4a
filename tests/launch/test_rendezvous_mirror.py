"""Run directories of other nodes as node 0 sees them, and requests on their way back."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torchrun_runs import until

from durable_core.clock import SystemClock
from durable_core.engine import beats, words
from durable_core.engine.beats import Phase
from durable_core.engine.launched import RunFiles
from durable_core.launch.controller import looking
from durable_core.launch.evidence import Lost
from durable_core.launch.rendezvous import mirror, pulse
from durable_core.launch.rendezvous.mirror import Mirror


@dataclass
class Clock(SystemClock):
    """A host whose clock has another zero."""

    at: float = 0.0

    def monotonic(self) -> float:
        return self.at


class Nodes:
    """Three nodes, their mirrors worked by hand."""

    def __init__(self, root: Path) -> None:
        self.store = dist.HashStore()
        self.clocks = [Clock(at) for at in (1000.0, 50.0, 7.0)]
        self.files = [RunFiles(root / str(node)).prepare() for node in range(3)]
        self.mirrors = [
            Mirror(self.store, node, 3, files, clock)
            for node, (files, clock) in enumerate(zip(self.files, self.clocks, strict=True))
        ]

    def exchange(self) -> None:
        for node in (1, 2, 0, 1, 2):
            self.mirrors[node].exchange()


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def facts(node: int, **changes: Any) -> words.Facts:
    members = (words.Member(node, 100 + node, "host", node),)
    return words.Facts(**{"launch_id": "l", "attempt": 1, "phase": "up", "since": 1.0, "time": 2.0,
                          "members": members, **changes})  # fmt: skip


def test_the_controller_sees_every_node(nodes: Nodes) -> None:
    for node, files in enumerate(nodes.files):
        words.write(files.facts, facts(node))
        writer = beats.Writer(files.beat(node), os.getpid())
        writer.beat(nodes.clocks[node].at - 4.0, Phase.STEP, generation=2, step=9 + node)
        files.stacks(node).write_text("s" * (mirror.MOST + 9) + f"end {node}")
    words.write(nodes.files[2].words(2), words.Words("E", "it broke"))
    nodes.exchange()
    seen = looking.look(nodes.files[0].root)
    assert set(seen.facts) == {0, 1, 2}
    assert seen.facts[2] == facts(2)
    assert {rank: beat.step for rank, beat in seen.beats.items()} == {0: 9, 1: 10, 2: 11}
    assert {beat.time for beat in seen.beats.values()} == {996.0}, "4 s old, by the clock of node 0"
    assert {beat.since for beat in seen.beats.values()} == {996.0}
    assert seen.words == {2: words.Words("E", "it broke")}
    assert [text[-5:] for _, text in sorted(seen.stacks.items())] == ["end 0", "end 1", "end 2"]
    assert seen.unreadable == ()


def test_a_beat_that_stands_still_grows_old(nodes: Nodes) -> None:
    writer = beats.Writer(nodes.files[1].beat(1), 1)
    writer.beat(50.0, Phase.SAVE, generation=1, step=3)
    nodes.exchange()
    for clock in nodes.clocks:
        clock.at += 100
    nodes.exchange()
    old = looking.look(nodes.files[0].root).beats[1]
    assert old.time == 1000.0
    writer.beat(150.0, Phase.STEP, generation=1, step=4)
    nodes.exchange()
    assert looking.look(nodes.files[0].root).beats[1].time == 1100.0


def test_a_node_that_signs_no_more_is_lost_and_one_that_saw_the_end_is_not(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, dead, alive = (each.pulse for each in nodes.mirrors)
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "b")
        dead.sign()
    alive.sign()
    clock, waited = nodes.clocks[0], 0.0

    def sleep(seconds: float) -> None:
        nonlocal waited
        waited, clock.at = waited + seconds, clock.at + seconds
        alive.sign()

    monkeypatch.setattr(clock, "sleep", sleep)
    assert asking.lost() == (Lost("b"),) and waited == pytest.approx(pulse.LOST_S, abs=0.2)
    dead.end()
    waited = 0.0
    assert asking.lost() == () and waited < 0.2, "it ended for something of its own, and tells"


def test_only_what_changed_travels(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    words.write(nodes.files[1].facts, facts(1))
    nodes.exchange()
    before = nodes.store.num_keys()
    sent: list[str] = []
    monkeypatch.setattr(words, "put", lambda path, data: sent.append(path.name))
    nodes.exchange()
    assert sent == []
    words.write(nodes.files[1].facts, facts(1, phase="stopped"))
    nodes.exchange()
    assert sent == ["facts.json"]
    assert nodes.store.num_keys() == before


def test_a_request_reaches_the_node_it_is_made_of(nodes: Nodes) -> None:
    places = looking.nodes(nodes.files[0].root)
    asked = words.Request("abc", "dump", 3, reason="a hang")
    words.write(places[2].requests / "abc.json", asked)
    nodes.exchange()
    assert words.read_request(nodes.files[2].requests / "abc.json") == asked
    assert not list(nodes.files[1].requests.iterdir())


def test_nothing_is_written_but_what_belongs_there(nodes: Nodes, tmp_path: Path) -> None:
    theirs, everything = tmp_path / "theirs", re.compile(".*")
    (theirs / "x").mkdir(parents=True)
    (theirs / "x" / "evil").write_text("no")
    (theirs / "opened.json").write_text("no")
    hostile = mirror.Sender(nodes.store, "durable/mirror/1/up", theirs, everything, nodes.clocks[1])
    hostile.send()
    nodes.mirrors[0].exchange()
    mine = nodes.files[0].root / "nodes" / "1"
    assert not [path for path in mine.rglob("*") if path.is_file()]


def test_a_beat_that_is_being_made_is_left_out(nodes: Nodes) -> None:
    nodes.files[1].beat(1).write_bytes(b"")
    words.write(nodes.files[1].facts, facts(1))
    nodes.exchange()
    assert set(looking.look(nodes.files[0].root).facts) == {1}


def test_the_next_round_begins_with_nothing_of_the_last(nodes: Nodes) -> None:
    words.write(nodes.files[1].facts, facts(1))
    nodes.exchange()
    Mirror(dist.HashStore(), 0, 2, nodes.files[0], nodes.clocks[0])
    assert looking.look(nodes.files[0].root).facts == {}
    assert set(looking.nodes(nodes.files[0].root)) == {0, 1}


def test_it_runs_by_itself_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "INTERVAL_S", 0.02)
    nodes = Nodes(tmp_path)
    for each in nodes.mirrors[:2]:
        each.start()
    try:
        words.write(nodes.files[1].facts, facts(1))
        until(lambda: looking.look(nodes.files[0].root).facts, 60, "the facts of node 1")
    finally:
        for each in nodes.mirrors[:2]:
            each.stop()
    assert not any(each._thread.is_alive() for each in nodes.mirrors[:2])
