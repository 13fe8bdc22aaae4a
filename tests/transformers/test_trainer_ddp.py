"""Two processes under gloo: one of them is killed, and the group that is started again is the same run."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainer_subject import Case, end_of, lines

from tests.lives import check_stretches, ended, free_port, start

RANKS = 2


def one(case: Case, home: Path, port: int, rank: int, kill: tuple[str, int] | None) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), ACCELERATE_USE_CPU="true",
    )  # fmt: skip
    case.run(home, kill, root=home.parent / "run")


def group(case: Case, top: Path, kill: tuple[str, int] | None = None) -> list[int]:
    """The exit codes. ``kill``: of the last rank."""
    port = free_port()
    homes = [top / f"rank{rank}" for rank in range(RANKS)]
    pids = []
    for rank, home in enumerate(homes):
        home.mkdir(exist_ok=True)
        its = kill if rank == RANKS - 1 else None
        pids.append(start(home, partial(one, case, home, port, rank, its)))
    return [ended(pid) for pid in pids]


def told(top: Path) -> str:
    return "\n".join((top / f"rank{rank}" / "output").read_text()[-2000:] for rank in range(RANKS))


def of(top: Path) -> list[Any]:
    """What both ranks wrote, less what each measures for itself."""
    return [lines(top / f"rank{rank}") for rank in range(RANKS)]


def test_one_of_two_is_killed(tmp_path: Path) -> None:
    case = replace(Case(every=2, epochs=2, samples=40), args={"ddp_backend": "gloo"})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for top in (whole, killed):
        top.mkdir()
    assert group(case, whole) == [0, 0], told(whole)
    codes = group(case, killed, ("batch", 7))
    assert codes[1] == -9, told(killed)
    assert codes[0] not in (0, -9), "its peer is gone"
    first = of(killed)
    assert group(case, killed) == [0, 0], told(killed)
    for rank, expected in enumerate(of(whole)):
        second = lines(killed / f"rank{rank}")[len(first[rank]) :]
        check_stretches(expected, [first[rank], second])
        assert len(second) < len(expected), "it did not begin in the middle"
        assert end_of(killed / f"rank{rank}") == end_of(whole / f"rank{rank}")
    ids = [{n for line in part if line["what"] == "batch" for n in line["ids"]} for part in of(whole)]
    assert ids[0] | ids[1] == set(range(40))
