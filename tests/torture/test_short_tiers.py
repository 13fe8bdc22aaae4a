"""A few losses of each kind in every test run; `make torture` does hundreds. And the judge can tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.torture.subject import Cell
from tests.torture.tiers_campaign import MATRIX, torment
from tests.torture.tiers_history import Lineage, Origin, judge
from tests.torture.tiers_places import Kind

Record = dict[str, Any]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("cell", MATRIX, ids=lambda cell: cell.name)
def test_what_is_lost_comes_back_from_where_it_should(cell: Cell, tmp_path: Path) -> None:
    short = replace(cell, steps=24)
    tally = torment(short, tmp_path, {"worker": 1, "host": 1, "cluster": 1}, seed=3, remote=False)
    assert tally.faults == []
    assert tally.kills.total() == 3


def committed(c: int, step: int, parent: int | None, *tiers: str) -> Record:
    payload = {"c": c, "step": step, "parent": parent, "tiers": list(tiers)}
    return {"kind": "checkpoint.committed", "payload": payload}


RECORDS: list[Record] = [
    {"kind": "run.created", "payload": {}},
    committed(0, 0, None, "disk"),
    {"kind": "tier.added", "payload": {"c": 0, "tier": "remote"}},
    committed(1, 4, 0, "disk"),
    {"kind": "generation.started", "payload": {"restore_point": 1}},
    committed(2, 8, 1, "disk"),
]
LINEAGE = Lineage.of(RECORDS)
MEMORY = Origin(step=9, adopted="memory", adopted_step=9, read={"memory": 100})
READ = Origin(step=8, read={"disk": 100})


def test_the_lineage_is_what_the_journal_says() -> None:
    assert (LINEAGE.newest(), LINEAGE.newest("remote")) == (8, 0)
    back = Lineage.of([*RECORDS, {"kind": "generation.started", "payload": {"restore_point": 0}}])
    assert back.newest() == 0
    assert Lineage.of([*RECORDS, committed(3, 12, 0, "disk")]).newest() == 8  # its parent is not the head


@pytest.mark.parametrize(
    ("kind", "origins", "done"),
    [
        ("worker", [MEMORY], 10),
        ("worker", [MEMORY, MEMORY], None),
        ("worker", [READ], 9),
        ("host", [replace(MEMORY, adopted="peer")], 12),
        ("host", [READ], 12),
        ("worker", [replace(READ, read={"disk": 100, "remote": 9})], 9),
        ("cluster", [Origin(step=0, read={"remote": 100})], 10),
    ],
)
def test_a_life_that_began_where_it_should_is_not_complained_of(
    kind: Kind, origins: list[Origin], done: int | None
) -> None:
    assert judge([kind], origins, LINEAGE, done) == []


def test_what_the_disk_never_had_or_has_lost_may_come_from_afar() -> None:
    afar = [replace(READ, read={"remote": 100})]
    assert judge(["worker"], afar, LINEAGE, 9, wiped=1) != []
    assert judge(["worker"], afar, LINEAGE, 9, wiped=2) == []
    origin = [Origin(step=0, read={"remote": 100})]
    assert judge(["host"], origin, Lineage.of([committed(0, 0, None, "remote")]), 1) == []


def test_what_one_loss_took_is_missed_until_a_life_trains_again() -> None:
    peer = [replace(MEMORY, adopted="peer")]
    assert judge(["host", "worker"], peer, LINEAGE, 12) == []
    assert judge(["host", "worker"], [MEMORY], LINEAGE, 12) == []  # the copy that the second life had made
    assert judge(["worker", "worker"], peer, LINEAGE, 9) != []


@pytest.mark.parametrize(
    ("kind", "origins", "done", "complaint"),
    [
        ("worker", [MEMORY], 11, "2 are lost"),
        ("worker", [MEMORY, READ], 10, "different steps"),
        ("worker", [replace(MEMORY, adopted="peer")], 10, "adopted from peer after the loss of a worker"),
        ("worker", [replace(READ, read={"remote": 1})], 9, "read from ['remote']"),
        ("host", [replace(READ, read={"disk": 4, "remote": 5})], 9, "read from ['remote']"),
        ("worker", [Origin(step=4, read={"disk": 1})], 5, "step 8 was committed"),
        ("worker", [replace(MEMORY, adopted_step=10)], 10, "adopted step 10 and began at 9"),
        ("host", [MEMORY], 10, "adopted from memory after the loss of a host"),
        ("cluster", [MEMORY], 10, "adopted from memory after the loss of a cluster"),
        ("cluster", [Origin(step=0, read={"disk": 1})], 10, "read from ['disk']"),
    ],
)
def test_a_life_that_began_elsewhere_is_found(
    kind: Kind, origins: list[Origin], done: int, complaint: str
) -> None:
    faults = judge([kind], origins, LINEAGE, done)
    assert any(complaint in fault for fault in faults), faults
