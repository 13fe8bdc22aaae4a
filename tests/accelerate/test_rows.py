"""Every way in which Accelerate's documented recipe loses a run after SIGKILL: made durable, it is one run.

Sample ids, augmented inputs, activations behind dropout, losses, learning rates and final weights of every
life equal those of one uninterrupted run, and that is the same for all numbers of workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate_lives import SCRIPTS, Case, Kill, References, at_line, case, lines, run_life, sound, survives
from accelerate_lives import trained as of_training

from tests.launch.torchrun_runs import cleaned
from tests.lives import check_stretches, life

MID_EPOCH: list[Kill] = [("batch", 28)]
#: How the training loader is made, in the words of the script's flags.
LOADERS = {
    "plain": "",
    "stateful": "--stateful",
    "seedable": "--seedable",
    "seedable-set_epoch": "--seedable --set-epoch",
    "seedable-set_epoch-stateful": "--seedable --set-epoch --stateful",
}
CELLS = [
    (loader, workers, accumulate)
    for loader in LOADERS
    for workers, accumulate in ((0, 1), (0, 2), (2, 1), (2, 2))
    if loader in ("plain", "stateful") or workers == 2 * (accumulate - 1)
]


@pytest.mark.parametrize(("loader", "workers", "accumulate"), CELLS)
def test_a_script_that_never_checkpoints(
    loader: str, workers: int, accumulate: int, references: References, tmp_path: Path
) -> None:
    subject = case(f"--accumulate {accumulate} --workers {workers} {LOADERS[loader]}")
    control = case(f"--accumulate {accumulate} {LOADERS[loader]}")
    if "stateful" in loader and workers:  # torchdata's draws from the streams when it is made
        control = subject
    codes = survives(references, tmp_path, subject, [("batch", 28 + accumulate)], control=control)
    assert codes == [[-9], [0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_knows_its_place(workers: int, references: References, tmp_path: Path) -> None:
    subject = case(f"--stream --stateful --workers {workers}")
    survives(references, tmp_path, subject, [("batch", 28), ("batch", 9)])


def test_three_restarts_in_a_row(references: References, tmp_path: Path) -> None:
    """One of them within an evaluation's epoch, one before anything new was saved."""
    kills = [("batch", 14), ("batch", 2), ("epoch", 2)]
    assert survives(references, tmp_path, case(), kills) == [[-9]] * 3 + [[0]]


def test_another_seed_on_the_restart_changes_nothing(references: References, tmp_path: Path) -> None:
    survives(references, tmp_path, case(), MID_EPOCH, later=("--seed", "99"))


@pytest.mark.parametrize("kind", ["epoch", "plateau"])
def test_schedules_of_the_epoch(kind: str, references: References, tmp_path: Path) -> None:
    """Scripts step them once more in the bodies of epochs that are over."""
    subject = case(f"--scheduler {kind} --epochs 4")
    survives(references, tmp_path, subject, [("batch", 30), ("epoch", 2)])
    rates = {line["lr"] for line in references.of(subject)[0] if line["what"] == "batch"}
    assert len(rates) >= 3


def test_every_batch_of_an_epoch_can_be_the_last(references: References, tmp_path: Path) -> None:
    """A chain of lives, each killed in the batch after the one that it resumed at."""
    subject = case("--epochs 2 --samples 24 --scheduler epoch", every=1)
    survives(references, tmp_path, subject, [("batch", 2)] * 11)


@pytest.mark.parametrize("window", ["last", "counted"])
def test_accumulation_by_hand(window: str, references: References, tmp_path: Path) -> None:
    """60 samples in batches of 4: the window at an epoch's end is complete in the next one."""
    subject = case(f"--window {window}", "manual_accumulation", every=1)
    survives(references, tmp_path, subject, [("batch", 8), ("batch", 2), ("batch", 7), ("batch", 3)])


def test_two_networks(references: References, tmp_path: Path) -> None:
    survives(references, tmp_path, case(script="two_networks", every=3), [("batch", 12), ("stepped", 5)])


def test_gradients_summed_up_over_the_steps_of_another_optimizer(
    references: References, tmp_path: Path
) -> None:
    """Between two steps of the one that waits there is no instant without gradients: they are saved too."""
    subject = case("--generator-every 3", "two_networks", every=1)
    survives(references, tmp_path, subject, [("batch", 12), ("batch", 2), ("batch", 2), ("batch", 3)])


# --- several processes --------------------------------------------------------------------------------

TWO = "--samples 96 --epochs 2 --norm"


