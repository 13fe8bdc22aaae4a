"""What an order costs per id; prints one JSON document. CPU time, so that a busy machine matters less.

Every figure is the least of several runs, which alternate between all that is compared. An order is read
as a loader reads it: in batches, along a run of positions that starts anywhere. The time of
``torch.randperm`` is that of making the whole epoch's permutation, as samplers do, divided by its size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from durable_core.data.order import BlockPermutation, FullPermutation, Order
from durable_core.data.order.buffered import BufferedSequence

SIZES = (10**5, 10**7, 10**9, 10**12)
BATCH = 1024
TARGET_NS = 50.0


Job = Callable[[], float]
"""Runs once; CPU nanoseconds per id."""


def cpu_ns(action: Callable[[], object]) -> int:
    begun = time.process_time_ns()
    action()
    return time.process_time_ns() - begun


def reading(order: Order, count: int) -> Job:
    """About ``count`` ids from a third of an epoch on, each time of another epoch, begun before."""
    start = order.size // 3
    stop = min(start + count, order.size)
    epochs = itertools.count()

    def read(epoch: int) -> None:
        for at in range(start, stop, BATCH):
            order.ids(epoch, at, min(at + BATCH, stop))

    def run() -> float:
        epoch = next(epochs)
        order.ids(epoch, 0, 1)
        return cpu_ns(lambda: read(epoch)) / (stop - start)

    return run


def first_batch(order: Order) -> Job:
    """32 ids in the middle of an epoch never seen: what a restart waits for (not per id)."""
    epochs = itertools.count()
    middle = order.size // 2
    return lambda: cpu_ns(lambda: order.ids(next(epochs), middle, middle + 32))


def buffered(size: int, count: int) -> Job:
    sequence = BufferedSequence(np.full(1000, size // 1000), buffer=1000, dataset_id="bench", seed=1)

    def read() -> None:
        state = sequence.start(0)
        for _ in range(0, count, BATCH):
            _, state = sequence.take(state, BATCH)

    return lambda: cpu_ns(read) / count


def randperm(size: int) -> Job:
    return lambda: cpu_ns(lambda: torch.randperm(size)) / size


def memory(make: Callable[[], Order]) -> int:
    """Most bytes held while reading 32 ids in the middle, the order itself included."""
    tracemalloc.start()
    order = make()
    order.ids(0, order.size // 2, order.size // 2 + 32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def blocks(size: int, objects: int) -> BlockPermutation:
    return BlockPermutation(np.full(objects, size // objects), window=8, dataset_id="bench", seed=1)


def least(jobs: dict[str, Job], runs: int) -> dict[str, float]:
    """Of ``runs`` rounds through all of them."""
    rounds = [{name: job() for name, job in jobs.items()} for _ in range(runs)]
    return {name: min(each[name] for each in rounds) for name in jobs}


def measure(count: int, runs: int) -> dict[str, Any]:
    orders: dict[str, Callable[[], Order]] = {
        **{f"full {n:.0e}": partial(FullPermutation, n, dataset_id="bench", seed=1) for n in SIZES},
        **{
            f"block {n:.0e}": partial(blocks, n, o)
            for n, o in ((10**7, 10**4), (10**9, 10**5), (10**12, 10**5))
        },
    }
    jobs = {name: reading(make(), count) for name, make in orders.items()}
    jobs |= {"buffered 1e+07": buffered(10**7, count), "randperm 1e+07": randperm(10**7)}
    per_id = least(jobs, runs)
    firsts = least({name: first_batch(make()) for name, make in orders.items()}, runs)
    full = [ns for name, ns in per_id.items() if name.startswith("full")]
    return {
        "ns_per_id": {name: round(ns, 1) for name, ns in per_id.items()},
        "first_batch_ms": {name: round(ns / 1e6, 3) for name, ns in firsts.items()},
        "peak_mib": {name: round(memory(make) / 2**20, 2) for name, make in orders.items()},
        "full_most_over_least": round(max(full) / min(full), 2),
        "full_over_randperm": round(per_id["full 1e+07"] / per_id["randperm 1e+07"], 2),
        "target_ns": TARGET_NS,
        "within_target": max(full) <= TARGET_NS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=400_000, help="ids read in one run")
    parser.add_argument("--runs", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    json.dump(measure(chosen.count, chosen.runs), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
