"""Every way in which a plain Trainer loses a run after SIGKILL: with the callback it is the same run.

Ids, augmented inputs, dropout activations, learning rates, weights after each step, logs, evaluations, the
best metric and what callbacks count are those of a run that nobody killed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from trainer_subject import Case, Counting, References, ShortEpochs, check_same
from transformers import EarlyStoppingCallback

EVALUATES = {
    "eval_strategy": "steps", "eval_steps": 4, "metric_for_best_model": "loss", "greater_is_better": False,
}  # fmt: skip


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_a_batch_it_is_the_same_run(
    references: References, tmp_path: Path, workers: int, accumulate: int
) -> None:
    kill = random.Random(10 * workers + accumulate).randrange(12, 23)
    check_same(references, Case(workers=workers, accumulate=accumulate), tmp_path, [("batch", kill)])


def test_three_kills_in_a_row_and_evaluation(references: References, tmp_path: Path) -> None:
    case = Case(every=2, args=EVALUATES, evaluates=True, callbacks=lambda: [Counting()])
    check_same(references, case, tmp_path, [("step", 1), ("eval", 1), ("batch", 7)])


def test_a_kill_after_the_last_step(references: References, tmp_path: Path) -> None:
    case = Case(epochs=1, args={"eval_strategy": "epoch"}, evaluates=True)
    check_same(references, case, tmp_path, [("eval", 1)])


def test_evaluation_at_the_start_is_part_of_the_run(references: References, tmp_path: Path) -> None:
    case = Case(epochs=1, every=8, evaluates=True, args={"eval_on_start": True})
    _, end = references.of(case)
    assert end["history"][0]["step"] == 0
    check_same(references, case, tmp_path, [("batch", 5)], anew=True)


def test_another_seed_at_the_restart(references: References, tmp_path: Path) -> None:
    case = Case()
    check_same(references, case, tmp_path, [("batch", 13)], then=replace(case, seed=11))
    assert "the run's seed 3 is used, not 11" in (tmp_path / "output").read_text()


def test_early_stopping_has_its_count(references: References, tmp_path: Path) -> None:
    """Its patience spans the kill: a fresh count would train on."""
    never_better = {**EVALUATES, "greater_is_better": True, "eval_steps": 3}
    case = Case(
        every=2,
        args=never_better,
        evaluates=True,
        callbacks=lambda: [EarlyStoppingCallback(3), Counting()],
    )
    _, end = references.of(case)
    assert end["step"] < 24, "it is to stop early"
    check_same(references, case, tmp_path, [("step", end["step"] - 1)])


def test_a_callback_that_stops_has_its_count(references: References, tmp_path: Path) -> None:
    case = Case(mixin=True, every=2, callbacks=lambda: [Counting(enough=17)])
    check_same(references, case, tmp_path, [("step", 14)])


@pytest.mark.parametrize("every", [2, 5])
def test_epochs_left_early(references: References, tmp_path: Path, every: int) -> None:
    """The Trainer computes its epoch from the count of steps, which is wrong then. With 5 a restart goes on
    from the checkpoint of the step with which an epoch was left."""
    case = Case(every=every, epochs=4, callbacks=lambda: [ShortEpochs(5), Counting()])
    check_same(references, case, tmp_path, [("batch", 13)])


def test_an_accumulation_cut_short_by_the_epochs_end(references: References, tmp_path: Path) -> None:
    check_same(references, Case(accumulate=2, samples=44, every=3), tmp_path, [("batch", 18)])
