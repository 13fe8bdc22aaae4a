"""Directories of ``save_state`` are there whole, or not; what a kill left behind is cleaned up."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from accelerate_durable import folders, making
from accelerate_durable.folders import Folder, Kind, Pointer
from durable_core.errors import TierDenied, TierError, TierFull

AT = Pointer(root="/runs/a", run="aa", c=3, step=40, manifest="f" * 64, epoch=2, batch=5)


class Killed(BaseException):
    """As SIGKILL: nothing of ours runs after it."""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def tree(top: Path) -> dict[str, str]:
    """Relative path -> content, of everything but the pointer's own."""
    files = (path for path in sorted(top.rglob("*")) if path.is_file() and path.name != folders.POINTER)
    return {str(path.relative_to(top)): path.read_text() for path in files}


def make(place: Path, pointer: Pointer = AT, **files: str) -> None:
    partial = making.begin(place, pointer, 1)
    for name, text in files.items():
        write(partial / name, text)
    making.complete(place, pointer, 1)


def test_a_new_directory_holds_what_hooks_wrote_and_the_pointer(tmp_path: Path) -> None:
    make(tmp_path / "deep" / "d", **{"a.json": "1", "unet/b": "2"})
    assert tree(tmp_path / "deep") == {"d/a.json": "1", "d/unet/b": "2"}
    assert Pointer.read(tmp_path / "deep" / "d") == AT


def test_one_that_is_there_keeps_what_others_put_into_it(tmp_path: Path) -> None:
    place = tmp_path / "d"
    for name in ("log.txt", "a.json", "unet/old"):
        write(place / name, "old")
    make(place, **{"a.json": "new", "unet/b": "new"})
    assert tree(place) == {"log.txt": "old", "a.json": "new", "unet/b": "new"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]


def test_what_a_killed_save_left_behind_is_not_mixed_in(tmp_path: Path) -> None:
    place = tmp_path / "d"
    write(making.begin(place, AT, 1) / "stale", "1")
    assert Folder.at(place).kind is Kind.MISSING
    make(place, fresh="2")
    assert tree(place) == {"fresh": "2"}


@pytest.mark.parametrize("there", [False, True], ids=["new", "over an old one"])
def test_a_kill_at_any_effect_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Cut before each effect in turn until none is left; then the same save once more is whole."""
    newer = dataclasses.replace(AT, c=4)
    for effects in range(100):
        place = tmp_path / str(effects) / "d"
        if there:
            make(place, a="old")
        with monkeypatch.context() as patch:
            done = cut(patch, after=effects)
            try:
                make(place, newer, a="new")
            except Killed:
                pass
            else:
                break
        seen = Folder.at(place)
        assert seen.pointer in ((AT, newer) if there else (None, newer)), f"after {done}"
        if seen.pointer == newer:
            assert tree(place)["a"] == "new"
        make(place, newer, a="new")
        assert Pointer.read(place) == newer and tree(place) == {"a": "new"}
        assert [entry.name for entry in place.parent.iterdir()] == ["d"]
    assert effects > 4


def cut(patch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Let so many renames and removals happen, and raise ``Killed`` at the next."""
    done: list[str] = []

    def guarded(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def effect(*args: object, **kwargs: object) -> object:
            if len(done) == after:
                raise Killed(name)
            done.append(name)
            return real(*args, **kwargs)

        patch.setattr(owner, name, effect)

    for name in ("rename", "replace", "mkdir"):
        guarded(Path, name)
    guarded(making.shutil, "rmtree")
    guarded(os, "fsync")
    return done


def test_the_limit_hides_the_oldest_and_leaves_strays_alone(tmp_path: Path) -> None:
    for number in (2, 9, 10):
        make(tmp_path / f"checkpoint_{number}", dataclasses.replace(AT, c=number))
    write(tmp_path / ".DS_Store", "")
    write(tmp_path / "notes" / "a", "")
    making.retire(tmp_path, 2)
    assert sorted(making.names(tmp_path)) == [
        ".checkpoint_2.retired", "checkpoint_10", "checkpoint_9", "notes",
    ]  # fmt: skip
    assert [pointer.c for pointer in making.pointers(tmp_path, gone=True).values()] == [2]
    assert sorted(pointer.c for pointer in making.pointers(tmp_path).values()) == [9, 10]
    making.sweep(tmp_path)
    assert not list(making.retired(tmp_path)) and (tmp_path / ".DS_Store").exists()


def test_a_name_that_was_retired_before_can_be_again(tmp_path: Path) -> None:
    for _ in range(2):
        make(tmp_path / "checkpoint_0")
        make(tmp_path / "checkpoint_1")
        making.retire(tmp_path, 1)
    assert sorted(making.names(tmp_path)) == [".checkpoint_0.retired", "checkpoint_1"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EACCES, TierDenied), (errno.EROFS, TierDenied), (errno.ENOSPC, TierFull), (errno.EIO, TierError)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_trouble_with_the_disk_names_the_directory(number: int, kind: type[TierError]) -> None:
    def fails() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(kind, match=r"cannot write /some/where: ") as told:
        making.told(Path("/some/where"), fails)
    assert type(told.value) is kind


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("")
    making.begin(tmp_path / "d", AT, 1)
    with pytest.raises(TierError, match="cannot write"):
        making.told(tmp_path / "d", lambda: making.complete(tmp_path / "d", AT, 1))
