"""L5. What the run directory shows now: this node's files, and those of the others as they were last sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from durable_core.engine import beats, words
from durable_core.engine.beats import Beat
from durable_core.engine.launched import RunFiles
from durable_core.engine.words import Facts, Words
from durable_core.errors import FormatError

T = TypeVar("T")

#: Characters of one rank's stacks that are read, its newest.
MAX_STACK = 64 * 1024


@dataclass(frozen=True)
class Glimpse:
    """``facts`` by node, the rest by rank. ``unreadable``: what is there and is not understood;
    ``mute``: ranks that have no room for beats."""

    facts: Mapping[int, Facts] = field(default_factory=dict)
    beats: Mapping[int, Beat] = field(default_factory=dict)
    words: Mapping[int, Words] = field(default_factory=dict)
    stacks: Mapping[int, str] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    mute: frozenset[int] = frozenset()


def nodes(root: Path) -> dict[int, RunFiles]:
    """The run directory of every node; this one's is 0."""
    others = {int(path.name): RunFiles(path) for path in (root / "nodes").glob("*") if path.name.isdecimal()}
    return {**others, 0: RunFiles(root)}


def look(root: Path) -> Glimpse:
    """Raises nothing for files that come, go or are malformed while they are read."""
    unreadable: list[str] = []

    def attempt(read: Callable[[Path], T | None], path: Path) -> T | None:
        try:
            return read(path)
        except FormatError as error:
            unreadable.append(error.message)
            return None

    facts: dict[int, Facts] = {}
    progress: dict[int, Beat] = {}
    last: dict[int, Words] = {}
    stacks: dict[int, str] = {}
    mute: set[int] = set()
    for node, files in nodes(root).items():
        if (fact := attempt(words.read_facts, files.facts)) is not None:
            facts[node] = fact
        mute.update(_ranks(files.root / "mute"))
        for rank in _ranks(files.root / "beats"):
            if (beat := attempt(beats.read, files.beat(rank))) is not None:
                progress[rank] = beat
        for rank in _ranks(files.root / "words"):
            if (said := attempt(words.read_words, files.words(rank))) is not None:
                last[rank] = said
        for rank in _ranks(files.root / "stacks"):
            if text := attempt(_tail, files.stacks(rank)):
                stacks[rank] = text
    return Glimpse(facts, progress, last, stacks, tuple(unreadable), frozenset(mute))


def _ranks(directory: Path) -> list[int]:
    names = (path.name.partition(".")[0] for path in directory.glob("[0-9]*"))
    return sorted({int(name) for name in names if name.isdecimal()})


def _tail(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_STACK))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return None
