"""The directories of ``save_state``: their names, what they point at, and what is decided about them.

A directory holds no state. ``durable.json`` in it names a checkpoint of a run, which is pinned for as long
as a directory names it; beside it lies what the script's own save hooks wrote. Here is what a directory is
found to be, and pure decisions about it; effects are in ``saving`` and ``loading``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from durable_core.errors import FormatError, NotFoundError, UnknownVersionError, UsageError

#: Below the project directory, where automatic naming makes its own.
CHECKPOINTS = "checkpoints"
POINTER = "durable.json"
FORMAT = 1
#: What accelerate writes into the directory of any state: without a model there are still random streams.
_PLAIN = re.compile(r"(model|pytorch_model|optimizer|scheduler|random_states_|custom_checkpoint_).*")
_NUMBERED = re.compile(r"checkpoint_([0-9]+)")
_RETIRED = re.compile(r"\.(.+)\.retired")
_PARTIAL = re.compile(r"\.(.+)\.[0-9]+\.partial")
_MAX_BYTES = 1 << 16


class FolderError(UsageError, ValueError):
    """A directory of states that cannot serve. A ``ValueError`` too, for that is what accelerate raises."""


class NoSuchFolder(NotFoundError, ValueError, FileNotFoundError):
    """No directory of that name, or none at all. Also what accelerate raises, in either case."""


# --- what a directory points at ---------------------------------------------------------------------


@dataclass(frozen=True)
class Pointer:
    """Checkpoint ``c`` of run ``run`` at ``root``, at optimizer step ``step``; ``manifest`` is the sha256 of
    its manifest. ``epoch`` and ``batch`` (from 0) are where the data stands after it."""

    root: str
    run: str
    c: int
    step: int
    manifest: str
    epoch: int
    batch: int
    format: int = FORMAT

    @classmethod
    def read(cls, directory: str | Path) -> Pointer:
        """Raises ``FileNotFoundError`` without one, ``UnknownVersionError`` for one that a newer version
        wrote, ``FormatError`` for what is none."""
        path = Path(directory) / POINTER
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        try:
            document = json.loads(data)
        except ValueError as error:
            raise FormatError(str(path), f"not JSON: {error}") from error
        return cls.of(document, str(path))

    @classmethod
    def of(cls, document: Any, where: str) -> Pointer:
        """What ``where`` holds. Raises as ``read``."""
        version = document.get("format") if isinstance(document, dict) else None
        if type(version) is not int or version < 1:
            raise FormatError(where, "names no checkpoint of a durable run")
        if version > FORMAT:
            raise UnknownVersionError(
                where,
                f"written in format {version}, and {FORMAT} is known here",
                hint="load it with the version of durable-training that wrote it, or a newer one",
            )
        for field in dataclasses.fields(cls):
            value = document.get(field.name)
            fits = isinstance(value, str) if field.type == "str" else type(value) is int and value >= 0
            if not fits:
                raise FormatError(where, f"{field.name!r} is {value!r}")
        return cls(**{field.name: document[field.name] for field in dataclasses.fields(cls)})

    def write(self, directory: str | Path) -> None:
        """Put it in place whole, over an older one, and make it durable. Raises ``OSError``."""
        path = Path(directory) / POINTER
        partial = path.with_name(f".{POINTER}.partial")
        with partial.open("w") as file:
            json.dump(dataclasses.asdict(self), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(directory)


def sync(directory: str | Path) -> None:
    """Make the names in ``directory`` durable. Raises ``OSError``."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- what a directory is found to be ------------------------------------------------------------------


class Kind(str, Enum):
    OURS = "ours"  # it has a pointer
    PLAIN = "plain"  # accelerate wrote it
    MISSING = "missing"
    INCOMPLETE = "incomplete"  # neither: a save was killed in it, or it is no such directory
    DAMAGED = "damaged"
    NEWER = "newer"


@dataclass(frozen=True)
class Folder:
    """A directory as one process found it; JSON, so that all ranks decide about the same one. ``detail``:
    what is wrong with it."""

    path: str
    kind: Kind
    pointer: Pointer | None = None
    detail: str = ""

    @classmethod
    def at(cls, path: str | Path) -> Folder:
        """Look. Raises ``OSError`` only for what is there and may not be read."""
        text = str(path)
        try:
            return cls(text, Kind.OURS, Pointer.read(path))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except UnknownVersionError as error:
            return cls(text, Kind.NEWER, detail=error.message)
        except FormatError as error:
            return cls(text, Kind.DAMAGED, detail=error.message)
        if not Path(path).is_dir():
            return cls(text, Kind.MISSING)
        plain = any(_PLAIN.fullmatch(entry.name) for entry in Path(path).iterdir())
        return cls(text, Kind.PLAIN if plain else Kind.INCOMPLETE)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Folder:
        pointer = document["pointer"]
        return cls(
            document["path"], Kind(document["kind"]), None if pointer is None else Pointer(**pointer),
            document["detail"],
        )  # fmt: skip

    @property
    def run(self) -> str:
        """Whose it is; empty: no durable run's."""
        return "" if self.pointer is None else self.pointer.run

    def check(self) -> Folder:
        """It, if something can be loaded from it; raises what is wrong with it otherwise."""
        if self.kind is Kind.MISSING:
            raise NoSuchFolder(
                f"{self.path} is no directory",
                hint="a durable run goes on by itself: give load_state the directory of an earlier "
                "save_state, or none",
            )
        if self.kind is Kind.INCOMPLETE:
            raise FolderError(
                f"{self.path} has no {POINTER} and nothing that accelerate writes: no save_state was "
                "completed there",
                hint="load_state() without a directory takes the newest complete one",
            )
        if self.kind is Kind.DAMAGED:
            raise FormatError(
                str(Path(self.path) / POINTER), f"damaged: {self.detail}",
                hint="the checkpoint is not in this directory and may be whole: durable ls ROOT lists them",
            )  # fmt: skip
        if self.kind is Kind.NEWER:
            raise UnknownVersionError(
                str(Path(self.path) / POINTER), self.detail,
                hint="load it with the version of durable-training that wrote it, or a newer one",
            )  # fmt: skip
        return self


