"""What the data plane costs; prints one JSON document. CPU seconds, so that a busy machine matters less.

Each pair of figures comes from alternating runs in one process, and the least of the runs is taken.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from durable_core.data import DurableLoader, FullPermutation

BATCH = 32
RUNS = 5


class Bytes(Dataset[torch.Tensor]):
    """Samples of 4 KiB that cost nothing to make."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sample = torch.zeros(4096, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


def cpu() -> float:
    """CPU seconds of this process and its finished children."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def spent(action: Callable[[], Any]) -> float:
    before = cpu()
    action()
    return cpu() - before


def pass_over(loader: Any) -> None:
    durable = isinstance(loader, DurableLoader)
    for step, _ in enumerate(loader):
        if durable:
            loader.acknowledge(step=step)


def per_batch(workers: int, batches: int) -> dict[str, float]:
    """CPU microseconds per batch: a plain loader, ours, and ours when told that nothing is drawn."""
    data = Bytes(BATCH * batches)
    makers: dict[str, Callable[[], Any]] = {
        "plain": lambda: DataLoader(data, BATCH, shuffle=True, num_workers=workers),
        "durable": lambda: DurableLoader(data, BATCH, seed=1, num_workers=workers),
        "durable_no_rng": lambda: DurableLoader(data, BATCH, seed=1, num_workers=workers, sample_rng=False),
    }
    least = dict.fromkeys(makers, float("inf"))
    for _ in range(RUNS):
        for name, make in makers.items():
            least[name] = min(least[name], spent(lambda make=make: pass_over(make())))  # type: ignore[misc]
    figures = {f"{name}_us": round(value / batches * 1e6, 1) for name, value in least.items()}
    figures["added_us"] = round(figures["durable_us"] - figures["plain_us"], 1)
    figures["added_us_per_sample"] = round(figures["added_us"] / BATCH, 2)
    figures["added_share_no_rng"] = round(figures["durable_no_rng_us"] / figures["plain_us"] - 1, 3)
    return figures


def permutation(size: int) -> dict[str, float]:
    """Nanoseconds of CPU per id, in windows and in batches of 32 as the loader takes them."""
    count = 1 << 18
    order = FullPermutation(size, dataset_id="bench", seed=1)
    start = size // 2

    def whole() -> None:
        order.ids(0, start, start + count)

    def batches() -> None:
        for k in range(start, start + count, BATCH):
            order.ids(1, k, k + BATCH)

    figures = {"windows_ns": whole, "batches_ns": batches}
    return {name: round(min(map(spent, [run] * RUNS)) / count * 1e9, 1) for name, run in figures.items()}


def resume(workers: int) -> dict[str, float]:
    """Milliseconds (wall) from a new loader to its first batch, at position 10^9 of 2 * 10^9."""
    state = None
    walls = []
    for _ in range(RUNS):
        loader = DurableLoader(Bytes(2 * 10**9), BATCH, seed=1, num_workers=workers)
        state = {**loader.state_dict(), "batch": 10**9 // BATCH}
        began = time.perf_counter()
        loader.load_state_dict(state)
        next(iter(loader))
        walls.append(time.perf_counter() - began)
    return {"first_batch_ms": round(statistics.median(walls) * 1e3, 2), "state_bytes": len(json.dumps(state))}


def main() -> None:
    torch.set_num_threads(1)
    small = "--quick" in sys.argv[1:]
    sizes = {"1e6": 10**6, "1e9": 10**9, "1e12": 10**12}
    figures = {
        "batch_of_32x4KiB": {
            "workers_0": per_batch(0, 200 if small else 2000),
            "workers_2": per_batch(2, 200 if small else 2000),
        },
        "permutation": {name: permutation(size) for name, size in sizes.items()},
        "resume_at_1e9": {"workers_0": resume(0), "workers_2": resume(2)},
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
