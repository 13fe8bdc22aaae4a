"""What Accelerate's own tests of its checkpoints ask, in our words (``tools/upstream.py`` runs theirs)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from states import Training, begin, directories, end_all

from accelerate_durable import Accelerator


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    end_all()


def drawing(training: Training, epochs: int) -> list[float]:
    """Trained; each epoch followed by a number from the script's own stream."""
    drawn = []
    for _ in range(epochs):
        training.epoch()
        drawn.append(random.random())
    return drawn


@pytest.mark.parametrize("naming", [True, False], ids=["numbered", "named"])
def test_parts_that_are_saved_and_loaded_make_the_whole(tmp_path: Path, naming: bool) -> None:
    """Saved at the start and trained; loaded elsewhere, trained, saved, loaded once more, trained on."""
    initial, later = ("checkpoints/checkpoint_0", "checkpoints/checkpoint_1") if naming else ("a", "b")
    whole = begin(tmp_path, "whole", naming=naming)
    whole.accelerator.save_state(None if naming else tmp_path / initial)
    at, drawn = whole.everything(), drawing(whole, 3)
    parts = begin(tmp_path, "parts", naming=naming)
    parts.accelerator.load_state(tmp_path / initial)
    assert parts.everything() == at
    found = drawing(parts, 2)
    parts.accelerator.save_state(None if naming else tmp_path / later)
    parts.accelerator.load_state(tmp_path / later)
    assert found + drawing(parts, 1) == drawn
    assert parts.everything() == whole.everything()


def test_the_newest_is_found_by_itself_and_schedulers_are_in_it(tmp_path: Path) -> None:
    training = begin(tmp_path)
    training.accelerator.save_state()
    drawing(training, 2)
    training.accelerator.save_state()
    at = training.everything()
    drawing(training, 1)
    assert training.everything() != at
    training.accelerator.load_state()
    assert training.everything() == at
    training.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
    assert training.scheduler.get_last_lr() == [0.01]


def test_a_model_alone_is_saved_again_and_again_within_the_limit(tmp_path: Path) -> None:
    training = begin(tmp_path / "made_by", limit=2)  # what it prepares is not used
    project = training.accelerator.project_configuration
    project.set_directories(str(tmp_path))
    accelerator = Accelerator(project_config=project, durable=tmp_path / "alone", cpu=True)
    accelerator.prepare(torch.nn.Linear(2, 2))
    for _ in range(11):
        accelerator.save_state()
    assert directories(tmp_path) == ["checkpoint_9", "checkpoint_10"]
    accelerator.durable.reset()


@pytest.mark.parametrize("hooked", [True, False], ids=["with hooks", "without"])
def test_weights_that_were_overwritten_come_back(tmp_path: Path, hooked: bool) -> None:
    training = begin(tmp_path, naming=False)
    model: Any = training.model
    before = training.weights()

    def note(models: list[Any], weights: list[Any], output_dir: str) -> None:
        (Path(output_dir) / "data.json").write_text(json.dumps({"name": type(models[0]).__name__}))

    def take(models: list[Any], input_dir: str) -> None:
        models[0].name = json.loads((Path(input_dir) / "data.json").read_text())["name"]

    if hooked:
        training.accelerator.register_save_state_pre_hook(note)
        training.accelerator.register_load_state_pre_hook(take)
    (tmp_path / "out").mkdir()
    training.accelerator.save_state(str(tmp_path / "out"))
    model.name = "another"
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    training.accelerator.load_state(str(tmp_path / "out"))
    assert training.weights() == before
    assert model.name == ("Sequential" if hooked else "another")


def test_a_script_that_resumes_by_the_name_of_its_directory_finds_what_it_wrote_down(tmp_path: Path) -> None:
    """As in Accelerate's example: a directory for each epoch, with what was true then beside it."""

    def facts(training: Training) -> dict[str, Any]:
        training.model.eval()
        with torch.no_grad():
            value = float(training.model(torch.ones(1, 3)))
        training.model.train()
        return {"value": value, "lr": training.optimizer.param_groups[0]["lr"]}

    training = begin(tmp_path, naming=False)
    for epoch in range(2):
        training.epoch()
        training.accelerator.save_state(tmp_path / f"epoch_{epoch}")
        (tmp_path / f"epoch_{epoch}.json").write_text(json.dumps(facts(training)))
    training.stop()
    again = begin(tmp_path, naming=False)
    again.accelerator.load_state(str(tmp_path / "epoch_1"))
    assert facts(again) == json.loads((tmp_path / "epoch_1.json").read_text())
    assert [len(again.epoch()) > 0 for _ in range(2, 4)] == [True, True]