def newest(folders: Iterable[Folder], run: str | None) -> tuple[Folder | None, tuple[str, ...]]:
    """The first of ``folders`` (newest first) that can be loaded, and what to say of those passed over.

    ``run``: only directories of that run count, and nothing is said of those of others; ``None``: any.
    """
    passed: list[str] = []
    for folder in folders:
        if folder.kind in (Kind.OURS, Kind.PLAIN):
            if run is None or folder.run == run:
                return folder, tuple(passed)
        else:
            passed.append(f"{folder.path} is passed over: {_trouble(folder)}")
    return None, tuple(passed)


def _trouble(folder: Folder) -> str:
    return folder.detail or f"it is {folder.kind.value}"


# --- names ------------------------------------------------------------------------------------------------


def number_of(name: str) -> int | None:
    """Of a directory that automatic naming made; ``None`` for any other name, stray files above all."""
    match = _NUMBERED.fullmatch(name)
    return None if match is None else int(match[1])


def numbered(names: Iterable[str]) -> list[str]:
    """Those that automatic naming made, oldest first."""
    return sorted((name for name in names if number_of(name) is not None), key=lambda n: (number_of(n), n))


def next_number(iteration: int, names: Iterable[str]) -> int:
    """Of the directory to be made: the script's count, but beyond all that are there. After a ``load_state``
    of an old one, or in another process, the count may be behind them."""
    return max([iteration, *(number + 1 for name in names if (number := number_of(name)) is not None)])


def beyond_limit(names: Iterable[str], limit: int | None) -> list[str]:
    """What ``total_limit`` no longer wants once all ``names`` are in place, oldest first. The newest one
    stays whatever the limit is."""
    if limit is None:
        return []
    ordered = numbered(names)
    return ordered[: max(0, len(ordered) - max(limit, 1))]


def retired_name(name: str) -> str:
    """Of a directory that is on its way out: a reader does not see it any more."""
    return f".{name}.retired"


def is_retired(name: str) -> bool:
    return _RETIRED.fullmatch(name) is not None


def partial_name(name: str, generation: int) -> str:
    """Of what becomes ``name``. A process of another generation, which may be a dead one, has its own."""
    return f".{name}.{generation}.partial"


def whole_name(name: str) -> str | None:
    """What a directory of that name was to become; ``None``: it is no partial one."""
    match = _PARTIAL.fullmatch(name)
    return None if match is None else match[1]


def is_hidden(name: str) -> bool:
    """What names a checkpoint no more, or not yet."""
    return is_retired(name) or whole_name(name) is not None


# --- pins -------------------------------------------------------------------------------------------------


def let_go(before: Iterable[Pointer], now: Iterable[Pointer], run: str) -> tuple[int, ...]:
    """Checkpoints of ``run`` that directories named and none names any more, oldest first."""
    kept = {pointer.c for pointer in now if pointer.run == run}
    return tuple(sorted({pointer.c for pointer in before if pointer.run == run} - kept))


# --- what load_state does at the start of a process ---------------------------------------------------------


class Start(str, Enum):
    GO_ON = "the run goes on at its newest checkpoint"
    ACCELERATE = "accelerate loads what accelerate wrote, and the run begins with it"
    TAKE_OVER = "the run begins with a checkpoint of another one"


def at_start(folder: Folder | None, *, root: str, run: str | None, origin: str = "") -> Start:
    """What to do with the directory that ``load_state`` was given (``None``: none was found).

    ``run``: the id of the run that has a history at ``root``, if one has. ``origin``: the directory that it
    began with, which a restart of the same script names again. Raises ``NoSuchFolder`` without directory
    and history, what ``Folder.check`` raises, and ``FolderError`` for a directory of another history.
    """
    if folder is None:
        if run is None:
            raise NoSuchFolder(
                f"there is no directory of an earlier save_state, and no run at {root}",
                hint="call save_state first; or leave load_state out: a durable run goes on by itself",
            )
        return Start.GO_ON
    if run is None:
        return Start.ACCELERATE if folder.check().pointer is None else Start.TAKE_OVER
    if folder.check().run == run or (origin and same_path(folder.path, origin)):
        return Start.GO_ON
    raise FolderError(
        f"{folder.path} is not of the run at {root}, which has a history of its own (run {run}): "
        + _whose(folder),
        hint="leave load_state out to go on with that run, or give this one another root",
    )


def of_this_run(folder: Folder, *, root: str, run: str) -> Pointer:
    """Where to go back to, within a run under way. Raises as ``at_start``."""
    pointer = folder.check().pointer
    if pointer is not None and pointer.run == run:
        return pointer
    raise FolderError(
        f"{folder.path} is not of the run at {root} (run {run}), which has begun: {_whose(folder)}",
        hint="call load_state before the first batch, on a root without history",
    )


def _whose(folder: Folder) -> str:
    pointer = folder.pointer
    return "accelerate wrote it" if pointer is None else f"it is of run {pointer.run} at {pointer.root}"


def same_path(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
