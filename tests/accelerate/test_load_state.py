"""``load_state``: a start, a restart of the same command, a visit to an old state, and what is refused."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from states import BATCHES, Training, begin, directories, end_all, named, pinned, pointer, run

from accelerate_durable.folders import POINTER, FolderError, NoSuchFolder
from durable_core.cli import upkeep
from durable_core.errors import FormatError, SpecMismatchError, UnknownVersionError
from tests.lives import kill_self, life

EPOCHS = 4
NOT_FROM = "training goes on from the run's newest checkpoint, and not from"


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    end_all()


def warned(action: Callable[[], Any]) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return "\n".join(str(warning.message) for warning in caught)


def uninterrupted(home: Path, epochs: int = EPOCHS) -> tuple[list[list[float]], Any]:
    training = begin(home)
    return [training.epoch() for _ in range(epochs)], training.everything()


def saved(home: Path, epochs: int = 2, **options: Any) -> Training:
    """Trained, with a directory after each epoch, and gone."""
    training = begin(home, **options)
    for _ in range(epochs):
        training.epoch()
        training.accelerator.save_state()
    training.stop()
    return training


# --- a process that starts ------------------------------------------------------------------------------


@pytest.mark.parametrize("named_one", [True, False], ids=["with a directory", "without"])
def test_a_script_that_resumes_goes_on_exactly(tmp_path: Path, named_one: bool) -> None:
    losses, end = uninterrupted(tmp_path / "whole")
    saved(tmp_path)
    again = begin(tmp_path)
    again.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_1" if named_one else None)
    assert again.counts.epochs == 2
    assert [again.epoch() for _ in range(again.counts.epochs, EPOCHS)] == losses[2:]
    assert again.everything() == end


def test_the_same_command_again_goes_on_at_the_newest_checkpoint(tmp_path: Path) -> None:
    """The directory that it names is older by then: it only says where the script's own count begins."""
    losses, end = uninterrupted(tmp_path / "whole")
    saved(tmp_path, 1)
    for kill in (True, False):
        again = begin(tmp_path)
        again.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
        found = []
        for epoch in range(1, EPOCHS):
            found.append(again.epoch())
            again.accelerator.save_state()
            if kill and epoch == 2:
                break
        again.stop()
    assert found == [[], [], losses[3]]
    assert again.everything() == end


def test_skipping_what_was_trained_is_not_needed_and_does_no_harm(tmp_path: Path) -> None:
    losses, end = uninterrupted(tmp_path / "whole", 2)
    training = begin(tmp_path)
    training.epoch()
    batches = training.batches()
    first = [float(next(batches)) for _ in range(2)]
    training.accelerator.save_state()
    training.stop()
    again = begin(tmp_path)
    again.accelerator.load_state()
    whole, again.loader = again.loader, again.accelerator.skip_first_batches(again.loader, 2)
    assert again.loader is whole
    assert first + again.epoch() == losses[1]
    assert again.everything() == end


def test_load_hooks_run_first_and_what_they_load_is_replaced_by_the_run_s(tmp_path: Path) -> None:
    training = saved(tmp_path)
    again = begin(tmp_path)
    seen: list[str] = []

    def hook(models: list[torch.nn.Module], input_dir: str) -> None:
        seen.append(input_dir)
        torch.nn.init.zeros_(models.pop()[0].weight)

    again.accelerator.register_load_state_pre_hook(hook)
    again.accelerator.load_state()
    again.accelerator.load_state(seen[0])  # nothing has been trained yet: it says the same again
    assert seen == [str(tmp_path / "checkpoints" / "checkpoint_1")] * 2
    assert again.weights() == training.weights()


def test_without_a_directory_broken_ones_are_passed_over_and_named(tmp_path: Path) -> None:
    training = saved(tmp_path, 4)
    parent = tmp_path / "checkpoints"
    (parent / "checkpoint_3" / POINTER).unlink()
    (parent / "checkpoint_2" / POINTER).write_text('{"format"')
    (parent / ".DS_Store").write_text("")
    again = begin(tmp_path)
    sentences = warned(again.accelerator.load_state)
    for number, why in ((3, "incomplete"), (2, "not JSON")):
        assert f"checkpoint_{number} is passed over" in sentences and why in sentences
    assert again.weights() == training.weights()  # the run's newest, all the same
    assert again.accelerator.save_state().exists()


def test_a_run_without_directories_goes_on_and_nothing_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFolder, match=r"no run at .*call save_state first"):
        begin(tmp_path).accelerator.load_state()
    training = begin(tmp_path)
    training.epoch()
    training.stop()
    again = begin(tmp_path)
    again.accelerator.load_state()
    assert again.durable.session is not None and again.durable.session.steps == 2  # the cadence's own


