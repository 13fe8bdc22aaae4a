"""``save_state``: what is there when it returns, what a kill leaves, and what is let go of when."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from states import BATCHES, begin, directories, end_all, named, pinned, pointer, run

from accelerate_durable import making, saving
from accelerate_durable.folders import POINTER, FolderError
from durable_core.errors import TierError, UsageError
from durable_core.session.plain import DurableSession
from tests.lives import kill_self, life


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    end_all()


# --- what it means -------------------------------------------------------------------------------------


def test_when_it_returns_the_checkpoint_is_durable_pinned_and_named(tmp_path: Path) -> None:
    training = begin(tmp_path)
    training.epoch()
    place = training.accelerator.save_state()
    assert place == tmp_path / "checkpoints" / "checkpoint_0"
    told, reader = pointer(place), run(tmp_path)
    head = reader.newest_usable()
    assert (told["c"], told["step"], told["manifest"]) == (head.c, BATCHES, head.manifest_digest)
    assert (told["run"], told["root"]) == (reader.state.run_id, str(tmp_path / "run"))
    assert (told["epoch"], told["batch"], told["format"]) == (1, 0, 1)
    assert pinned(tmp_path) == {head.c}


def test_a_directory_of_the_script_s_own_is_made_as_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    training = begin(tmp_path, naming=False)
    training.epoch()
    assert training.accelerator.save_state("out/epoch_0", safe_serialization=False) == Path("out/epoch_0")
    assert pointer(tmp_path / "out" / "epoch_0")["step"] == BATCHES


def test_in_one_step_one_checkpoint_has_all_its_names(tmp_path: Path) -> None:
    training = begin(tmp_path, naming=False)
    training.epoch()
    for name in ("a", "b", "a"):
        training.accelerator.save_state(tmp_path / "out" / name)
    assert len(named(tmp_path / "out")) == 1
    assert [info.step for info in run(tmp_path).committed()] == [0, 2, BATCHES]


def test_a_directory_that_names_another_checkpoint_now_lets_go_of_the_older(tmp_path: Path) -> None:
    training = begin(tmp_path, naming=False)
    for _ in range(3):
        training.epoch()
        training.accelerator.save_state(tmp_path / "out" / "last")
        assert pinned(tmp_path) == named(tmp_path / "out")


def test_what_the_script_removes_itself_is_let_go_of(tmp_path: Path) -> None:
    training = begin(tmp_path, naming=False)
    for epoch in range(4):
        training.epoch()
        if epoch > 1:
            shutil.rmtree(tmp_path / "out" / f"epoch_{epoch - 2}")
        training.accelerator.save_state(tmp_path / "out" / f"epoch_{epoch}")
    assert pinned(tmp_path) == named(tmp_path / "out")
    assert len(pinned(tmp_path)) == 2


def test_without_any_name_it_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="naming is off"):
        begin(tmp_path, naming=False).accelerator.save_state()
    training = begin(tmp_path / "b")
    training.accelerator.project_configuration.project_dir = None
    with pytest.raises(UsageError, match="without a project directory"):
        training.accelerator.save_state()


# --- automatic naming and total_limit --------------------------------------------------------------------


def test_the_oldest_go_when_the_newest_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = begin(tmp_path, limit=1)
    seen: list[tuple[str, list[str]]] = []
    for owner, name in ((making, "complete"), (making, "retire"), (DurableSession, "unpin")):
        spy(monkeypatch, owner, name, lambda name=name: seen.append((name, directories(tmp_path))))
    for _ in range(2):
        training.epoch()
        training.accelerator.save_state()
    assert seen[2:] == [
        ("complete", ["checkpoint_0", ".checkpoint_1.1.partial"]),
        ("retire", ["checkpoint_0", "checkpoint_1"]),
        ("unpin", ["checkpoint_1", ".checkpoint_0.retired"]),
    ]
    assert directories(tmp_path) == ["checkpoint_1"]
    assert pinned(tmp_path) == named(tmp_path / "checkpoints")


def spy(patch: pytest.MonkeyPatch, owner: Any, name: str, before: Callable[[], None]) -> None:
    real = getattr(owner, name)

    def spied(*args: Any, **kwargs: Any) -> Any:
        before()
        return real(*args, **kwargs)

    patch.setattr(owner, name, spied)


def test_naming_goes_on_in_every_process_and_after_every_load(tmp_path: Path) -> None:
    for number in range(3):
        training = begin(tmp_path)
        training.accelerator.load_state() if number else None
        training.epoch()
        assert training.accelerator.save_state().name == f"checkpoint_{number}"
        training.stop()
    assert directories(tmp_path) == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]


def test_stray_files_are_nobody_s_business(tmp_path: Path) -> None:
    parent = tmp_path / "checkpoints"
    (parent / "notes").mkdir(parents=True)
    (parent / ".DS_Store").write_text("")
    training = begin(tmp_path, limit=1)
    for _ in range(2):
        training.epoch()
        training.accelerator.save_state()
    assert directories(tmp_path) == ["notes", ".DS_Store", "checkpoint_1"]


# --- kills ------------------------------------------------------------------------------------------------

#: The instants within the third save_state, in their order: the first time that this is called.
EFFECTS: dict[str, tuple[Any, str]] = {
    "before the commit": (DurableSession, "save"),
    "committed": (making, "begin"),
    "partial": (DurableSession, "pin"),
    "pinned": (making, "complete"),
    "in place": (making, "retire"),
    "old one hidden": (DurableSession, "unpin"),
    "unpinned": (making, "sweep"),
    "done": (saving.Since, "mark"),
}
EPOCHS = 5


def be(home: Path, out: Path, patched: Callable[[int], None] = lambda epoch: None) -> None:
    training = begin(home, limit=2)
    for epoch in range(EPOCHS):
        training.epoch()
        patched(epoch)
        training.accelerator.save_state()
    training.accelerator.end_training()
    out.write_text(repr(training.everything()))


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("unkilled")
    assert life(home, lambda: be(home, home / "end")) == 0
    return (home / "end").read_text()


@pytest.mark.parametrize("instant", EFFECTS)
def test_killed_within_it_at_any_instant(tmp_path: Path, unkilled: str, instant: str) -> None:
    def strike(epoch: int) -> None:
        owner, name = EFFECTS[instant]
        if epoch == 2:
            spy(pytest.MonkeyPatch(), owner, name, kill_self)

    assert life(tmp_path, lambda: be(tmp_path, tmp_path / "end", strike)) == -9
    for place in (tmp_path / "checkpoints").glob("checkpoint_*"):  # what is in sight is whole, and pinned
        assert pointer(place)["c"] in pinned(tmp_path)
    assert len(list((tmp_path / "checkpoints").glob("checkpoint_*"))) >= 2
    assert life(tmp_path, lambda: be(tmp_path, tmp_path / "end")) == 0
    assert (tmp_path / "end").read_text() == unkilled
    assert directories(tmp_path) == ["checkpoint_3", "checkpoint_4"]
    assert pinned(tmp_path) == named(tmp_path / "checkpoints")


def test_while_passes_are_empty_nothing_is_saved_and_a_missing_directory_is_made(tmp_path: Path) -> None:
    training = begin(tmp_path, naming=False)
    for epoch in range(2):
        training.epoch()
        training.accelerator.save_state(tmp_path / "out" / f"epoch_{epoch}")
    weights, newest = training.weights(), pointer(tmp_path / "out" / "epoch_1")
    training.stop()
    shutil.rmtree(tmp_path / "out" / "epoch_1")
    again = begin(tmp_path, naming=False)
    for epoch in range(2):
        assert again.epoch() == []
        assert again.accelerator.save_state(tmp_path / "out" / f"epoch_{epoch}").is_dir()
    assert pointer(tmp_path / "out" / "epoch_1") == newest
    assert pointer(tmp_path / "out" / "epoch_0")["step"] == BATCHES  # as it was
    again.epoch()
    again.accelerator.save_state(tmp_path / "out" / "epoch_2")
    assert pointer(tmp_path / "out" / "epoch_2")["step"] == 3 * BATCHES
    assert again.weights() != weights


# --- within a step, and after it ------------------------------------------------------------------


def told(action: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(warning.message) for warning in caught if "save_state" in str(warning.message)]


def test_in_the_middle_of_an_accumulation_it_waits_for_the_step(tmp_path: Path) -> None:
    training = begin(tmp_path, accumulate=2)
    place = tmp_path / "checkpoints" / "checkpoint_0"
    there = []

    def train() -> None:
        for number, _ in enumerate(training.batches()):
            if number in (0, 2):
                training.accelerator.save_state()
            there.append(place.exists())

    sentences = told(train)
    assert there == [False, False, True, True, True]
    found = pointer(place)
    assert (found["step"], found["epoch"], found["batch"]) == (1, 0, 1)  # the last two are of the call
    assert len(sentences) == 1 and "when the step is complete" in sentences[0]


def test_one_that_waits_takes_effect_before_the_run_ends(tmp_path: Path) -> None:
    training = begin(tmp_path, accumulate=2)
    batches = training.batches()
    next(batches)
    training.accelerator.save_state()
    next(batches)
    training.accelerator.end_training()
    assert pointer(tmp_path / "checkpoints" / "checkpoint_0")["step"] == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: t.scheduler.step(), "scheduler 0"),
        (lambda t: setattr(t.counts, "epochs", 9), "registered object 0"),
        (lambda t: torch.rand(1), "random streams"),
        (lambda t: t.model(torch.ones(1, 3)) if not t.model.eval() else None, ""),
        (lambda t: None, ""),
    ],
    ids=["scheduler", "registered", "random", "evaluation", "nothing"],
)
def test_what_changes_after_it_is_told_once(tmp_path: Path, change: Callable[[Any], Any], what: str) -> None:
    training = begin(tmp_path)

    def train() -> None:
        for _ in range(3):
            training.epoch()
            training.accelerator.save_state()
            change(training)
            training.model.train()

    sentences = told(train)
    assert len(sentences) == (1 if what else 0)
    assert what in "".join(sentences)


def test_a_second_save_of_a_step_tells_what_the_first_one_has_not(tmp_path: Path) -> None:
    training = begin(tmp_path)
    training.epoch()
    training.accelerator.save_state()
    training.scheduler.step()
    assert "scheduler 0" in "".join(told(training.accelerator.save_state))


# --- hooks and disks ----------------------------------------------------------------------------------------


def test_save_hooks_write_into_what_becomes_the_directory(tmp_path: Path) -> None:
    training = begin(tmp_path)
    seen: dict[str, Any] = {}

    def hook(models: list[torch.nn.Module], weights: list[dict[str, Any]], output_dir: str) -> None:
        seen.update(models=list(models), keys=list(weights[0]), output_dir=output_dir)
        (Path(output_dir) / "extra.txt").write_text("hook")
        weights.clear()
        models.clear()

    handle = training.accelerator.register_save_state_pre_hook(hook)
    training.epoch()
    place = training.accelerator.save_state()
    assert seen["models"] == [training.model] and seen["keys"] == list(training.model.state_dict())
    assert seen["output_dir"] != str(place) and not Path(seen["output_dir"]).exists()
    assert {entry.name for entry in place.iterdir()} == {"extra.txt", POINTER}
    handle.remove()
    assert {entry.name for entry in training.accelerator.save_state().iterdir()} == {POINTER}


def test_a_file_in_the_way_is_named_and_the_checkpoint_is_committed(tmp_path: Path) -> None:
    training = begin(tmp_path, naming=False)
    training.epoch()
    (tmp_path / "out").write_text("")
    with pytest.raises(TierError, match=r"cannot write .*/out"):
        training.accelerator.save_state(tmp_path / "out" / "a")
    assert run(tmp_path).newest_usable().step == BATCHES
