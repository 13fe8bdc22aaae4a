"""``save_state`` and ``load_state`` of two processes: all of them come back when the directory is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerate_lives import group
from states import begin, directories, named, pinned, run

from accelerate_durable import making
from tests.lives import kill_self

EPOCHS = 3


def be(home: Path, rank: int, log: str, *, killed: bool = False, each_node: bool = False) -> None:
    training = begin(home, limit=2, each_node=each_node)
    accelerator = training.accelerator
    assert accelerator.num_processes == 2

    def hook(models: Any, weights: Any, output_dir: str) -> None:
        (Path(output_dir) / f"rank_{rank}").write_text(str(len(weights)))

    accelerator.register_save_state_pre_hook(hook)
    for epoch in range(EPOCHS):
        training.epoch()
        if killed and epoch == 1 and rank == 0:
            making.complete = lambda *_: kill_self()  # type: ignore[assignment]
        place = accelerator.save_state()
        assert {entry.name for entry in place.iterdir()} == {"rank_0", "rank_1", "durable.json"}
    end = training.everything()
    if log == "visited":
        accelerator.load_state(home / "checkpoints" / "checkpoint_1")
        assert training.everything() != end
        training.epoch()
        assert training.everything() == end
    accelerator.end_training()
    (home / f"{log}.{rank}").write_text(repr(end))


@pytest.mark.parametrize("each_node", [False, True], ids=["the first", "of each node"])
def test_a_kill_before_the_directory_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each_node: bool
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    one, other = tmp_path / "whole", tmp_path / "parts"
    for home in (one, other):
        home.mkdir()
    assert group(one, 2, lambda rank: be(one, rank, "visited", each_node=each_node)) == [0, 0], output(one)
    codes = group(other, 2, lambda rank: be(other, rank, "dead", killed=True, each_node=each_node))
    assert codes[0] == -9 and codes[1] != 0
    assert group(other, 2, lambda rank: be(other, rank, "end", each_node=each_node)) == [0, 0], output(other)
    assert [(other / f"end.{rank}").read_text() for rank in range(2)] == [
        (one / f"visited.{rank}").read_text() for rank in range(2)
    ]
    assert directories(other) == ["checkpoint_1", "checkpoint_2"]
    assert pinned(other) == named(other / "checkpoints")
    assert run(other).newest_usable().step == run(one).newest_usable().step


def output(home: Path) -> str:
    return (home / "output").read_text()