# --- directories that cannot serve ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda d: shutil.rmtree(d), NoSuchFolder, "is no directory"),
        (lambda d: (d / POINTER).unlink(), FolderError, "no save_state was completed"),
        (lambda d: (d / POINTER).write_text("{"), FormatError, "damaged"),
        (lambda d: edit(d, format=2), UnknownVersionError, "format 2"),
    ],
    ids=["missing", "incomplete", "truncated", "newer"],
)
@pytest.mark.parametrize("under_way", [False, True], ids=["at the start", "under way"])
def test_a_directory_that_cannot_serve_is_refused(
    tmp_path: Path, spoil: Callable[[Path], Any], kind: type[Exception], words: str, under_way: bool
) -> None:
    saved(tmp_path)
    spoil(tmp_path / "checkpoints" / "checkpoint_0")
    again = begin(tmp_path)
    if under_way:
        again.epoch(), again.epoch(), again.epoch()
    records = run(tmp_path).view.next_seq
    with pytest.raises(kind, match=words):
        again.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
    assert under_way or run(tmp_path).view.next_seq == records, "something was written"


def edit(directory: Path, **values: object) -> None:
    (directory / POINTER).write_text(json.dumps({**pointer(directory), **values}))


def test_what_accelerate_refuses_is_refused_alike(tmp_path: Path) -> None:
    training = saved(tmp_path)
    for _ in range(2):
        with pytest.raises(TypeError, match="Unsupported optimizer map location passed"):
            begin(tmp_path).accelerator.load_state(map_location="invalid")
    again = begin(tmp_path)
    again.accelerator.load_state(map_location="cpu")
    assert again.weights() == training.weights()


# --- a run that begins with what another one left -------------------------------------------------------


def test_a_checkpoint_of_another_run_begins_a_fresh_one_which_goes_on_exactly(tmp_path: Path) -> None:
    losses, end = uninterrupted(tmp_path / "whole")
    saved(tmp_path, root="first")
    place = tmp_path / "checkpoints" / "checkpoint_1"
    for part in (slice(2, 3), slice(3, 4)):
        again = begin(tmp_path, root="second", seed=99)
        again.accelerator.load_state(place)
        found = [again.epoch() for _ in range(2, part.stop)]
        assert found[-1:] == losses[part]
        again.accelerator.save_state()
        again.stop()
    assert again.everything() == end
    assert run(tmp_path, "first").state.run_id != run(tmp_path, "second").state.run_id


def test_a_directory_of_another_run_is_refused_on_one_with_a_history(tmp_path: Path) -> None:
    saved(tmp_path / "one")
    saved(tmp_path / "two")
    place = tmp_path / "one" / "checkpoints" / "checkpoint_0"
    again = begin(tmp_path / "two")
    roots = f"{tmp_path}/two/run, which has a history.*{tmp_path}/one/run.*another root"
    with pytest.raises(FolderError, match=roots):
        again.accelerator.load_state(place)
    again = begin(tmp_path / "two")
    again.epoch(), again.epoch(), again.epoch()
    with pytest.raises(FolderError, match=f"{tmp_path}/two/run .*has begun.*{tmp_path}/one/run"):
        again.accelerator.load_state(place)


def test_one_whose_run_or_checkpoint_is_gone_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "one")
    place = tmp_path / "one" / "checkpoints" / "checkpoint_0"
    shutil.rmtree(tmp_path / "one" / "run")
    with pytest.raises(
        NoSuchFolder, match=r"names checkpoint \d+ of the run at .*/one/run, which is not there"
    ):
        begin(tmp_path / "two").accelerator.load_state(place)
    saved(tmp_path / "one")
    edit(place, run="another")
    with pytest.raises(NoSuchFolder, match="there is run"):
        begin(tmp_path / "two").accelerator.load_state(place)


def test_one_of_another_model_is_refused_by_what_differs(tmp_path: Path) -> None:
    saved(tmp_path / "one")
    again = begin(tmp_path / "two")
    again.model[0].weight = torch.nn.Parameter(torch.zeros(4, 2))
    with pytest.raises(SpecMismatchError, match=r"0\.weight"):
        again.accelerator.load_state(tmp_path / "one" / "checkpoints" / "checkpoint_0")


def by_accelerate(home: Path) -> list[float]:
    """A directory ``home/plain`` as Accelerate writes it; the weights in it."""
    plain = begin(home / "of_accelerate", naming=False, durable=False)
    plain.epoch()
    plain.accelerator.save_state(str(home / "plain"))
    return plain.weights()


def test_what_accelerate_wrote_begins_a_fresh_run_and_a_restart_goes_on(tmp_path: Path) -> None:
    weights = by_accelerate(tmp_path)

    def be(log: str, kill: bool) -> None:
        training = begin(tmp_path, seed=9)
        training.accelerator.load_state(tmp_path / "plain")
        if not kill and log == "whole":
            assert training.weights() == weights and training.counts.epochs == 1
        for epoch in range(3):
            training.epoch()
            training.accelerator.save_state()
            if kill and epoch == 1:
                kill_self()
        (tmp_path / log).write_text(repr(training.everything()))

    assert life(tmp_path, lambda: be("whole", False)) == 0, (tmp_path / "output").read_text()
    shutil.rmtree(tmp_path / "run"), shutil.rmtree(tmp_path / "checkpoints")
    assert life(tmp_path, lambda: be("parts", True)) == -9
    assert life(tmp_path, lambda: be("parts", False)) == 0, (tmp_path / "output").read_text()
    assert (tmp_path / "parts").read_text() == (tmp_path / "whole").read_text()


