"""What a batch costs: CPU beside torch's own loaders, without and with random draws; prints JSON.

``python tests/bench/loader_cost.py [--rounds 30] [--workers 0 2] [--profile]``. Linux.

All loaders of a comparison are open at once and take turns, a block of batches each, so that what else the
machine does meets them alike. CPU is that of this process and of the loader's own workers. A ratio is
the median, over rounds, of the blocks of one round against each other.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import json
import multiprocessing
import os
import pstats
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

from durable_core.data import DurableLoader, sample_rng

BATCH = 32
BLOCK = 100  # batches
SIZE = 1 << 20
CONSTANT = torch.zeros(4096, dtype=torch.uint8)
RECORDS = np.zeros((4096, 2048), dtype=np.uint16)  # 16 MiB: token records

#: what a sample draws, in a plain loader from the process's streams
DRAWS: dict[str, Callable[[], Any]] = {
    "python": random.random,
    "numpy": np.random.random_sample,
    "torch": lambda: torch.rand(()),
}
#: and through the handle, for which a plain loader has nothing
HANDLES: dict[str, Callable[[], Any]] = {
    "python": lambda: sample_rng().python.random(),
    "numpy": lambda: sample_rng().numpy.random(),
    "torch": lambda: torch.rand((), generator=sample_rng().torch),
}


KINDS: dict[str, Callable[[int], Any]] = {
    "int": int,
    "constant": lambda index: CONSTANT,
    "record": lambda index: torch.from_numpy(RECORDS[index % len(RECORDS)]),
}


class Samples(Dataset[Any]):
    """Kinds: "int" (the index), "constant" (4 KiB, always the same tensor), "record" (4 KiB of an array)."""

    def __init__(self, draw: Callable[[], Any] | None = None, kind: str = "constant") -> None:
        self.draw = draw
        self.make = KINDS[kind]

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        if self.draw is not None:
            self.draw()
        return self.make(index)


class Turns:
    """One loader among several: takes blocks of batches without end, and knows the CPU they took."""

    def __init__(self, make: Callable[[], Any]) -> None:
        others = set(multiprocessing.active_children())
        self.loader = make()
        self.batches = self._endless()
        self.block(2)  # starts the workers
        self.workers = [c.pid for c in multiprocessing.active_children() if c not in others]
        self.block(BLOCK)

    def _endless(self) -> Iterator[Any]:
        step = itertools.count()
        acknowledge = getattr(self.loader, "acknowledge", None)
        while True:
            for batch in self.loader:
                if acknowledge is not None:
                    acknowledge(step=next(step))
                yield batch

    def block(self, count: int) -> None:
        for _ in itertools.islice(self.batches, count):
            pass
        if isinstance(self.loader, DurableLoader):
            self.loader.drain_rows()  # as a commit does

    def spend(self) -> float:
        """Microseconds of CPU per batch."""
        before = self._cpu()
        self.block(BLOCK)
        return (self._cpu() - before) / BLOCK / 1e3

    def _cpu(self) -> int:
        theirs = (Path(f"/proc/{pid}/schedstat").read_text().split()[0] for pid in self.workers)
        return time.process_time_ns() + sum(map(int, theirs))


def compared(makers: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """The first one is what the others are measured against."""
    turns = {name: Turns(make) for name, make in makers.items()}
    spent: dict[str, list[float]] = {name: [] for name in makers}
    for number in range(rounds):
        for name in list(turns)[:: 1 if number % 2 else -1]:
            spent[name].append(turns[name].spend())
    base = spent[next(iter(makers))]
    return {
        name: {
            "us_per_batch": round(statistics.median(values), 1),
            "least_us": round(min(values), 1),
            "ratio": round(statistics.median(v / b for v, b in zip(values, base, strict=True)), 3),
            "added_us_per_sample": round(
                statistics.median(v - b for v, b in zip(values, base, strict=True)) / BATCH, 2
            ),
        }
        for name, values in spent.items()
    }


def measured(workers: int, rounds: int, *, draws: bool) -> dict[str, Any]:
    def plain(data: Samples) -> DataLoader[Any]:
        return DataLoader(data, BATCH, shuffle=True, num_workers=workers)

    def durable(data: Samples, *, sample_rng: bool = True) -> DurableLoader:
        return DurableLoader(data, BATCH, seed=1, num_workers=workers, sample_rng=sample_rng)

    found: dict[str, Any] = {}
    for kind in ("int", "constant", "record"):
        data = Samples(kind=kind)
        makers: dict[str, Callable[[], Any]] = {
            "plain": partial(plain, data),
            "stateful": partial(StatefulDataLoader, data, BATCH, shuffle=True, num_workers=workers),
            "durable": partial(durable, data),
            "durable_without_rng": partial(durable, data, sample_rng=False),
        }
        found[kind] = compared(makers, rounds)
    for name, draw in DRAWS.items() if draws else ():
        makers = {
            "plain": partial(plain, Samples(draw)),
            "durable": partial(durable, Samples(draw)),
            "handle": partial(durable, Samples(HANDLES[name])),
        }
        found[f"{name} drawn"] = compared(makers, rounds)
    return found


def profiled() -> None:
    turn = Turns(lambda: DurableLoader(Samples(), BATCH, seed=1))
    profile = cProfile.Profile()
    profile.runcall(turn.block, 20 * BLOCK)
    pstats.Stats(profile).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--no-draws", action="store_true", help="only samples that draw nothing")
    parser.add_argument("--profile", action="store_true", help="where the time goes, without workers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.profile:
        profiled()
        return
    result = {
        f"workers={count}": measured(count, options.rounds, draws=not options.no_draws)
        for count in options.workers
    }
    print(json.dumps({"batch": BATCH, "cpus": os.cpu_count(), "load": os.getloadavg(), **result}, indent=1))


if __name__ == "__main__":
    main()
