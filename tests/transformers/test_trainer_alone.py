"""A callback that is not attached: the order of data is kept, and what it cannot keep is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trainer_subject import Case, Counting, lines
from transformers import Trainer

from accelerate_durable.transformers import last_checkpoint
from durable_core.errors import PromiseError, UnsupportedError, UsageError
from tests.lives import life


def trainer_of(case: Case, home: Path, kill: tuple[str, int] | None = None) -> Trainer:
    trainer, durable = case.plain(home, kill)
    trainer.add_callback(durable)
    return trainer


def run(case: Case, home: Path, kill: tuple[str, int] | None = None) -> None:
    trainer_of(case, home, kill).train(resume_from_checkpoint=last_checkpoint(home / "run"))


def order(home: Path) -> list[Any]:
    return [line["ids"] for line in lines(home) if line["what"] == "batch"]


def test_killed_it_trains_on_each_sample_once(tmp_path: Path) -> None:
    case = Case(every=4, accumulate=2)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for home in (whole, killed):
        home.mkdir()
    assert life(whole, lambda: run(case, whole)) == 0, (whole / "output").read_text()
    assert life(killed, lambda: run(case, killed, ("step", 7))) == -9
    assert order(killed) == order(whole)[:14]
    assert life(killed, lambda: run(case, killed)) == 0, (killed / "output").read_text()
    assert order(killed) == [*order(whole)[:14], *order(whole)[8:]], "on from step 4"
    finished = [line["step"] for line in lines(killed) if line["what"] == "step"]
    assert finished == [*range(1, 8), *range(5, 13)]
    assert not list(tmp_path.glob("durable-resume-*"))


@pytest.mark.parametrize(
    ("case", "error", "named"),
    [
        (Case(durable={"promise": "bitwise"}), PromiseError, "'exact-order' at most"),
        (Case(callbacks=lambda: [Counting()]), UnsupportedError, "Counting"),
        (Case(args={"ignore_data_skip": True}), UnsupportedError, "ignore_data_skip"),
        (
            Case(
                evaluates=True,
                args={"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
            ),
            UnsupportedError,
            "load_best_model_at_end",
        ),
    ],
    ids=["bitwise", "callbacks", "skip", "best"],
)
def test_refused(tmp_path: Path, case: Case, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        trainer_of(case, tmp_path).train()
    assert not (tmp_path / "run").exists()


def test_a_restart_that_begins_anew_is_told(tmp_path: Path) -> None:
    case = Case(every=4, epochs=1)
    assert life(tmp_path, lambda: run(case, tmp_path, ("step", 9))) == -9
    with pytest.raises(UsageError, match="the run is at step 8, and the Trainer begins at step 0"):
        trainer_of(case, tmp_path).train()


def test_another_seed_is_told(tmp_path: Path) -> None:
    assert life(tmp_path, lambda: run(Case(every=4, epochs=1), tmp_path, ("step", 9))) == -9
    with pytest.raises(UsageError, match="comes from seed 3, the Trainer's from 4"):
        run(Case(every=4, epochs=1, seed=4), tmp_path)


def test_no_run_of_a_trainer(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "nothing") is None