def test_what_accelerate_wrote_is_refused_on_a_run_with_a_history(tmp_path: Path) -> None:
    by_accelerate(tmp_path)
    saved(tmp_path)
    again = begin(tmp_path)
    with pytest.raises(FolderError, match=r"history of its own.*accelerate wrote it.*another root"):
        again.accelerator.load_state(tmp_path / "plain")
    again = begin(tmp_path)
    again.epoch(), again.epoch(), again.epoch()
    with pytest.raises(FolderError, match=r"accelerate wrote it.*before the first batch"):
        again.accelerator.load_state(tmp_path / "plain")


# --- visits ---------------------------------------------------------------------------------------------


def test_a_visit_puts_the_state_back_and_training_goes_on_from_there(tmp_path: Path) -> None:
    training = begin(tmp_path)
    training.epoch()
    training.accelerator.save_state()
    at, was = training.everything(), training.weights()
    first = [training.epoch() for _ in range(2)]
    training.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
    assert training.everything() == at and training.weights() == was
    assert [training.epoch() for _ in range(2)] == first
    assert training.accelerator.save_state().name == "checkpoint_1"
    training.accelerator.end_training()
    assert pinned(tmp_path) == named(tmp_path / "checkpoints")
    reader = run(tmp_path)
    assert reader.state.generation == 2 and reader.newest_usable().step == 3 * BATCHES


def test_a_visit_without_a_step_after_it_leaves_the_head_alone(tmp_path: Path) -> None:
    training = begin(tmp_path)
    for _ in range(2):
        training.epoch()
        training.accelerator.save_state()
    end = training.weights()
    training.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
    assert training.weights() != end
    training.accelerator.end_training()
    assert run(tmp_path).newest_usable().step == 2 * BATCHES and run(tmp_path).state.generation == 1


def test_without_a_directory_it_goes_back_to_the_newest(tmp_path: Path) -> None:
    training = begin(tmp_path, limit=2)
    for _ in range(3):
        training.epoch()
        training.accelerator.save_state()
    saved_weights = training.weights()
    training.epoch()
    training.accelerator.load_state()
    assert training.weights() == saved_weights
    training.epoch()
    assert training.accelerator.save_state().name == "checkpoint_3"
    newest = training.weights()
    training.accelerator.load_state()
    assert training.weights() == newest  # not the older one, as by a count that begins again
    assert directories(tmp_path) == ["checkpoint_2", "checkpoint_3"]


def test_a_checkpoint_that_was_collected_is_told_and_passed_over(tmp_path: Path) -> None:
    training = begin(tmp_path)
    for _ in range(6):
        training.epoch()
        training.accelerator.save_state()
    oldest = tmp_path / "checkpoints" / "checkpoint_0"
    upkeep.unpin(str(tmp_path / "run"), pointer(oldest)["c"])
    for _ in range(2):  # what follows a commit lets go of it: the first one has not heard of the unpinning
        training.epoch()
        training.accelerator.save_state()
    assert training.durable.session is not None
    training.durable.session.flush()
    with pytest.raises(NoSuchFolder, match=r"checkpoint_0 names checkpoint \d+ of the run .* not there any"):
        training.accelerator.load_state(oldest)
    weights = training.weights()
    edit(tmp_path / "checkpoints" / "checkpoint_7", c=pointer(oldest)["c"])
    sentences = warned(training.accelerator.load_state)
    assert "checkpoint_7 is passed over" in sentences
    assert training.weights() != weights


def test_what_empty_passes_load_changes_nothing(tmp_path: Path) -> None:
    """A script that goes back to its best state: after a restart it has done so already."""
    saved(tmp_path, 3)
    again, trained = begin(tmp_path), list[int]()
    for _ in range(2):
        assert again.epoch() == []
        again.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
    again.epoch()
    assert run(tmp_path).state.generation == 2
    assert again.durable.session is not None and again.durable.session.restored is not None
    assert NOT_FROM in warned(lambda: trained.append(len(again.epoch())))  # no life has gone on from there
    assert trained == [BATCHES]
    again.accelerator.save_state()
    assert run(tmp_path).newest_usable().step == 4 * BATCHES


def test_what_the_run_has_gone_back_to_is_passed_over_without_a_word(tmp_path: Path) -> None:
    oldest = tmp_path / "checkpoints" / "checkpoint_0"
    training = begin(tmp_path)
    for _ in range(2):
        training.epoch()
        training.accelerator.save_state()
    training.accelerator.load_state(oldest)
    training.epoch()
    training.accelerator.save_state()
    training.stop()
    again = begin(tmp_path)
    assert [again.epoch() for _ in range(2)] == [[], []]
    again.accelerator.load_state(oldest)
    assert NOT_FROM not in warned(again.epoch)
    again.accelerator.save_state()
    assert run(tmp_path).newest_usable().step == 3 * BATCHES
