"""A few real SIGKILLs in every test run; `make torture` does hundreds over the whole matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.campaign import torment
from tests.torture.history import Told
from tests.torture.lives import Strike, watch
from tests.torture.subject import Cell


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("cell", "kills"),
    [(Cell(workers=2, accumulate=4, world=1), 4), (Cell(workers=0, accumulate=1, world=2), 4)],
    ids=lambda value: value.name if isinstance(value, Cell) else None,
)
def test_killed_runs_are_the_uninterrupted_run(cell: Cell, kills: int, tmp_path: Path) -> None:
    tally = torment(cell, tmp_path, kills=kills, cold=0, seed=1, long=False)
    assert tally.faults == []
    assert tally.kills.total() == kills


def _line(place: int) -> dict[str, object]:
    return {"kind": "batch", "at": [0, place], "step": place, "ids": [place], "x": "x"}


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([{"kind": "start", "step": 0}], "newest commit"),
        ([{"kind": "step", "step": 1, "state": "other"}], "state after step 1 differs"),
        ([_line(0)], "expected {'kind': 'batch', 'at': [0, 1]"),
        ([_line(1), _line(3)], "expected {'kind': 'batch', 'at': [0, 2]"),
        ([{**_line(1), "x": "another augmentation"}], "another augmentation"),
        ([_line(1), _line(2), _line(3), _line(4)], "no further batch"),
    ],
)
def test_a_life_that_departs_is_found(lines: list[dict[str, object]], complaint: str) -> None:
    told = Told([_line(place) for place in range(4)], {1: "s1"}, {})
    faults = told.faults(lines, head=1)
    assert any(complaint in fault for fault in faults), faults


def test_a_life_that_does_not_depart_is_not_complained_of() -> None:
    told = Told([_line(place) for place in range(4)], {2: "s2"}, {})
    lines = [{"kind": "start", "step": 1}, _line(1), {"kind": "step", "step": 2, "state": "s2"}, _line(2)]
    assert told.faults(lines, head=1) == []


class Acted:
    """A child that ends with these statuses, one a poll."""

    pid = None

    def __init__(self, *statuses: int | None) -> None:
        self._statuses = list(statuses)

    def status(self) -> int | None:
        return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]


@pytest.mark.parametrize(
    ("children", "struck"),
    [
        ([Acted(None, -9), Acted(None, None, -9)], True),
        ([Acted(None, -9), Acted(None, None, 1)], True),
        ([Acted(None, 1), Acted(None, None, -9)], False),  # it failed by itself; the other was put down
        ([Acted(0), Acted(None, 0)], False),
    ],
)
def test_a_failure_is_not_taken_for_a_kill(children: list[Acted], struck: bool) -> None:
    assert watch(children, Strike(), []).struck is struck