@pytest.mark.parametrize(
    ("flags", "victim"),
    [("", 0), ("--workers 2 --stateful", 1), ("--seedable --set-epoch --accumulate 2", 0)],
)
def test_sigkill_of_one_of_two(flags: str, victim: int, references: References, tmp_path: Path) -> None:
    subject = case(f"{TWO} {flags}")
    codes = survives(references, tmp_path, subject, [("batch", 18)], world=2, victim=victim)
    assert codes[0][victim] == -9
    ranks = [[line["ids"] for line in of if line["what"] == "batch"] for of in references.of(subject, 2)]
    assert sorted(sample for rank in ranks for batch in rank[:12] for sample in batch) == list(range(96))


def test_a_stream_shared_by_two(references: References, tmp_path: Path) -> None:
    """Three tries of the same: plain Accelerate gives another answer each time."""
    subject = case("--stream --stateful --samples 64 --epochs 2")
    survives(references, tmp_path, subject, [("batch", 7), ("batch", 3), ("batch", 4)], world=2)


def test_a_launcher_restarts_the_ranks(references: References, tmp_path: Path) -> None:
    """Nobody starts anything by hand. With our rendezvous: torchrun's own may give the new ranks addresses of
    those that died."""
    subject, flag = case(TWO), tmp_path / "killed"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "durable"]
    launcher += ["--rdzv-endpoint", "localhost:0", "--nproc-per-node", "2", "--max-restarts", "1"]
    script = ["-m", "accelerate_durable", "--", str(SCRIPTS / "never_checkpoints.py")]
    script += ["--log", str(tmp_path / "log"), "--weights", str(tmp_path / "weights"), *subject.arguments]
    told = {"ACCELERATE_DURABLE_ROOT": str(tmp_path / "run"), "TRAINING_KILL": f"1:batch:18:{flag}"}
    with cleaned(tmp_path):
        done = subprocess.run(
            [*launcher, *script],
            env={**os.environ, **subject.environ, **told, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=240, start_new_session=True,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert flag.exists()
    for rank, expected in enumerate(references.of(subject, 2)):
        found = lines(tmp_path, "log", rank)
        second = next(n for n, line in enumerate(found) if line["what"] == "begun" and n)
        check_stretches(expected, [of_training(found[:second]), of_training(found[second:])])
    sound(tmp_path)


# --- what the comparison can see ----------------------------------------------------------------------


def plain_life(subject: Case, home: Path, log: str, *more: str, strike: object = None) -> int:
    """The same script as ``python SCRIPT``: plain Accelerate."""
    import runpy

    import training_parts

    def action() -> None:
        training_parts.strike = strike
        sys.argv = [subject.script, "--log", str(home / log), "--weights", str(home / f"{log}.weights")]
        sys.argv += [*subject.arguments, *more]
        runpy.run_path(str(SCRIPTS / f"{subject.script}.py"), run_name="__main__")

    return life(home, action)


def test_the_documented_recipe_alone_is_not_the_same_run(tmp_path: Path) -> None:
    """The negative control: with plain Accelerate the comparison above fails."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole, killed = (
        case(f"--output-dir {tmp_path / name} --checkpointing-steps 5", "documented_style")
        for name in ("whole", "killed")
    )
    assert plain_life(whole, tmp_path, "whole.log") == 0
    assert plain_life(killed, tmp_path, "one", strike=at_line("batch", 28)) == -9
    assert plain_life(killed, tmp_path, "two", "--resume-from-checkpoint", "latest") == 0
    lives = [lines(tmp_path, name) for name in ("one", "two")]
    ids = {sample for found in lives for line in found if line["what"] == "batch" for sample in line["ids"]}
    assert len(ids) == 64 and lives[1][-1]["what"] == "end"
    with pytest.raises(AssertionError, match="life 1 is not the same run"):
        check_stretches(lines(tmp_path, "whole.log"), lives)


def test_a_run_that_is_not_resumed_is_another(references: References, tmp_path: Path) -> None:
    """And so is one that begins anew: the comparison asks for the stretch that comes next."""
    subject = case()
    run_life(subject, tmp_path, "one", strikes={0: at_line("batch", 28)})
    (tmp_path / "run").rename(tmp_path / "lost")
    run_life(subject, tmp_path, "two", more=("--seed", "4"))
    with pytest.raises(AssertionError, match="life 1 is not the same run"):
        check_stretches(references.of(subject)[0], [lines(tmp_path, "one"), lines(tmp_path, "two")])
