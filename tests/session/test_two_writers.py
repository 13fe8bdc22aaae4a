"""Several writers commit one checkpoint: replicated tensors once, what differs per role."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from durable_core import Goal, Tiers, errors
from durable_core.engine.inspect import open_run
from durable_core.session import Cadence, Run, Settings, World


class Meeting:
    """A process group of threads: every member contributes, every member gets all of it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=60)
        self._values: list[Any] = [None] * size

    def world(self, rank: int) -> World:
        def all_gather(value: Any) -> list[Any]:
            self._values[rank] = value
            self._barrier.wait()
            values = list(self._values)
            self._barrier.wait()
            return values

        roles = tuple(f"dp{i}" for i in range(self.size))
        return World(roles[rank], roles, lambda value: all_gather(value)[0], all_gather)

    def all(self, member: Callable[[World], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(lambda rank: member(self.world(rank)), range(self.size)))


def tree(rank: int, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Eight replicated tensors, one that differs between replicas, and one role's own."""
    same = {f"w{i}": torch.full((256,), float(step * 10 + i)) for i in range(8)}
    return {**same, "bn": torch.full((4,), float(rank + step)), "step": step}, {
        "rng": torch.tensor([rank, step])
    }


def settings(**changes: Any) -> Settings:
    return Settings(cadence=Cadence(1), takeover=True, **changes)


def run_to(root: Path, last: int) -> Callable[[World], None]:
    def member(world: World) -> None:
        rank = world.roles.index(world.role)
        run = Run.open(root, world=world, settings=settings())
        run.confirm()
        for step in range(last + 1):
            state, role = tree(rank, step)
            run.save(state, role, step=step, wait=True)
        run.close()

    return member


@pytest.mark.parametrize("size", [2, 4])
def test_each_replicated_tensor_is_stored_once_and_shared_out(tmp_path: Path, size: int) -> None:
    Meeting(size).all(run_to(tmp_path, 1))
    reader = open_run(tmp_path)
    info = reader.newest_usable()
    manifest = reader.manifest(info)
    assert info.step == 1
    assert {f"state/w{i}" for i in range(8)} <= set(manifest.tensors)
    assert "state/bn" not in manifest.tensors
    assert {f"roles/dp{r}/state/bn" for r in range(size)} <= set(manifest.tensors)
    assert not any("rank" in key for key in manifest.tensors)
    logical = sum(piece.info.nbytes for entry in manifest.tensors.values() for piece in entry.slices)
    assert logical == 8 * 1024 + size * (16 + 16)
    loads = [part.nbytes - part.header_bytes for part in manifest.objects]
    assert len(loads) == size
    assert max(loads) <= 1.2 * logical / size


def test_every_role_gets_its_own_back(tmp_path: Path) -> None:
    Meeting(2).all(run_to(tmp_path, 2))

    def resume(world: World) -> None:
        rank = world.roles.index(world.role)
        run = Run.open(tmp_path, world=world, settings=settings())
        loaded = run.load()
        run.confirm()
        state, role = tree(rank, 2)
        assert loaded.step == 2
        assert all(torch.equal(loaded.state[name], state[name]) for name in state if name != "step")
        assert torch.equal(loaded.role["rng"], role["rng"])
        run.close()

    Meeting(2).all(resume)


def test_damage_seen_by_one_writer_steps_all_of_them_down(tmp_path: Path) -> None:
    Meeting(2).all(run_to(tmp_path, 2))
    reader = open_run(tmp_path)
    newest = reader.manifest(reader.newest_usable())
    entry = newest.tensors["roles/dp1/own/rng"].slices[0]  # only dp1 reads it
    path = tmp_path / entry.object
    data = bytearray(path.read_bytes())
    data[entry.begin] ^= 1
    path.write_bytes(data)

    def resume(world: World) -> int:
        run = Run.open(tmp_path, world=world, settings=settings())
        step = run.load().step
        run.confirm()
        run.close()
        return step

    assert Meeting(2).all(resume) == [1, 1]
    assert reader.newest_usable().c == 2  # the reader's own view is a snapshot
    assert open_run(tmp_path).newest_usable().step == 1


def test_a_missing_writer_costs_the_save_and_never_hangs(tmp_path: Path) -> None:
    Meeting(2).all(run_to(tmp_path, 0))

    def member(world: World) -> tuple[int | None, str]:
        rank = world.roles.index(world.role)
        run = Run.open(tmp_path, world=world, settings=settings(commit_deadline_s=0.5))
        run.load()
        run.confirm()
        if rank == 0:  # dp1 stages, and dies before it writes anything
            saver = run._saver
            assert saver is not None
            state, role = tree(rank, 1)
            run.save(state, role, step=1)
        else:
            world.all_gather(
                {"room": True, "slots": [[True, None]], "given_up": []}
            )  # its part of the agreement
        run.flush()
        run.close()
        return run.status().newest_step, run.status().last_error or ""

    (newest, error), _ = Meeting(2).all(member)
    assert newest == 0
    assert "dp1" in error and "deadline" in error


def test_a_refusal_reaches_every_member(tmp_path: Path) -> None:
    def member(world: World) -> str:
        try:
            Run.open(tmp_path, world=world, settings=Settings(resume="must"))
        except errors.DurableError as error:
            return type(error).__name__
        return "opened"

    assert Meeting(2).all(member) == ["RunNotFoundError", "RunNotFoundError"]


def test_a_goal_that_one_writer_finds_breached_stops_all_of_them(tmp_path: Path) -> None:
    """Each watches its own snapshots and clock, but they have to wait together, or wait for each other."""
    Meeting(2).all(run_to(tmp_path, 0))
    goal = Goal("process", rpo_seconds=1e6)

    def member(world: World) -> int | None:
        rank = world.roles.index(world.role)
        careful = settings(tiers=Tiers(goals=(goal,)), on_rpo_breach="pause")
        run = Run.open(tmp_path, world=world, settings=careful)
        run.load()
        run.confirm()
        if rank == 1:
            (standing,) = (each for each in run.board.recovery.standings() if each.domain == "process")
            run.board.recovery.breaches = lambda: (standing,)  # type: ignore[method-assign]
        state, role = tree(rank, 1)
        run.save(state, role, step=1)
        newest = run.status().newest_step  # it was waited for
        run.close()
        return newest

    assert Meeting(2).all(member) == [1, 1]


@pytest.mark.parametrize("again", ["under way", "restored"])
def test_to_wait_for_a_step_that_is_saved_already_is_no_second_save(tmp_path: Path, again: str) -> None:
    """The coordinator would be refused at once, and the others wait for it until their deadline."""
    Meeting(2).all(run_to(tmp_path, 0))

    def member(world: World) -> tuple[bool, int | None]:
        run = Run.open(tmp_path, world=world, settings=settings(commit_deadline_s=600.0))
        run.load()
        run.confirm()
        step = 1 if again == "under way" else 0
        state, role = tree(world.roles.index(world.role), step)
        if again == "under way":
            run.save(state, role, step=step)
        done = run.save(state, role, step=step, wait=True)
        newest = run.status().newest_step
        run.close()
        return done, newest

    step = 1 if again == "under way" else 0
    assert Meeting(2).all(member) == [(True, step), (True, step)]
    assert len(open_run(tmp_path).state.checkpoints) == step + 1
