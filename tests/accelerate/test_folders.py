"""The directories of ``save_state``: names, pointers, and the decisions about them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from accelerate_durable import folders
from accelerate_durable.folders import Folder, FolderError, Kind, Pointer, Start
from durable_core.errors import DurableError, FormatError, NotFoundError, UnknownVersionError, UsageError

HERE = Pointer(root="/runs/a", run="aa", c=3, step=40, manifest="f" * 64, epoch=2, batch=5)
THERE = dataclasses.replace(HERE, root="/runs/b", run="bb")


def folder(tmp_path: Path, name: str = "d", **pointer: object) -> Path:
    made = tmp_path / name
    made.mkdir()
    if pointer:
        document = {**dataclasses.asdict(HERE), **pointer}
        (made / folders.POINTER).write_text(json.dumps(document))
    return made


# --- pointers -----------------------------------------------------------------------------------------


def test_a_pointer_is_read_as_it_was_written_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    HERE.write(tmp_path)
    dataclasses.replace(HERE, c=4).write(tmp_path)
    assert Pointer.read(tmp_path).c == 4
    assert [entry.name for entry in tmp_path.iterdir()] == [folders.POINTER]


@pytest.mark.parametrize(
    "wrong",
    [{"c": "3"}, {"c": -1}, {"c": True}, {"root": None}, {"format": 0}, {"format": "1"}, {"step": 1.0}],
    ids=str,
)
def test_a_pointer_of_wrong_values_is_damaged(tmp_path: Path, wrong: dict[str, object]) -> None:
    found = Folder.at(folder(tmp_path, **wrong))
    assert found.kind is Kind.DAMAGED
    with pytest.raises(FormatError, match=r"durable\.json.*durable ls"):
        found.check()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "\x00" * 9])
def test_what_is_no_pointer_is_damaged(tmp_path: Path, text: str) -> None:
    made = folder(tmp_path)
    (made / folders.POINTER).write_text(text)
    assert Folder.at(made).kind is Kind.DAMAGED


def test_a_newer_pointer_says_what_reads_it(tmp_path: Path) -> None:
    found = Folder.at(folder(tmp_path, format=2, something="new"))
    with pytest.raises(UnknownVersionError, match=r"format 2, and 1 is known here.*or a newer one"):
        found.check()


def test_an_empty_directory_is_incomplete_and_none_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="no save_state was completed"):
        Folder.at(folder(tmp_path)).check()
    for kind in (NotFoundError, ValueError, FileNotFoundError, DurableError):  # as accelerate raises
        with pytest.raises(kind, match="is no directory"):
            Folder.at(tmp_path / "no").check()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "random_states_0.pkl"])
def test_what_accelerate_wrote_is_known_by_its_files(tmp_path: Path, name: str) -> None:
    made = folder(tmp_path)
    (made / name).write_text("")
    assert Folder.at(made).check().kind is Kind.PLAIN
    HERE.write(made)
    assert Folder.at(made).kind is Kind.OURS


def test_a_folder_travels_as_json(tmp_path: Path) -> None:
    for found in (Folder("x", Kind.OURS, HERE), Folder("y", Kind.DAMAGED, detail="torn")):
        assert Folder.from_json(json.loads(json.dumps(found.to_json()))) == found


# --- names and limits -----------------------------------------------------------------------------------


STRAY = [".DS_Store", "checkpoint_x", "checkpoint_", "old_checkpoint_9", "checkpoint_9.tmp", "notes 12"]


def test_stray_names_are_not_numbered() -> None:
    assert folders.numbered([*STRAY, "checkpoint_10", "checkpoint_9"]) == ["checkpoint_9", "checkpoint_10"]
    assert folders.beyond_limit([*STRAY, "checkpoint_1"], 1) == []


@pytest.mark.parametrize(
    ("iteration", "names", "number"),
    [
        (0, [], 0),
        (3, [], 3),  # what the script says
        (0, ["checkpoint_0", "checkpoint_1"], 2),  # a new process that has not counted them
        (1, ["checkpoint_7"], 8),  # went back to an old one
        (9, ["checkpoint_7"], 9),
        (0, STRAY, 0),
    ],
)
def test_naming_goes_on_beyond_all_that_are_there(iteration: int, names: list[str], number: int) -> None:
    assert folders.next_number(iteration, names) == number


@pytest.mark.parametrize(
    ("limit", "gone"),
    [(None, []), (5, []), (3, []), (2, [2]), (1, [2, 9]), (0, [2, 9])],
    ids=str,
)
def test_the_limit_lets_the_oldest_go_and_never_the_newest(limit: int | None, gone: list[int]) -> None:
    names = ["checkpoint_10", "checkpoint_2", "checkpoint_9"]
    assert folders.beyond_limit(names, limit) == [f"checkpoint_{number}" for number in gone]


def test_a_retired_name_is_no_numbered_one() -> None:
    name = folders.retired_name("checkpoint_3")
    assert folders.is_retired(name) and folders.number_of(name) is None
    assert not folders.is_retired("checkpoint_3")


def test_a_checkpoint_is_let_go_when_no_directory_names_it_any_more() -> None:
    def at(c: int) -> Pointer:
        return dataclasses.replace(HERE, c=c)

    assert folders.let_go([at(1), at(2), at(3)], [at(2)], "aa") == (1, 3)
    assert folders.let_go([at(1), at(1)], [at(1)], "aa") == ()
    assert folders.let_go([THERE], [], "aa") == ()  # not ours to unpin
    assert folders.let_go([at(3)], [THERE], "aa") == (3,)  # the same number in another run


# --- which one to load -----------------------------------------------------------------------------------

OURS, OTHERS, PLAIN = Folder("o", Kind.OURS, HERE), Folder("t", Kind.OURS, THERE), Folder("p", Kind.PLAIN)
BROKEN = [Folder("b", Kind.INCOMPLETE), Folder("n", Kind.NEWER, detail="format 2"), Folder("d", Kind.DAMAGED)]


def test_broken_directories_are_passed_over_and_named() -> None:
    chosen, passed = folders.newest([*BROKEN, OURS], "aa")
    assert chosen is OURS
    assert passed == (
        "b is passed over: it is incomplete", "n is passed over: format 2", "d is passed over: it is damaged",
    )  # fmt: skip
    assert folders.newest(BROKEN, None)[0] is None


def test_on_a_run_with_a_history_only_its_own_directories_count() -> None:
    assert folders.newest([OTHERS, PLAIN, OURS], "aa") == (OURS, ())
    assert folders.newest([OTHERS, PLAIN], "aa") == (None, ())
    assert folders.newest([PLAIN, OURS], None) == (PLAIN, ())


@pytest.mark.parametrize(
    ("found", "run", "origin", "start"),
    [
        (OURS, "aa", "", Start.GO_ON),
        (None, "aa", "", Start.GO_ON),
        (PLAIN, None, "", Start.ACCELERATE),
        (OTHERS, None, "", Start.TAKE_OVER),
        (PLAIN, "aa", "p", Start.GO_ON),  # the same command again
        (OTHERS, "aa", "./t", Start.GO_ON),
    ],
)
def test_how_a_process_starts(found: Folder | None, run: str | None, origin: str, start: Start) -> None:
    assert folders.at_start(found, root="/runs/a", run=run, origin=origin) is start


@pytest.mark.parametrize(
    ("found", "run", "words"),
    [
        (OTHERS, "aa", "/runs/a.*run bb at /runs/b.*another root"),
        (PLAIN, "aa", "/runs/a.*accelerate wrote it.*another root"),
        (None, None, "no run at /runs/a.*call save_state first"),
        (BROKEN[0], "aa", "no save_state was completed"),
        (Folder("x", Kind.MISSING), "aa", "x is no directory"),
    ],
)
def test_what_is_refused_at_the_start(found: Folder | None, run: str | None, words: str) -> None:
    with pytest.raises((UsageError, NotFoundError), match=words) as refused:
        folders.at_start(found, root="/runs/a", run=run)
    assert isinstance(refused.value, ValueError)


def test_within_a_run_only_its_own_directories_are_gone_back_to() -> None:
    assert folders.of_this_run(OURS, root="/runs/a", run="aa") is HERE
    for found, words in ((OTHERS, "run bb at /runs/b"), (PLAIN, "accelerate wrote it")):
        with pytest.raises(FolderError, match=f"/runs/a.*{words}.*before the first batch"):
            folders.of_this_run(found, root="/runs/a", run="aa")
