"""The Trainer's own ``checkpoint-N`` directories: which of them are complete. Nothing is unpickled.

The Trainer writes them in place, file by file, and takes the one with the highest number for the newest: one
that a kill left without ``optimizer.pt`` silently begins with a fresh optimizer.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

#: ``TrainingArguments``, or ``None``.
Arguments: TypeAlias = Any

_NAME = re.compile(r"checkpoint-(\d+)")
STATE = "trainer_state.json"
#: Left where a checkpoint was begun at a signal and not finished.
_UNFINISHED = "checkpoint-is-incomplete.txt"
#: (weights in one file, or the index of several)
_SAFE = (("model.safetensors", "model.safetensors.index.json"), ("adapter_model.safetensors", ""))
_TORCH = (("pytorch_model.bin", "pytorch_model.bin.index.json"), ("adapter_model.bin", ""))


@dataclass(frozen=True)
class Wanted:
    """What training arguments imply. ``processes``: whose random streams; ``scaler``: fp16 has one."""

    only_model: bool = False
    scaler: bool = False
    processes: int = 1

    @classmethod
    def of(cls, args: Arguments) -> Wanted:
        """Without arguments: their defaults, and as many processes as the launcher says."""
        if args is None:
            return cls(processes=int(os.environ.get("WORLD_SIZE", "1")))
        return cls(bool(args.save_only_model), bool(args.fp16), int(args.world_size))

    def files(self) -> Iterator[str]:
        """Of torch, beside weights and the Trainer's state."""
        if self.only_model:
            return
        yield from ("optimizer.pt", "scheduler.pt")
        if self.scaler:
            yield "scaler.pt"
        if self.processes == 1:
            yield "rng_state.pth"
        else:
            yield from (f"rng_state_{rank}.pth" for rank in range(self.processes))


def newest_complete(output_dir: str | os.PathLike[str], wanted: Wanted) -> str | None:
    found = []
    for path in Path(output_dir).glob("checkpoint-*"):
        name = _NAME.fullmatch(path.name)
        if name is not None and path.is_dir():
            found.append((int(name[1]), str(path)))
    complete = (path for _, path in sorted(found, reverse=True) if not lacking(path, wanted))
    return next(complete, None)


def lacking(directory: str | os.PathLike[str], wanted: Wanted) -> tuple[str, ...]:
    """What keeps a directory from being complete, one line each; empty: nothing."""
    place = Path(directory)
    if not place.is_dir():
        return ("no such directory",)
    return tuple(_lacking(place, wanted))


def _lacking(place: Path, wanted: Wanted) -> Iterator[str]:
    if (place / _UNFINISHED).exists():
        yield f"{_UNFINISHED} says that it was not finished"
    yield from _problem(place / STATE, _check_json)
    yield from _weights(place)
    for name in wanted.files():
        yield from _problem(place / name, _check_zip)


def _weights(place: Path) -> Iterator[str]:
    """Of a model or of adapters, which lie one directory deeper when there are several."""
    places = [place, *(path.parent for path in sorted(place.glob("*/adapter_model.*")))]
    problems: list[str] = []
    for whole, index, check in _forms():
        for here in places:
            if (here / whole).exists():
                problems += _problem(here / whole, check)
                break
            if index and (here / index).exists():
                problems += _shards(here, index, check)
                break
        else:
            continue
        yield from problems
        return
    yield "no weights (model.safetensors, adapter_model.safetensors or their like)"


def _forms() -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    for check, names in ((_check_safetensors, _SAFE), (_check_zip, _TORCH)):
        for whole, index in names:
            yield whole, index, check


def _shards(place: Path, index: str, check: Callable[[Path], None]) -> Iterator[str]:
    found = list(_problem(place / index, _check_json))
    if not found:
        names = json.loads((place / index).read_text())["weight_map"].values()
        found = [text for name in sorted(set(names)) for text in _problem(place / name, check)]
    yield from found


def _problem(path: Path, check: Callable[[Path], None]) -> Iterator[str]:
    try:
        check(path)
    except FileNotFoundError:
        yield f"{path.name} is missing"
    except (ValueError, KeyError, TypeError, struct.error, zipfile.BadZipFile) as error:
        yield f"{path.name} is damaged ({error})"


def _check_json(path: Path) -> None:
    json.loads(path.read_text(encoding="utf-8"))


def _check_zip(path: Path) -> None:
    """What ``torch.save`` writes ends with the list of its parts."""
    with zipfile.ZipFile(path) as parts:
        if not parts.namelist():
            raise ValueError("nothing is in it")


def _check_safetensors(path: Path) -> None:
    """Its head says how long it is."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        size = path.stat().st_size
        if length > size - 8:
            raise ValueError(f"{size} bytes are less than its head")
        head = json.loads(file.read(length))
    end = max((entry["data_offsets"][1] for name, entry in head.items() if name != "__metadata__"), default=0)
    if size != 8 + length + end:
        raise ValueError(f"{size} bytes, and its head says {8 + length + end}")
