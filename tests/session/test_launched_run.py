"""A run under a launcher: the claim that was made for it, and what it tells back."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from session_helpers import check, restored, start, train
from test_memory_tier import SCRIPT, STEPS

from durable_core import errors
from durable_core.clock import SystemClock
from durable_core.commit import ending
from durable_core.commit.claim import Claim, claim_generation
from durable_core.commit.journal import EMPTY, replay
from durable_core.engine import restore, uncaught
from durable_core.engine.inspect import open_run
from durable_core.engine.launched import RunFiles, launch_id
from durable_core.engine.performer import Performer
from durable_core.engine.words import Opened, read_opened
from durable_core.session import Run, Settings
from durable_core.session.world import World
from durable_core.spec import ModelSpec, RunSpec, Target
from durable_core.tier.posix import PosixTier
from tests.lives import as_script, life


class Launcher:
    """What ``durable launch`` does to its workers' environment, as far as it concerns opening a run."""

    def __init__(self, root: Path, folder: Path, environ: pytest.MonkeyPatch) -> None:
        self.root, self.environ = root, environ
        self.files = RunFiles(folder).prepare()
        self.calls("x")
        environ.setenv("DURABLE_RUN_DIR", str(folder))

    def calls(self, name: str) -> None:
        self.environ.setenv("DURABLE_LAUNCH_ID", name)

    def performer(self) -> Performer:
        return Performer(PosixTier(self.root), SystemClock())

    def claim(self, *members: str, tell: bool = True) -> Claim:
        """The next generation; ``tell``: workers that start from now on are of it."""
        launch = launch_id() or ""
        program = claim_generation(EMPTY, launch_id=launch, members=members or ("dp0",), takeover=True)
        claimed = self.performer().run(program)
        if tell:
            self.environ.setenv("DURABLE_GENERATION", str(claimed.token.generation))
            self.environ.setenv("DURABLE_RUN_ID", claimed.view.state.run_id)
        return claimed

    @property
    def generation(self) -> int:
        return open_run(self.root).state.generation


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    yield Launcher(tmp_path / "run", tmp_path / "launch", monkeypatch)
    uncaught.uninstall()


def history(root: Path, last: int) -> None:
    run = start(root)
    done = 0 if run.restored_from is None else run.restored_from[1]
    train(run, done + 1, last)
    run.close()


def damage_newest(root: Path) -> None:
    newest = max(root.glob("checkpoints/*/shard-*.safetensors"), key=lambda path: path.parent.name)
    newest.write_bytes(newest.read_bytes()[:-1])


# --- the claim that was made for it ----------------------------------------------------------


def test_the_first_start_claims_and_says_what_it_opened(launcher: Launcher) -> None:
    run = start(launcher.root)
    opened = Opened(str(launcher.root), run.run_id, 1, "durable_launch_id:x", ("dp0",))
    assert read_opened(launcher.files.opened) == opened
    run.close()


