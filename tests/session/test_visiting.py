"""A look at another checkpoint of the run, and the run going on from there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from session_helpers import state_at
from test_launched_run import Launcher as Launcher
from test_launched_run import launcher as launcher
from test_reapplied import Script, equal
from test_two_writers import Meeting, run_to, settings, tree

from durable_core import DurableSession, Memory, Tiers
from durable_core.commit.retention import Retention
from durable_core.commit.state import RunState
from durable_core.engine.audit import audit
from durable_core.engine.inspect import open_run
from durable_core.engine.words import read_opened
from durable_core.errors import CheckpointNotFoundError, CorruptError, Fenced, UsageError
from durable_core.session import Run
from durable_core.session.world import World
from durable_core.types import CheckpointState
from tests import lives


def life(root: Path, body: Callable[[Script, DurableSession], None], **more: Any) -> Script:
    """One process: four steps with a checkpoint after each, then ``body``."""
    script = Script()
    with script.open(root, retention=Retention(keep_last=9), **more) as session:
        while session.steps < 4:
            advance(script, session)
            session.save(wait=True)
        body(script, session)
    return script


def advance(script: Script, session: DurableSession, steps: int = 1) -> None:
    for _ in range(steps):
        script.update(taken(script), rare=session.steps >= 3)
        session.step()


def taken(script: Script) -> Any:
    """The next batch, of the next pass when one is over."""
    batch = next(script.batches, None)
    if batch is None:
        script.batches = iter(script.loader)
        batch = next(script.batches)
    return batch


def state_of(root: Path) -> RunState:
    return open_run(root).state


def points(root: Path) -> list[int | None]:
    return [each.restore_point for each in state_of(root).lives]


@pytest.fixture
def expected(tmp_path: Path) -> list[Any]:
    """The state after each step of a run that nobody looked into, by step."""
    found: list[Any] = []
    script = Script()
    with script.open(tmp_path / "expected") as session:
        found.append(script.saved())
        for _ in range(7):
            advance(script, session)
            found.append(script.saved())
    return found


def test_a_look_leaves_the_run_where_it_was(tmp_path: Path, expected: list[Any]) -> None:
    def body(script: Script, session: DurableSession) -> None:
        advance(script, session)  # step 5 is not durable yet
        loaded = session.visit(2)
        assert (loaded.c, loaded.step, session.steps, session.restored) == (2, 2, 2, None)
        assert equal(script.saved(), expected[2])
        assert session.newest == (2, 2, state_of(tmp_path).checkpoints[2].manifest_digest)
        assert not session.save(wait=True), "it is a checkpoint already"
        session.finish()

    life(tmp_path, body)
    state = state_of(tmp_path)
    assert state.terminal is not None and state.terminal.outcome == "succeeded"
    assert (state.terminal.c, state.terminal.detail["target"], state.head_step) == (
        state.head,
        {"steps": 5},
        5,
    )
    assert points(tmp_path) == [None], "nobody claimed anything"
    again = Script()
    with again.open(tmp_path) as session:
        assert session.steps == 5 and equal(again.saved(), expected[5])


def test_a_block_that_is_left_while_looking_is_at_its_head(tmp_path: Path, expected: list[Any]) -> None:
    life(tmp_path, lambda script, session: session.visit(1) and None)
    again = Script()
    with again.open(tmp_path) as session:
        assert session.restored == (4, 4) and equal(again.saved(), expected[4])
    assert points(tmp_path) == [None, 4]


def test_a_step_after_it_goes_on_from_there_bit_for_bit(tmp_path: Path, expected: list[Any]) -> None:
    def body(script: Script, session: DurableSession) -> None:
        session.visit(2)
        advance(script, session)
        assert (session.steps, session.run.generation, points(tmp_path)) == (3, 2, [None, 2])
        assert equal(script.saved(), expected[3])
        session.visit(1)  # and once more, from the new line
        advance(script, session, 4)
        assert equal(script.saved(), expected[5])
        session.finish()

    life(tmp_path, body)
    state = state_of(tmp_path)
    assert points(tmp_path) == [None, 2, 1]
    assert [state.checkpoints[c].step for c in state.lineage()] == [0, 1, 5]
    found = audit(open_run(tmp_path))
    assert found.sound and found.consumption.samples == 5 * 2, "what was abandoned is on no line"
    again = Script()
    with again.open(tmp_path) as session:
        assert session.run.completed and equal(again.saved(), expected[5])


def test_a_look_at_the_head_changes_no_line(tmp_path: Path, expected: list[Any]) -> None:
    def body(script: Script, session: DurableSession) -> None:
        session.visit(1)
        session.visit(4)
        advance(script, session, 3)
        assert equal(script.saved(), expected[7])

    life(tmp_path, body)
    assert points(tmp_path) == [None]
    assert audit(open_run(tmp_path)).sound


def test_in_the_middle_of_a_pass_that_pass_is_over(tmp_path: Path, expected: list[Any]) -> None:
    def body(script: Script, session: DurableSession) -> None:
        for count, batch in enumerate(script.batches):
            if count == 1:  # a batch in hand, not trained
                session.visit(3)
                continue
            script.update(batch, rare=True)
            session.step()
        assert count == 1
        advance(script, session)
        assert equal(script.saved(), expected[4])

    life(tmp_path, body)
    assert audit(open_run(tmp_path)).sound


def test_before_the_first_batch_the_pair_is_looked_after_all_the_same(tmp_path: Path) -> None:
    life(tmp_path, lambda script, session: None)
    script = Script()
    with script.open(tmp_path, hold=True) as session:
        session.visit(2)
        session.reapply()  # what was restored is not wanted any more
        assert session.steps == 2
        advance(script, session)
    assert points(tmp_path) == [None, 4, 2]


@pytest.mark.parametrize("c", [77, 1])
def test_one_that_is_not_there_is_an_error_and_nothing_else(
    c: int, tmp_path: Path, expected: list[Any]
) -> None:
    def body(script: Script, session: DurableSession) -> None:
        with pytest.raises(CheckpointNotFoundError, match=f"checkpoint {c} is (not known|retired)"):
            session.visit(c)
        advance(script, session)
        assert equal(script.saved(), expected[5])

    script = Script()
    with script.open(tmp_path, retention=Retention(keep_last=1)) as session:
        while session.steps < 4:
            advance(script, session)
            session.save(wait=True)
        body(script, session)
    assert points(tmp_path) == [None]


def test_a_damaged_one_is_an_error_and_the_journal_knows(tmp_path: Path, expected: list[Any]) -> None:
    def body(script: Script, session: DurableSession) -> None:
        for path in (tmp_path / "checkpoints").glob("*-c00000002-*/shard-*"):
            path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CorruptError):
            session.visit(2)
        assert state_of(tmp_path).checkpoints[2].state is CheckpointState.CORRUPT
        assert equal(script.saved(), expected[4])
        advance(script, session)
        session.save(wait=True)

    life(tmp_path, body)
    assert (state_of(tmp_path).head_step, points(tmp_path)) == (5, [None])


def test_not_in_the_middle_of_a_step(tmp_path: Path) -> None:
    def body(script: Script, session: DurableSession) -> None:
        script.update(taken(script), rare=True)
        with pytest.raises(UsageError, match="an optimizer has stepped"):
            session.visit(2)
        session.step()

    life(tmp_path, body)
    assert state_of(tmp_path).head_step == 5


def test_whoever_was_fenced_meanwhile_claims_nothing(tmp_path: Path) -> None:
    def body(script: Script, session: DurableSession) -> None:
        session.visit(2)
        run = Run.open(tmp_path, settings=settings())
        run.close()
        script.update(taken(script), rare=True)
        with pytest.raises(Fenced):
            session.step()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        life(tmp_path, body)
    assert points(tmp_path) == [None, 4]


# --- killed ------------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(root: Path, home: Path, after: str) -> None:
    """A process that looks at c2 and is killed: while looking, after the claim, after a commit."""

    def body(script: Script, session: DurableSession) -> None:
        session.visit(2)
        if after != "the look":
            advance(script, session)
            session.flush()
        if after == "a commit":
            session.save(wait=True)
        die()

    memory = Tiers(memory=Memory(every_n_steps=1, directory=str(home)))
    assert lives.life(home, lambda: life(root, body, tiers=memory)) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("after", "restored"), [("the look", (4, 4)), ("the claim", (2, 2)), ("a commit", (5, 3))]
)
def test_killed_at_each_place_the_next_start_knows_where(
    after: str, restored: tuple[int, int], tmp_path: Path, expected: list[Any]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    killed(tmp_path / "run", home, after)
    script = Script()
    memory = Tiers(memory=Memory(every_n_steps=1, directory=str(home)))
    with script.open(tmp_path / "run", tiers=memory) as session:
        if after == "the claim":  # its step 3 was sealed in memory: that is the line, and step 4 is not
            assert session.steps == 3 and session.restored is not None
        else:
            assert session.restored == restored
        while session.steps < 7:
            advance(script, session)
        assert equal(script.saved(), expected[7])
        session.finish()
    assert audit(open_run(tmp_path / "run")).sound


def test_killed_after_the_claim_without_memory_it_goes_on_at_the_point(
    tmp_path: Path, expected: list[Any]
) -> None:
    def body(script: Script, session: DurableSession) -> None:
        session.visit(2)
        advance(script, session)
        die()

    home = tmp_path / "home"
    home.mkdir()
    assert lives.life(home, lambda: life(tmp_path / "run", body)) == -signal.SIGKILL
    script = Script()
    with script.open(tmp_path / "run") as session:
        assert session.restored == (2, 2) and equal(script.saved(), expected[2])
        advance(script, session, 2)
        assert equal(script.saved(), expected[4])


# --- several writers, and a launcher -----------------------------------------------------------


def test_all_writers_go_on_from_there_together(tmp_path: Path) -> None:
    meeting = Meeting(2)
    meeting.all(run_to(tmp_path, 3))

    def member(world: World) -> tuple[int, int | None]:
        rank = world.roles.index(world.role)
        run = Run.open(tmp_path, world=world, settings=settings())
        run.load()
        run.confirm()
        visited, loaded = run.visit(1)
        assert loaded.state["bn"].tolist() == [1 + rank] * 4
        run = run.rolled_back(visited)
        run.boundary(2)
        state, role = tree(rank, 2)
        run.save(state, role, step=2, wait=True)
        run.close()
        return run.generation, run.restored_from and run.restored_from[0]

    assert meeting.all(member) == [(3, 1), (3, 1)]
    state = state_of(tmp_path)
    assert [state.checkpoints[c].step for c in state.lineage()] == [0, 1, 2]


def test_a_writer_that_cannot_read_it_stops_them_all_and_nothing_is_claimed(tmp_path: Path) -> None:
    meeting = Meeting(2)
    meeting.all(run_to(tmp_path, 2))
    for path in (tmp_path / "checkpoints").glob("*-c00000001-*/shard-dp1*"):
        path.write_bytes(b"")

    def member(world: World) -> None:
        run = Run.open(tmp_path, world=world, settings=settings())
        run.load()
        run.confirm()
        with pytest.raises(CorruptError):
            run.visit(1)
        run.close()

    meeting.all(member)
    assert state_of(tmp_path).generation == 2


def test_under_a_launcher_the_worker_claims_and_says_so(launcher: Launcher) -> None:
    run = Run.open(launcher.root)
    run.confirm()
    for step in range(3):
        run.save(state_at(step), {}, step=step, wait=True)
    run.close()
    launcher.claim()
    run = Run.open(launcher.root)
    run.load()
    run.confirm()
    visited, _ = run.visit(1)
    run = run.rolled_back(visited)
    run.save(state_at(2), {}, step=2, wait=True)
    told = read_opened(launcher.files.opened)
    assert told is not None and told.generation == run.generation == launcher.generation == 3
    run.close()
