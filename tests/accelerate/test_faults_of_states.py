"""Scripts that were started again and became another run by what they did around ``save_state`` and
``load_state``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from states import begin, end_all, run

EPOCHS = 3


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    end_all()


# --- the best state, after the last pass --------------------------------------------------------------------


def best(home: Path, *, stops: bool = False, ends: bool = True, named: bool = True) -> Any:
    """Train, then take the best state and make something of it. ``stops``: killed before that."""
    training = begin(home)
    for _ in range(EPOCHS):
        training.epoch()
        training.accelerator.save_state()
    if stops:
        training.stop()
        return None
    training.accelerator.load_state(home / "checkpoints" / "checkpoint_0" if named else None)
    place = training.accelerator.save_state()
    if ends:
        training.accelerator.end_training()
    else:
        training.stop()
    return training.everything(), training.counts.epochs, place.name


@pytest.mark.parametrize("named", [True, False], ids=["named", "the newest"])
@pytest.mark.parametrize("ends", [True, False], ids=["ended", "killed at its end"])
def test_a_script_started_again_gets_the_state_it_asks_for_at_its_end(
    tmp_path: Path, ends: bool, named: bool
) -> None:
    expected = best(tmp_path / "whole", named=named)
    home = tmp_path / "parts"
    best(home, stops=True)
    for end in (ends, True, True):  # the last ones are of a run that has succeeded
        found = best(home, ends=end, named=named)
        assert found[:2] == expected[:2]
    reader = run(home)
    assert reader.newest_usable().step == EPOCHS * 5 and reader.state.generation <= 4


def test_what_was_put_in_place_to_be_read_is_taken_back_where_training_goes_on(tmp_path: Path) -> None:
    whole = begin(tmp_path / "whole")
    losses = [whole.epoch() for _ in range(EPOCHS + 1)]
    best(tmp_path, stops=True)
    again = begin(tmp_path)
    for _ in range(EPOCHS):
        assert again.epoch() == []
        again.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
        assert again.counts.epochs == 1
    assert again.epoch() == losses[-1]
    assert again.weights() == whole.weights()
