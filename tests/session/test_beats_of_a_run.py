"""What a worker tells its launcher while it trains: phases in order, steps, what its steps take itself."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from own_time_writer import SLOW_S
from session_helpers import start, state_at, train
from torch import nn
from torch.utils.data import TensorDataset

from durable_core import DurableSession
from durable_core.clock import SystemClock
from durable_core.data import DurableLoader
from durable_core.engine import beats, uncaught
from durable_core.engine.beats import Beat, Phase
from durable_core.engine.inspect import open_run
from durable_core.engine.launched import Launched, RunFiles
from durable_core.engine.words import read_opened
from durable_core.session import Run, reporting
from durable_core.session.reporting import Reporter
from durable_core.types import Token

SCRIPT = Path(__file__).parent / "own_time_writer.py"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFiles]:
    monkeypatch.setenv("DURABLE_RUN_DIR", str(tmp_path / "launch"))
    yield RunFiles(tmp_path / "launch").prepare()
    uncaught.uninstall()


@pytest.fixture
def seen(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> list[Beat]:
    """Every beat of this process."""
    found: list[Beat] = []
    write = beats.Writer.beat

    def beat(self: beats.Writer, *args: object, **kwargs: object) -> None:
        write(self, *args, **kwargs)  # type: ignore[arg-type]
        now = beats.read(files.beat(0))
        assert now is not None
        found.append(now)

    monkeypatch.setattr(beats.Writer, "beat", beat)
    return found


def phases(seen: list[Beat]) -> list[Phase]:
    """Without repetitions."""
    return [beat.phase for i, beat in enumerate(seen) if not i or seen[i - 1].phase is not beat.phase]


def test_a_new_run_tells_every_phase(seen: list[Beat], tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    train(run, 1, 2)
    run.close()
    steps = [Phase.STEP, Phase.SAVE] * 3
    assert phases(seen) == [Phase.INIT, *steps, Phase.STEP, Phase.EXIT]
    last = seen[-1]
    assert (last.pid, last.generation, last.step, last.durable) == (os.getpid(), 1, 2, 2)
    assert [beat.count for beat in seen] == list(range(1, len(seen) + 1))


def test_a_resumed_run_restores_first(seen: list[Beat], tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    train(run, 1, 2)
    run.close()
    seen.clear()
    run = Run.open(tmp_path / "run")
    run.load()
    run.confirm()
    assert phases(seen) == [Phase.INIT, Phase.RESTORE, Phase.INIT, Phase.STEP]
    assert (seen[-1].generation, seen[-1].step, seen[-1].durable) == (2, 2, 2)
    run.close()


def test_a_step_that_is_not_saved_is_told_too(seen: list[Beat], tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    seen.clear()
    run.boundary(1)
    run.boundary(2)
    assert [(beat.phase, beat.step, beat.durable) for beat in seen] == [
        (Phase.STEP, 1, 0),
        (Phase.STEP, 2, 0),
    ]
    run.close()


def test_waiting_for_storage_is_told_while_it_lasts(seen: list[Beat], tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    run.boundary(1)
    seen.clear()
    run.save(state_at(1), {}, step=1, wait=False)
    run.flush()
    assert [beat.phase for beat in seen] == [Phase.SAVE, Phase.STEP] * 2
    run.close()


def test_a_loop_tells_when_it_takes_a_batch_and_when_it_evaluates(seen: list[Beat], tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DurableLoader(TensorDataset(torch.ones(8, 2)), batch_size=4, dataset_id="beats")
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    with DurableSession.open(tmp_path / "run", state=state, every_n_steps=100) as session:
        batches = iter(loader)
        seen.clear()
        (x,) = next(batches)
        assert [beat.phase for beat in seen] == [Phase.STEP]
        model(x).mean().backward()
        optimizer.step()
        session.step()
        assert [(beat.phase, beat.step) for beat in seen] == [(Phase.STEP, 0), (Phase.STEP, 1)]
        seen.clear()
        with session.evaluating() as alive:
            alive()
        assert [beat.phase for beat in seen] == [Phase.EVAL, Phase.EVAL, Phase.STEP]
        model(x).mean().backward()
        session.step()
        assert len(seen[-1].own) == 2


def test_what_the_launcher_stops_for_is_what_the_journal_says(files: RunFiles, tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    files.stopping.write_text("SIGINT")  # as its agent does, before it sends SIGTERM
    run.draining(0, "SIGTERM")
    run.close()
    assert open_run(tmp_path / "run").state.draining == {"reason": "SIGINT", "step": 0}


def test_without_a_launcher_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DURABLE_RUN_DIR", raising=False)
    run = start(tmp_path / "run")
    train(run, 1, 1)
    run.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert uncaught.install(Launched.of({})) is None


# --- one voice in a process ------------------------------------------------------------------


def told(files: RunFiles) -> tuple[str, int, int]:
    """Which run, and what its newest beat says."""
    opened, beat = read_opened(files.opened), beats.read(files.beat(0))
    assert opened is not None and beat is not None
    return Path(opened.root).name, beat.generation, beat.step


def test_a_run_opened_beside_the_first_is_not_told_of(files: RunFiles, tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    train(run, 1, 2)
    other = start(tmp_path / "other")
    train(other, 1, 1)
    assert told(files) == ("run", 1, 2)
    train(run, 3, 3)
    other.close()
    assert told(files) == ("run", 1, 3)
    run.boundary(4)
    assert told(files) == ("run", 1, 4)
    run.close()


def test_when_a_run_is_closed_the_next_one_is_told_of(files: RunFiles, tmp_path: Path) -> None:
    for name in ("first", "second"):
        run = start(tmp_path / name)
        train(run, 1, 1)
        assert told(files) == (name, 1, 1)
        run.close()
    assert len(list((files.root / "beats").iterdir())) == 1


def test_a_run_that_is_only_read_is_not_told_of(files: RunFiles, tmp_path: Path) -> None:
    teacher = start(tmp_path / "teacher")
    train(teacher, 1, 1)
    teacher.succeed()
    teacher.close()
    files.opened.unlink()
    teacher = Run.open(tmp_path / "teacher")
    assert teacher.completed
    assert not files.opened.exists()
    run = start(tmp_path / "run")
    teacher.load()
    train(run, 1, 2)
    teacher.close()
    assert told(files) == ("run", 1, 2)
    run.close()


def test_where_a_generation_was_claimed_its_run_is_told_of_and_no_other(
    files: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path / "run")
    run.close()
    files.opened.unlink()
    monkeypatch.setattr(reporting, "_voice", None)  # as in another process
    monkeypatch.setenv("DURABLE_RUN_ID", run.run_id)
    teacher = start(tmp_path / "teacher")
    train(teacher, 1, 1)
    assert not files.opened.exists()
    run = start(tmp_path / "run")
    train(teacher, 2, 2)
    assert told(files) == ("run", 2, 0)
    run.close()
    teacher.close()


def test_a_session_that_is_forgotten_holds_nothing(files: RunFiles, tmp_path: Path) -> None:
    first = reporter_at(files, Time())
    first.boundary(3)
    del first
    run = start(tmp_path / "run")
    train(run, 1, 1)
    assert told(files) == ("run", 1, 1)
    run.close()


def test_training_goes_on_where_nothing_can_be_told(files: RunFiles, tmp_path: Path) -> None:
    shutil.rmtree(files.root)
    with pytest.warns(UserWarning, match="launcher is not told"):
        run = start(tmp_path / "run")
    train(run, 1, 1)
    run.close()
    assert not files.root.exists(), "it would be nobody's"


def test_who_has_no_room_for_beats_says_so_at_once(
    files: RunFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reporting, "Writer", full)
    with pytest.warns(UserWarning, match="No space left"):
        run = start(tmp_path / "run")
    assert files.mute(0).exists() and beats.read(files.beat(0)) is None
    train(run, 1, 1)
    run.close()


# --- own time --------------------------------------------------------------------------------


class Time(SystemClock):
    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at


def reporter_at(files: RunFiles, time: Time) -> Reporter:
    reporter = Reporter(files, 0, time, "/root")
    reporter.opened("run", Token(1, "launch"), ("dp0",), tells=False)
    reporter.trains(0)
    return reporter


def own(files: RunFiles) -> tuple[float, ...]:
    beat = beats.read(files.beat(0))
    assert beat is not None
    return beat.own


def test_own_time_is_from_going_on_to_the_last_gradient(files: RunFiles) -> None:
    time = Time()
    reporter = reporter_at(files, time)
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    reporter.watch([first, second])
    for at, model in ((3.0, first), (5.0, second)):
        time.at = at
        model(torch.ones(1)).sum().backward()
    time.at = 9.0  # what lies between is waiting for the others
    reporter.boundary(1)
    assert own(files) == (5.0,)
    time.at = 11.0
    reporter.goes_on()
    time.at = 12.0
    first(torch.ones(1)).sum().backward()
    reporter.boundary(2)
    assert own(files) == (5.0, 1.0)


def test_evaluating_before_a_step_is_no_part_of_it(files: RunFiles) -> None:
    time = Time()
    reporter = reporter_at(files, time)
    model = nn.Linear(1, 1)
    reporter.watch([model])
    with reporter.within(Phase.EVAL):
        time.at = 100.0
    time.at = 102.0
    model(torch.ones(1)).sum().backward()
    with reporter.within(Phase.EVAL):  # after the gradient it changes nothing
        time.at = 200.0
    reporter.boundary(1)
    assert own(files) == (2.0,)


def test_without_a_gradient_there_is_no_own_time(files: RunFiles) -> None:
    reporter = reporter_at(files, Time())
    reporter.watch([nn.Linear(1, 1), nn.ReLU()])
    reporter.boundary(1)
    assert own(files) == ()


def test_a_closed_run_leaves_the_model_as_it_was(files: RunFiles) -> None:
    reporter = reporter_at(files, Time())
    model = nn.Linear(1, 1)
    reporter.watch([model])
    assert model.weight._backward_hooks
    reporter.close()
    reporter.close()
    assert not model.weight._backward_hooks


@pytest.mark.parametrize("every", [1, 2])
def test_the_slow_rank_is_seen_where_the_steps_of_all_take_equally_long(
    files: RunFiles, tmp_path: Path, every: int
) -> None:
    shell = ["sh", "-c", '"$0" "$@"; exit $?']  # a worker may be wrapped
    command = [*shell, sys.executable, str(SCRIPT), str(tmp_path / "run"), str(tmp_path / "meeting")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "6", str(every)], env={**os.environ, "RANK": str(rank)},
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        took = [json.loads(process.communicate(timeout=120)[0]) for process in ranks]
    finally:
        for process in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
    found = [beats.read(files.beat(rank)) for rank in range(2)]
    assert found[0] is not None
    assert found[1] is not None
    assert not {found[0].pid, found[1].pid} & {process.pid for process in ranks}, "within their wrappers"
    assert [len(beat.own) for beat in found if beat is not None] == [6, 6]
    fast, slow = (statistics.median(beat.own) for beat in found if beat is not None)
    steps = [statistics.median(each) for each in took]
    assert min(found[1].own) >= every * SLOW_S
    assert fast < slow / 2
    assert min(steps) > every * SLOW_S > max(steps) - min(steps)
