"""With several writers: a save that one of them has given up, and cannot say so in the journal."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from test_two_writers import Meeting, settings, tree

from durable_core import errors
from durable_core.engine.inspect import open_run
from durable_core.session import Run, World
from durable_core.session.given_up import GivenUp

DEADLINE_S = 600.0  # nobody may wait for it


@pytest.mark.parametrize("broken", [0, 1], ids=["the coordinator", "another writer"])
def test_saves_go_on_as_soon_as_storage_is_back(tmp_path: Path, broken: int) -> None:
    """Whoever could write waits for the one that could not: until the next agreement, not the deadline."""

    def member(world: World) -> int | None:
        rank = world.roles.index(world.role)
        run = Run.open(tmp_path, world=world, settings=settings(commit_deadline_s=DEADLINE_S))
        run.confirm()
        run.save(*tree(rank, 0), step=0, wait=True)
        if rank == broken:
            assert run._saver is not None
            tier: Any = run._saver.committer._performer.tier
            put = tier.put_if_absent
            tier.put_if_absent = _refuse
        for step in (1, 2):  # as many as may be under way
            run.save(*tree(rank, step), step=step)
        if rank == broken:
            while run.status().failed < (2 if world.coordinator else 1):
                run.flush(0.05)  # the second of another writer waits for the coordinator
            tier.put_if_absent = put
        world.all_gather("mended")
        run.save(*tree(rank, 3), step=3)  # it is skipped, and all hear why
        assert run.flush(60.0)
        run.save(*tree(rank, 4), step=4, wait=True)
        run.close()
        return run.status().newest_step

    finished: list[Any] = []
    thread = threading.Thread(target=lambda: finished.append(Meeting(2).all(member)), daemon=True)
    thread.start()
    thread.join(60.0)
    assert finished == [[4, 4]]
    assert open_run(tmp_path).newest_usable().step == 4


def _refuse(key: str, data: object) -> bool:
    raise errors.TierFull(f"{key}: no space is left")


def test_each_is_told_once_and_known_by_the_round_in_which_it_began() -> None:
    mine = GivenUp()
    mine.heard([])
    mine.add(mine.round)
    assert mine.why(1) == ""
    told = mine.told()
    mine.heard(told)
    assert told == [1] and mine.told() == []
    assert "another writer" in mine.why(1)
    assert mine.why(mine.round) == "", "the same step, saved again, is another save"


def test_what_is_long_over_is_forgotten() -> None:
    mine = GivenUp()
    mine.heard([1])
    for _ in range(100):
        mine.heard([])
    assert mine.why(1) == ""
