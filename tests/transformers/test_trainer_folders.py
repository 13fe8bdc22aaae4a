"""The newest of a Trainer's own directories that is complete: one that a kill left short is never picked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from trainer_subject import Case, References, digest, end_of, lines
from transformers import Trainer

from accelerate_durable.transformers import folders, last_checkpoint
from durable_core.errors import UsageError
from tests.lives import life

SAVES = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 3}
CASE = Case(epochs=1, args=SAVES)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``output_dir`` of a run: checkpoint-4, -8 and -12."""
    home = tmp_path_factory.mktemp("written")
    assert life(home, lambda: CASE.run(home)) == 0, (home / "output").read_text()
    return home / "out"


@pytest.fixture
def out(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "out"))


def cut(name: str) -> Callable[[Path], None]:
    def act(place: Path) -> None:
        data = (place / name).read_bytes()
        (place / name).write_bytes(data[: len(data) // 2])

    return act


def lose(name: str) -> Callable[[Path], None]:
    return lambda place: (place / name).unlink()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "no optimizer": lose("optimizer.pt"),
    "no scheduler": lose("scheduler.pt"),
    "no random streams": lose("rng_state.pth"),
    "no trainer state": lose("trainer_state.json"),
    "no weights": lose("model.safetensors"),
    "half an optimizer": cut("optimizer.pt"),
    "half the random streams": cut("rng_state.pth"),
    "half the weights": cut("model.safetensors"),
    "half a trainer state": cut("trainer_state.json"),
    "unfinished": lambda place: (place / "checkpoint-is-incomplete.txt").touch(),
    "nothing": lambda place: (shutil.rmtree(place), place.mkdir())[1],
    "empty weights": lambda place: (place / "model.safetensors").write_bytes(b""),
}


def test_the_newest_by_number(out: Path) -> None:
    (out / "checkpoint-900").touch()
    (out / "checkpoint-best").mkdir()
    shutil.copytree(out / "checkpoint-8", out / "checkpoint-100")
    assert last_checkpoint(out) == str(out / "checkpoint-100")


@pytest.mark.parametrize("damage", DAMAGE)
def test_one_that_is_not_whole_is_passed_over(out: Path, damage: str) -> None:
    assert last_checkpoint(out) == str(out / "checkpoint-12")
    DAMAGE[damage](out / "checkpoint-12")
    assert last_checkpoint(out) == str(out / "checkpoint-8")


def test_what_the_arguments_imply(out: Path) -> None:
    whole = out / "checkpoint-12"
    assert folders.lacking(whole, folders.Wanted(scaler=True)) == ("scaler.pt is missing",)
    two = folders.lacking(whole, folders.Wanted(processes=2))
    assert two == ("rng_state_0.pth is missing", "rng_state_1.pth is missing")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (whole / name).unlink()
    assert folders.lacking(whole, folders.Wanted(only_model=True)) == ()


def test_adapters_and_shards(out: Path) -> None:
    whole = out / "checkpoint-12"
    (whole / "model.safetensors").rename(whole / "part.safetensors")
    index = whole / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "part.safetensors", "b": "gone.safetensors"}}))
    assert folders.lacking(whole, folders.Wanted()) == ("gone.safetensors is missing",)
    index.write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
    assert folders.lacking(whole, folders.Wanted()) == ()
    index.unlink()
    (whole / "second").mkdir()
    (whole / "part.safetensors").rename(whole / "second" / "adapter_model.safetensors")
    assert folders.lacking(whole, folders.Wanted()) == ()


def test_there_is_none(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "missing") is None


# --- resume_from_checkpoint beside a run ---------------------------------------------------------


def test_true_with_an_empty_directory_starts_anew(references: References, tmp_path: Path) -> None:
    """The Trainer alone: ValueError, so that the first start and a restart need different scripts."""
    expected, end = references.of(CASE)
    case = Case(epochs=1, args=SAVES, resume=True)
    assert life(tmp_path, lambda: case.run(tmp_path)) == 0, (tmp_path / "output").read_text()
    assert (lines(tmp_path), end_of(tmp_path)) == (expected, end)


def test_a_run_goes_on_with_its_own_state_whatever_is_asked(references: References, tmp_path: Path) -> None:
    """The Trainer alone picks the directory without optimizer.pt, and trains on with a fresh one."""
    expected, end = references.of(CASE)
    assert life(tmp_path, lambda: CASE.run(tmp_path, ("step", 10))) == -9
    damaged = tmp_path / "out" / "checkpoint-8"
    (damaged / "optimizer.pt").unlink()
    case = Case(epochs=1, args=SAVES, resume=str(damaged))
    assert life(tmp_path, lambda: case.run(tmp_path)) == 0, (tmp_path / "output").read_text()
    assert "goes on with its own newest checkpoint" in (tmp_path / "output").read_text()
    second = lines(tmp_path)[-8:]
    assert second == expected[-len(second) :]
    assert end_of(tmp_path) == end


def test_a_fresh_run_may_begin_with_a_directory_of_the_trainers(out: Path, tmp_path: Path) -> None:
    case = Case(epochs=1, args=SAVES, resume=str(out / "checkpoint-8"))
    assert life(tmp_path, lambda: case.run(tmp_path)) == 0, (tmp_path / "output").read_text()
    steps = [line["step"] for line in lines(tmp_path) if line["what"] == "step"]
    assert steps == [9, 10, 11, 12]


def test_a_fresh_run_does_not_begin_with_half_a_directory(out: Path, tmp_path: Path) -> None:
    (out / "checkpoint-8" / "optimizer.pt").unlink()
    trainer, durable = CASE.plain(tmp_path)
    durable.attach(trainer)
    with pytest.raises(UsageError, match=r"no complete checkpoint: optimizer.pt is missing"):
        trainer.train(resume_from_checkpoint=str(out / "checkpoint-8"))
    assert not (tmp_path / "run").exists()


def test_plain_trainers_take_what_was_found(out: Path, tmp_path: Path) -> None:
    """``last_checkpoint`` is of use without a durable run, too."""
    DAMAGE["no optimizer"](out / "checkpoint-12")
    trainer, _ = CASE.plain(tmp_path)
    before = digest(*trainer.model.parameters())
    assert isinstance(trainer, Trainer)
    trainer.train(resume_from_checkpoint=last_checkpoint(out))
    assert trainer.state.global_step == 12
    assert digest(*trainer.model.parameters()) != before
