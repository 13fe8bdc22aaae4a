"""STATE-01: train N, capture, continue M; against a restore and M more: every step equal in every bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import state_subject
import torch

from durable_core.state.capture import restore


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


VARIANTS = [(optimizer, "plateau") for optimizer in state_subject.OPTIMIZERS] + [
    ("adam", scheduler) for scheduler in state_subject.SCHEDULERS if scheduler != "plateau"
]


@pytest.mark.parametrize(("optimizer", "scheduler"), VARIANTS)
def test_a_restore_into_fresh_objects_continues_bit_for_bit(
    optimizer: str, scheduler: str, tmp_path: Path
) -> None:
    objects = state_subject.build(optimizer, scheduler, seed=1)
    state_subject.train(objects, 7)
    state_subject.save(objects, tmp_path / "c")
    uninterrupted = state_subject.train(objects, 6)

    for attempt in range(2):  # several restores of one checkpoint are the same run (VERIF-02)
        fresh = state_subject.build(optimizer, scheduler, seed=100 + attempt)
        state_subject.train(fresh, attempt)  # also over state that is not fresh at all
        restore(fresh, state_subject.load(tmp_path / "c"))
        assert state_subject.train(fresh, 6) == uninterrupted


def test_a_restore_in_a_fresh_process_continues_bit_for_bit(tmp_path: Path) -> None:
    objects = state_subject.build("adam", "plateau", seed=1)
    state_subject.train(objects, 7)
    state_subject.save(objects, tmp_path / "c")
    uninterrupted = state_subject.train(objects, 6)
    command = [sys.executable, state_subject.__file__, "adam", "plateau", str(tmp_path / "c"), "5", "6"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:6] == uninterrupted


@pytest.mark.parametrize("left_out", ["optimizer", "scheduler", "scaler", "ema", "noise", "augment", "rng"])
def test_each_object_matters(left_out: str, tmp_path: Path) -> None:
    """The test above can fail: with one object not captured, the continuation differs."""
    objects = state_subject.build("adam", "plateau", seed=1)
    state_subject.train(objects, 7)
    state_subject.save({name: obj for name, obj in objects.items() if name != left_out}, tmp_path / "c")
    uninterrupted = state_subject.train(objects, 6)
    fresh = state_subject.build("adam", "plateau", seed=2)
    given = {name: obj for name, obj in fresh.items() if name != left_out}
    restore(given, state_subject.load(tmp_path / "c"))
    assert state_subject.train(fresh, 6) != uninterrupted


def test_capturing_changes_nothing(tmp_path: Path) -> None:
    expected = state_subject.train(state_subject.build("adam", "plateau", seed=1), 6)
    objects = state_subject.build("adam", "plateau", seed=1)
    seen = []
    for step in range(6):
        state_subject.save(objects, tmp_path / str(step))
        seen += state_subject.train(objects, 1)
    assert seen == expected
