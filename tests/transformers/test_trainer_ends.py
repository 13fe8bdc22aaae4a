"""The end of a run, what asks for a commit, and how a run is left."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trainer_subject import Case, References, digest, end_of, lines
from transformers import TrainerCallback

from durable_core.engine.beats import Phase
from durable_core.engine.export import model_tensors
from durable_core.engine.inspect import open_run
from durable_core.engine.restore import read
from tests.lives import life

BEST = {
    "eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4,
    "metric_for_best_model": "loss", "greater_is_better": True, "load_best_model_at_end": True,
}  # fmt: skip


def steps_of(home: Path) -> list[int]:
    return [info.step for info in open_run(home / "run").committed()]


def newest_state(home: Path) -> Any:
    reader = open_run(home / "run")
    info = reader.newest_usable()
    return read(reader.tier, info.manifest, info.manifest_digest, "dp0").state


def test_a_finished_run_trains_nothing_and_ends_as_it_did(references: References, tmp_path: Path) -> None:
    case = Case(epochs=1)
    trainer, durable = case.plain(tmp_path)
    first = durable.attach(trainer).train()
    weights = digest(*trainer.model.parameters())
    told = len(lines(tmp_path))
    again, durable = case.plain(tmp_path)
    durable.attach(again)
    with pytest.warns(
        UserWarning, match=r"has ended, at step 12: its model is in place, and nothing is trained"
    ):
        output = again.train()
    assert (output.global_step, output.training_loss) == (first.global_step, first.training_loss)
    assert digest(*again.model.parameters()) == weights
    assert [line["what"] for line in lines(tmp_path)[told:]] == ["log"]
    assert durable.status is not None and durable.status.newest_step == 12


def test_the_best_model_is_loaded_and_is_no_training(references: References, tmp_path: Path) -> None:
    """The run ends with its last weights; what the script is left with is the best, each time it is run."""
    case = Case(epochs=1, every=3, evaluates=True, args=BEST)
    trainer, durable = case.plain(tmp_path)
    durable.attach(trainer).train()
    assert trainer.state.best_global_step == 4, (
        "loss as a metric of which more is better: the first is the best"
    )
    best = digest(*trainer.model.parameters())
    last = [line for line in lines(tmp_path) if line["what"] == "step"][-1]
    assert best != last["weights"]
    again, durable = case.plain(tmp_path)
    durable.attach(again).train()
    assert digest(*again.model.parameters()) == best
    held = model_tensors(newest_state(tmp_path))
    assert digest(*(held[name] for name, _ in again.model.named_parameters())) == last["weights"]


def test_when_the_trainer_saves_so_does_the_run(tmp_path: Path) -> None:
    case = Case(epochs=1, every=1000, args={"save_strategy": "steps", "save_steps": 5})
    assert life(tmp_path, lambda: case.run(tmp_path, ("step", 11))) == -9
    assert steps_of(tmp_path) == [0, 5, 10]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint-10", "checkpoint-5"]


class Terminated(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 7:
            signal.raise_signal(signal.SIGTERM)


def test_sigterm_drains(references: References, tmp_path: Path) -> None:
    case = Case(epochs=1, every=1000)
    expected, end = references.of(case)
    terminated = replace(case, callbacks=lambda: [Terminated()])
    assert life(tmp_path, lambda: terminated.run(tmp_path)) == 75, (tmp_path / "output").read_text()
    assert steps_of(tmp_path) == [0, 7]
    assert life(tmp_path, lambda: case.run(tmp_path)) == 0, (tmp_path / "output").read_text()
    assert (lines(tmp_path), end_of(tmp_path)) == (expected, end)


def test_drained_at_the_last_step_it_trains_no_further(references: References, tmp_path: Path) -> None:
    """In the middle of an epoch: the Trainer would do one step more before it asks whether to stop."""
    case = Case(every=1000, args={"max_steps": 7})
    terminated = replace(case, callbacks=lambda: [Terminated()])
    assert life(tmp_path, lambda: terminated.run(tmp_path)) == 75, (tmp_path / "output").read_text()
    assert open_run(tmp_path / "run").state.terminal is None
    assert life(tmp_path, lambda: case.run(tmp_path)) == 0, (tmp_path / "output").read_text()
    expected, end = references.of(case)
    assert (lines(tmp_path), end_of(tmp_path)) == (expected, end)
    assert open_run(tmp_path / "run").state.terminal is not None


class Breaks(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 8:
            raise RuntimeError("the user's own")


def test_an_error_ends_no_run(references: References, tmp_path: Path) -> None:
    case = Case(epochs=1, every=4)
    trainer, durable = replace(case, callbacks=lambda: [Breaks()]).plain(tmp_path)
    with pytest.raises(RuntimeError, match="the user's own"):
        durable.attach(trainer).train()
    assert open_run(tmp_path / "run").state.terminal is None
    assert life(tmp_path, lambda: case.run(tmp_path)) == 0, (tmp_path / "output").read_text()
    assert end_of(tmp_path) == references.of(case)[1]


def test_a_longer_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    case = Case(epochs=1, args={"lr_scheduler_type": "constant"})
    trainer, durable = case.plain(tmp_path)
    durable.attach(trainer).train()
    longer, durable = replace(case, epochs=2).plain(tmp_path)
    durable.attach(longer).train()
    steps = [line["step"] for line in lines(tmp_path) if line["what"] == "step"]
    assert steps == list(range(1, 25))


class Phases(TrainerCallback):
    def __init__(self) -> None:
        self.durable: Any = None
        self.seen: list[Phase] = []

    def _note(self) -> None:
        self.seen.append(self.durable._session.run.reporter.phase)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        self._note()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._note()


def test_a_launcher_is_told_of_an_evaluation(tmp_path: Path) -> None:
    phases = Phases()
    case = Case(evaluates=True, args={"eval_strategy": "steps", "eval_steps": 2, "max_steps": 3})
    trainer, phases.durable = case.plain(tmp_path)
    phases.durable.attach(trainer)
    trainer.add_callback(phases)
    trainer.train()
    told = [phase is Phase.EVAL for phase in phases.seen]
    assert told == [False, False, True, False, True], "after step 2, and after the last"
