"""Directories of ``save_state`` on a disk: each effect is whole, or a later one finds what is left of it.

======================================  ==================================================================
killed while                            what a reader sees, and who cleans up
======================================  ==================================================================
hooks write into the partial one        no directory yet, or the old one; the next save of that name
it takes its place                      none or all of it; beside files that were there, the old pointer
                                        until everything else is in place
an old one is on its way out            none; the next save in the same place (``sweep``)
======================================  ==================================================================
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from accelerate_durable import folders
from accelerate_durable.folders import Pointer
from durable_core.errors import TierDenied, TierError, TierFull

T = TypeVar("T")


def told(place: Path, action: Callable[[], T]) -> T:
    """``action``, whose ``OSError`` is told as the error of a tier that names ``place``."""
    try:
        return action()
    except OSError as error:
        what = f"cannot write {place}: {error.strerror or error}"
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise TierDenied(what) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TierFull(what) from error
        raise TierError(what) from error


def partial_of(place: Path, generation: int) -> Path:
    return place.with_name(folders.partial_name(place.name, generation))


def begin(place: Path, pointer: Pointer, generation: int) -> Path:
    """A directory beside ``place``, for what belongs into it; it says already what is about to be pinned.

    That of a save that was killed is removed, and of a process that should be dead: it cannot complete it.
    """
    for name in names(place.parent):
        if folders.whole_name(name) == place.name:
            shutil.rmtree(place.with_name(name))
    partial = partial_of(place, generation)
    partial.mkdir(parents=True)
    pointer.write(partial)
    return partial


def complete(place: Path, pointer: Pointer, generation: int) -> None:
    """``place`` holds what is in its partial directory, and the pointer; files of others in it stay."""
    partial = partial_of(place, generation)
    pointer.write(partial)
    _sync_tree(partial)
    if not place.exists():
        partial.rename(place)
    else:
        for entry in sorted(partial.iterdir(), key=lambda entry: entry.name == folders.POINTER):
            _move(entry, place / entry.name)
        folders.sync(place)
        shutil.rmtree(partial)
    folders.sync(place.parent)


def _move(entry: Path, target: Path) -> None:
    """Over what is there. A directory cannot be replaced at once: the old one makes room first."""
    if target.is_dir() and not target.is_symlink():
        target.rename(entry.with_name(f"{entry.name}.replaced"))
    entry.replace(target)


def _sync_tree(top: Path) -> None:
    for folder, _, names in os.walk(top):
        for name in names:
            with (Path(folder) / name).open("rb") as file:
                os.fsync(file.fileno())
        folders.sync(folder)


def names(parent: Path) -> list[str]:
    """Of the directories in ``parent``; none where there is no ``parent``."""
    if not parent.is_dir():
        return []
    with os.scandir(parent) as entries:
        return [entry.name for entry in entries if entry.is_dir()]


def retire(parent: Path, limit: int | None) -> None:
    """Take out of sight what ``total_limit`` no longer wants."""
    gone = folders.beyond_limit(names(parent), limit)
    for name in gone:
        hidden = parent / folders.retired_name(name)
        if hidden.exists():
            shutil.rmtree(hidden)
        (parent / name).rename(hidden)
    if gone:
        folders.sync(parent)


def retired(parent: Path) -> Iterator[Path]:
    """What was taken out of sight, here or by a process that was killed."""
    return (parent / name for name in names(parent) if folders.is_retired(name))


def sweep(parent: Path) -> None:
    """Remove what was taken out of sight, once nothing needs its pointers any more; and what a save left that
    was killed: of automatic names the next one is another."""
    for folder in retired(parent):
        shutil.rmtree(folder)
    for name in names(parent):
        if folders.number_of(folders.whole_name(name) or "") is not None:
            shutil.rmtree(parent / name)


def pointers(parent: Path, *, gone: bool = False) -> dict[str, Pointer]:
    """Of the directories in ``parent``: of those in sight, or (``gone``) of those that are not."""
    wanted = (name for name in names(parent) if folders.is_hidden(name) is gone)
    found = (folders.Folder.at(parent / name) for name in wanted)
    return {folder.path: folder.pointer for folder in found if folder.pointer is not None}
