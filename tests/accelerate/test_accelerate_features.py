"""What Accelerate can do, killed in the middle of it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from accelerate_lives import References, at_line, case, output, run_life, survives

from durable_core.cli.app import run

#: What a script is given; where it is killed.
ALONE = {
    "bf16": ("--mixed-precision bf16", 28),
    "scaler-with-overflows": ("--overflow 13", 28),
    "scaler-with-overflows-accumulated": ("--overflow 13 --accumulate 2", 30),
    "window-short-at-the-end": ("--accumulate 3", 35),
    "dispatched": ("--dispatch", 28),
    "dispatched-stream": ("--dispatch --stream --stateful", 28),
    "evaluation-within-an-epoch": ("--evaluate-every 5", 29),
    "batch-norm": ("--norm", 28),
    "one-batch-an-epoch": ("--samples 4 --epochs 12", 8),
}


@pytest.mark.parametrize("name", ALONE)
def test_one_process(name: str, references: References, tmp_path: Path) -> None:
    arguments, batch = ALONE[name]
    survives(references, tmp_path, case(arguments, every=3), [("batch", batch), ("batch", 3)])


def test_overflows_do_skip_steps(references: References) -> None:
    """Or the cases above would prove nothing."""
    found = references.of(case("--overflow 13", every=3))[0]
    scales = [line["scale"] for line in found if line["what"] == "batch"]
    ratios = {later / earlier for earlier, later in pairwise(scales)}
    assert {0.5, 2.0} <= ratios


TOGETHER = {
    "dispatched": "--dispatch --samples 64",
    "dispatched-stream": "--dispatch --stream --stateful --samples 64",
    "uneven": "--even 0 --samples 46 --norm --evaluated 16",
    "wrapped-around": "--samples 42",
}


@pytest.mark.parametrize("name", TOGETHER)
def test_two_processes(name: str, references: References, tmp_path: Path) -> None:
    arguments = f"{TOGETHER[name]} --epochs 2"
    subject = case(arguments, every=3)
    survives(references, tmp_path, subject, [("batch", 8)], world=2, victim=1)
    samples = int(arguments.split("--samples ")[1].split()[0])
    ranks = references.of(subject, 2) if "uneven" in name else references.of(subject, 2)[:1]
    first = [line for of in ranks for line in of if line["what"] == "batch" and line["epoch"] == 0]
    assert sorted(sample for line in first for sample in line["all"]) == list(range(samples))


def test_a_script_that_says_when_a_step_is_done(references: References, tmp_path: Path) -> None:
    subject = case(script="several_steps", every=1)
    survives(references, tmp_path, subject, [("again", 8), ("batch", 2), ("again", 7), ("batch", 5)])


def test_a_script_that_counts_its_steps_itself(references: References, tmp_path: Path) -> None:
    """``max_steps`` ends the run: the script's own count begins anew with each process."""
    subject = case("--epochs 1000 --max-steps 37", every=4, max_steps=37)
    survives(references, tmp_path, subject, [("stepped", 15), ("stepped", 10)])
    steps = [line["step"] for line in references.of(subject)[0] if line["what"] == "stepped"]
    assert steps == list(range(1, 38))


def test_an_epoch_that_is_left_early(references: References, tmp_path: Path) -> None:
    """Killed after the first batch of the next one, which begins where the last one was left."""
    subject = case("--break-at 10", every=10)
    survives(references, tmp_path, subject, [("stepped", 11), ("batch", 3)])


BY_INDEX = {
    "window-first": (
        case("--window first", "manual_accumulation", every=1),
        "1 batches, and the one",
    ),
    "window-ends": (case("--window ends", "manual_accumulation", every=1), "within a step"),
    "break": (case("--break-at 10", every=3), "was left before its end"),
}


@pytest.mark.parametrize("name", BY_INDEX)
def test_a_script_that_counts_the_batches_of_an_epoch_is_told(name: str, tmp_path: Path) -> None:
    """Its own count begins anew in the middle of an epoch: no wrapper can mend that, so it says so."""
    subject, said = BY_INDEX[name]
    assert run_life(subject, tmp_path, "one", strikes={0: at_line("batch", 6)}) == [-9]
    assert run_life(subject, tmp_path, "two") == [0]
    assert said in output(tmp_path)


def test_a_schedule_that_nobody_prepared_is_told(tmp_path: Path) -> None:
    assert run_life(case("--unprepared --epochs 1 --samples 8"), tmp_path, "one") == [0]
    assert "schedule of optimizer 0 is in no checkpoint" in output(tmp_path)


def test_scripts_that_do_not_are_told_nothing(references: References, tmp_path: Path) -> None:
    subject = case("--window last --samples 64", "manual_accumulation", every=1)
    survives(references, tmp_path, subject, [("batch", 6), ("batch", 2)])
    said = output(tmp_path)
    assert "no longer the same run" not in said and "schedule" not in said


def test_audit_as_a_command_says_that_nothing_was_repeated(
    references: References, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    survives(references, tmp_path, case(), [("batch", 28)])
    assert run(["audit", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["repeated"], found["skipped"]) == (True, 0, 0)
    assert found["samples"] == 3 * 64
