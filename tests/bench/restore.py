"""What a verified restore costs: from a warm disk, from memory, and beside what others do.

``--size-mib`` of tensors of 4 MiB lie in one shard. In each round, turn about: a copy of them in memory,
``safetensors.load_file`` and a copy into live tensors, and ours (digests checked) from the disk and from
memory, on one thread and on two, into live tensors and into fresh ones. Prints one JSON document of medians,
bests and ratios; those of the bests say what the code can do on a machine that does other things too.

    python tests/bench/restore.py [--size-mib 1024] [--rounds 5] [--dir DIR]
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from durable_core.engine import restore
from durable_core.engine.copies import Place, SlotSource, Sources, TierSource
from durable_core.format import digests, shard
from durable_core.format.layout import CheckpointName
from durable_core.format.manifest import Manifest, TensorEntry
from durable_core.state import memory
from durable_core.tier.posix import PosixTier
from durable_core.types import ObjectInfo, PlacedSlice, Promise, SliceInfo, SliceKey, Traits

MIB = 1 << 20
KEY = CheckpointName(1, 0, "0" * 8).shard("dp0")


class Subject:
    """Live tensors, a slot with their bytes, and a shard of them on the disk."""

    def __init__(self, size_mib: int, directory: Path) -> None:
        count = max(1, size_mib // 4)
        elements = size_mib * MIB // 4 // count
        self.live = {f"state/{i:05d}": torch.empty(elements) for i in range(count)}
        slot = mmap.mmap(-1, size_mib * MIB)
        whole = torch.frombuffer(slot, dtype=torch.float32)
        self.slot = {key: whole[i * elements : (i + 1) * elements] for i, key in enumerate(self.live)}
        for tensor in self.slot.values():
            tensor.normal_()
        self.tier = PosixTier(directory)
        self.path = directory / KEY
        self.manifest = self._write()
        pieces = [piece for entry in self.manifest.tensors.values() for piece in entry.slices]
        views = {key: memory.writable(tensor) for key, tensor in self.slot.items()}
        self._views = {(piece.info.slice, piece.info.xxh3): views[piece.info.slice.key] for piece in pieces}

    def _write(self) -> Manifest:
        views = {key: memory.writable(tensor) for key, tensor in self.slot.items()}
        entries = [(key, "F32", tuple(self.slot[key].shape), view.nbytes) for key, view in views.items()]
        header, begins = shard.layout(entries)
        nbytes = self.tier.write_object(KEY, [header, *views.values()])
        tensors = {}
        for (key, view), begin in zip(views.items(), begins, strict=True):
            shape = tuple(self.slot[key].shape)
            piece = SliceKey(key, (0,) * len(shape), shape)
            info = SliceInfo(piece, "F32", shape, view.nbytes, digests.xxh3(view), "0" * 8)
            tensors[key] = TensorEntry("F32", shape, (PlacedSlice(info, KEY, begin),))
        written = ObjectInfo(KEY, nbytes, len(header), digests.xxh3(header))
        sha = "sha256:" + "0" * 64
        return Manifest(
            "bench",
            1,
            0,
            0,
            None,
            sha,
            Promise.BITWISE,
            None,
            ("dp0",),
            (written,),
            tensors,
            {},
            {"dp0": sha},
        )

    def disk(self) -> Sources:
        return Sources([TierSource(Place("disk", self.tier, Traits(frozenset())))])

    def memory(self) -> Sources:
        return Sources([SlotSource("memory", lambda piece, xxh3: self._views.get((piece, xxh3)))])

    def into_live(self, sources: Sources, threads: int) -> None:
        targets = {key: (tensor, key) for key, tensor in self.live.items()}
        restore.fill(sources, self.manifest, targets, threads=threads)

    def into_fresh(self, sources: Sources) -> None:
        restore.read_tensors(sources, self.manifest, {key: key for key in self.live})

    def copied(self) -> None:
        for key, tensor in self.live.items():
            tensor.copy_(self.slot[key])

    def safetensors(self) -> None:
        found = load_file(self.path)
        for key, tensor in self.live.items():
            tensor.copy_(found[key])

    def whole(self) -> bool:
        return all(torch.equal(tensor, self.slot[key]) for key, tensor in self.live.items())


def report(size_mib: int, rounds: int, directory: Path) -> dict[str, Any]:
    subject = Subject(size_mib, directory)
    work: dict[str, Callable[[], None]] = {
        "memcpy": subject.copied,
        "safetensors_load_file_and_copy": subject.safetensors,
        "disk_1_thread": lambda: subject.into_live(subject.disk(), 1),
        "disk_2_threads": lambda: subject.into_live(subject.disk(), 2),
        "disk_into_fresh": lambda: subject.into_fresh(subject.disk()),
        "memory_1_thread": lambda: subject.into_live(subject.memory(), 1),
        "memory_2_threads": lambda: subject.into_live(subject.memory(), 2),
        "memory_into_fresh": lambda: subject.into_fresh(subject.memory()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, call in work.items():
            for tensor in subject.live.values():
                tensor.zero_()
            started = time.perf_counter()
            call()
            if number:  # the first round touches what is touched for the first time
                seconds[name].append(time.perf_counter() - started)
            if not name.endswith("fresh") and not subject.whole():
                raise SystemExit(f"{name} did not restore what was saved")
    median = {name: statistics.median(each) for name, each in seconds.items()}
    best = {name: min(each) for name, each in seconds.items()}
    return {
        "bytes": sum(tensor.nbytes for tensor in subject.live.values()),
        "seconds": median,
        "best_seconds": best,
        "ratios": ratios(median),
        "best_ratios": ratios(best),
    }


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    copy, others = seconds["memcpy"], seconds["safetensors_load_file_and_copy"]
    return {
        "warm disk / safetensors load_file and copy (target 1)": seconds["disk_2_threads"] / others,
        "memory / memcpy, one thread (target 1.7)": seconds["memory_1_thread"] / copy,
        "memory / memcpy, two threads (target 1.3)": seconds["memory_2_threads"] / copy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="on the disk to measure; default: the temporary directory")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=args.dir) as scratch:
        print(json.dumps(report(args.size_mib, args.rounds, Path(scratch)), indent=2))


if __name__ == "__main__":
    main()