def test_a_root_is_named_for_processes_that_stand_elsewhere(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.root.mkdir()
    monkeypatch.chdir(launcher.root.parent)
    start("run").close()
    opened = read_opened(launcher.files.opened)
    assert opened is not None
    assert opened.root == str(launcher.root)


def test_a_worker_works_under_the_launchers_claim(launcher: Launcher) -> None:
    history(launcher.root, 2)
    assert launcher.claim().token.generation == 2
    run = Run.open(launcher.root)
    assert (run.generation, run.restored_from) == (2, (2, 2))
    check(2, run.load().state)
    run.confirm()
    train(run, 3, 3)
    run.close()
    state = open_run(launcher.root).state
    assert (state.generation, state.head_step) == (2, 3)


def test_a_claim_serves_one_opening_and_another_takes_the_next(launcher: Launcher) -> None:
    history(launcher.root, 1)
    launcher.claim()
    Run.open(launcher.root).close()
    again = Run.open(launcher.root)
    assert again.generation == 3
    opened = read_opened(launcher.files.opened)
    assert opened is not None
    assert opened.generation == 3
    again.close()
    with pytest.raises(errors.Fenced):  # a third process of that attempt cannot know of the second
        Run.open(launcher.root)


def test_without_a_directory_a_claim_with_saves_is_no_longer_fresh(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(launcher.root, 1)
    launcher.claim()
    monkeypatch.delenv("DURABLE_RUN_DIR")
    history(launcher.root, 2)
    again = Run.open(launcher.root)
    assert (again.generation, again.restored_from) == (3, (2, 2))
    again.close()


def test_a_worker_of_an_older_attempt_that_opens_late_is_refused(launcher: Launcher) -> None:
    history(launcher.root, 1)
    launcher.claim()
    launcher.claim(tell=False)
    with pytest.raises(errors.Fenced, match="run is at generation 3"):
        Run.open(launcher.root)
    assert launcher.generation == 3


def test_a_worker_of_an_older_attempt_that_steps_down_late_is_refused(launcher: Launcher) -> None:
    history(launcher.root, 2)
    launcher.claim()
    late = Run.open(launcher.root)
    launcher.claim(tell=False)
    damage_newest(launcher.root)
    with pytest.raises(errors.Fenced):
        late.load()
    assert launcher.generation == 3


def test_a_worker_steps_down_to_the_generation_after_its_own_and_says_so(launcher: Launcher) -> None:
    history(launcher.root, 2)
    launcher.claim()
    damage_newest(launcher.root)
    run = Run.open(launcher.root)
    check(1, run.load().state)
    opened = read_opened(launcher.files.opened)
    assert opened is not None
    assert run.generation == opened.generation == launcher.generation == 3
    run.confirm()
    train(run, 2, 2)
    run.close()


def test_a_claim_is_told_of_before_anything_is_restored_under_it(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its controller asks while a large checkpoint is read is asked of that generation."""
    history(launcher.root, 2)
    launcher.claim()
    damage_newest(launcher.root)
    run = Run.open(launcher.root)
    told, read = [], restore.read

    def reading(*given: Any, **named: Any) -> restore.Restored:
        opened = read_opened(launcher.files.opened)
        told.append(None if opened is None else opened.generation)
        return read(*given, **named)

    monkeypatch.setattr(restore, "read", reading)
    run.load()
    assert told == [2, 3]
    run.close()


def test_other_members_than_were_claimed_for_take_the_next_generation(launcher: Launcher) -> None:
    history(launcher.root, 1)
    launcher.claim("dp0", "dp1")
    run = Run.open(launcher.root)
    assert run.generation == 3
    assert open_run(launcher.root).state.members == ("dp0",)
    run.close()


def test_a_launch_that_was_superseded_hears_it(launcher: Launcher) -> None:
    history(launcher.root, 1)
    launcher.claim()
    launcher.calls("y")
    launcher.claim(tell=False)
    launcher.calls("x")
    with pytest.raises(errors.Superseded):
        Run.open(launcher.root)


def test_the_claim_of_another_run_does_not_concern_this_one(launcher: Launcher, tmp_path: Path) -> None:
    history(launcher.root, 1)
    history(tmp_path / "other", 1)
    launcher.claim()
    other = Run.open(tmp_path / "other")
    assert other.generation == 2
    assert launcher.generation == 2
    other.close()


def test_a_takeover_is_the_launchers_affair_once_it_has_claimed(launcher: Launcher) -> None:
    owner = start(launcher.root)  # lives on, under the launch of before
    launcher.calls("y")
    launcher.claim()
    for takeover in (False, True):
        run = Run.open(launcher.root, settings=Settings(takeover=takeover))
        assert run.token.launch_id == "durable_launch_id:y"
        run.close()
    owner._heartbeat = None
    with contextlib.suppress(errors.Fenced):
        owner.close()


def test_a_cancelled_run_stays_ended(launcher: Launcher) -> None:
    history(launcher.root, 1)
    launcher.claim()
    cancel = ending.cancel(EMPTY, launch_id="op", principal="operator", reason="enough")
    launcher.performer().run(cancel)
    with pytest.raises(errors.RunEnded):
        Run.open(launcher.root)


def test_a_fork_is_claimed_by_the_worker_that_knows_of_it(launcher: Launcher) -> None:
    history(launcher.root, 1)
    launcher.claim()
    spec = RunSpec(roles=("dp0",), model=ModelSpec(cls="B"))
    run = Run.open(launcher.root, spec=spec, settings=Settings(resume="fork"))
    assert (run.generation, run.restored_from) == (3, (1, 1))
    run.close()
    state = open_run(launcher.root).state
    assert len(state.forks) == 1


def test_an_extended_run_is_claimed_by_the_worker_that_extends_it(launcher: Launcher) -> None:
    def spec(steps: int) -> RunSpec:
        return RunSpec(roles=("dp0",), target=Target(max_steps=steps))

    run = start(launcher.root, spec=spec(1))
    train(run, 1, 1)
    run.succeed({"steps": 1})
    run.close()
    more = Run.open(launcher.root, spec=spec(2))
    assert not more.completed
    assert more.generation == 2
    more.close()


def test_what_the_dead_sealed_is_adopted_under_the_launchers_claim(
    launcher: Launcher, tmp_path: Path
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()

    def live(*death: str) -> int:
        return life(tmp_path, as_script(SCRIPT, launcher.root, memory, STEPS, 1000, *death))

    assert live("4") == -signal.SIGKILL
    launcher.claim()
    code = live()
    said = (tmp_path / "output").read_text()
    assert "restored (1, 3)" in said and code == 0, said
    state = open_run(launcher.root).state
    assert [info.adopted for info in state.checkpoints.values()][:2] == [None, 1]
    assert state.generation == 2


def test_all_members_hear_of_a_refusal(launcher: Launcher) -> None:
    history(launcher.root, 1)
    launcher.claim()
    launcher.claim(tell=False)
    asked: list[object] = []

    def broadcast(answer: object) -> object:
        asked.append(answer)
        return answer

    world = World("dp0", ("dp0", "dp1"), broadcast, lambda value: [value, value])
    with pytest.raises(errors.Fenced):
        Run.open(launcher.root, world=world)
    assert [answer["error"] for answer in asked if isinstance(answer, dict)] == ["Fenced"]


def test_the_journal_is_the_same_as_if_the_worker_had_claimed(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(launcher.root, 1)
    launcher.claim()
    history(launcher.root, 2)
    launched = launcher.performer().run(replay(EMPTY)).state
    for name in [name for name in os.environ if name.startswith("DURABLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DURABLE_LAUNCH_ID", "x")
    history(tmp_path / "plain", 1)
    history(tmp_path / "plain", 2)
    plain = Performer(PosixTier(tmp_path / "plain"), SystemClock()).run(replay(EMPTY)).state
    for state in (launched, plain):
        assert (state.generation, state.head, state.head_step, state.members) == (2, 2, 2, ("dp0",))
        assert [life.generation for life in state.lives] == [1, 2]
    assert restored(launcher.root)[0] == restored(tmp_path / "plain")[0] == 2
