"""The stall of one save: what ``SlotPool`` costs the training thread, beside a plain memory copy.

The copy is measured in the same run, turn about with the staging, so that the ratio means something
on a busy machine. Three states: one large tensor per 16 MiB, 2,000 small tensors, and both; in anonymous
slots and in slots in shared memory. ``background``: the large state copied while a step computes.

    python tests/bench/staging.py [--size-mib 1024] [--rounds 9] [--step-s 1.0]

Prints one JSON document: seconds are medians (``first`` is one measurement), sizes are bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from durable_core.state.capture import capture
from durable_core.state.staging import Slot, SlotMemory, SlotPool
from durable_core.state.tree import flatten

MIB = 1 << 20
TARGET_RATIO, TARGET_MS, TARGET_BACKGROUND = 1.1, 2.0, 0.1


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def states(size_mib: int) -> dict[str, dict[str, torch.Tensor]]:
    large = {f"large/{i:04}": torch.rand(16 * MIB // 4) for i in range(max(1, size_mib // 16))}
    small = {f"small/{i:04}": torch.rand(1024) for i in range(2000)}
    return {"large": large, "small": small, "both": {**large, **small}}


def acquire(pool: SlotPool) -> Slot:
    slot = pool.acquire()
    assert slot is not None
    return slot


def stage(pool: SlotPool, tensors: dict[str, torch.Tensor]) -> None:
    acquire(pool).stage(tensors).release()


def steps(seconds_each: float) -> Callable[[], None]:
    """Work of about that long, the same each time: matrix products, as a forward and backward pass."""
    a, b = torch.rand(768, 768), torch.rand(768, 768)
    once = statistics.median(seconds(lambda: a @ b) for _ in range(20))
    count = max(1, round(seconds_each / once))

    def step() -> None:
        for _ in range(count):
            a @ b

    return step


def background(tensors: dict[str, torch.Tensor], rounds: int, step_s: float) -> dict[str, Any]:
    """What is left of the stall when a step lies between ``stage`` and the guard, and what the step pays."""
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    source = torch.ones(nbytes, dtype=torch.uint8)
    target = torch.zeros_like(source)
    pool, stable, step = SlotPool(2), frozenset(tensors), steps(step_s)
    pool.prepare(tensors)
    copies, alone, with_copy, stalls, compared = [], [], [], [], []
    for number in range(rounds + 2):
        copies.append(seconds(lambda: target.copy_(source)))
        alone.append(seconds(step))
        begin = time.perf_counter()
        staged = acquire(pool).stage(tensors, stable=stable)
        stall = time.perf_counter() - begin
        with_copy.append(seconds(step))
        stall += seconds(staged.settle)
        (compared if number < 2 else stalls).append(stall)  # the first two are compared byte for byte
        staged.release()
    copy, stall = statistics.median(copies), statistics.median(stalls)
    return {
        "bytes": nbytes,
        "memcpy_s": copy,
        "stall_s": stall,
        "stall_over_memcpy": stall / copy,
        "compared_stall_over_memcpy": statistics.median(compared) / copy,
        "step_s": statistics.median(alone),
        "step_with_copy_over_step": statistics.median(with_copy) / statistics.median(alone),
        "within_target": stall <= TARGET_BACKGROUND * copy,
    }


def measure(tensors: dict[str, torch.Tensor], rounds: int, memory: SlotMemory | None) -> dict[str, Any]:
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    source = torch.ones(nbytes, dtype=torch.uint8)
    target = torch.zeros_like(source)  # touched: the copy is into warm pages, like a reused slot
    pool = SlotPool(2, memory)
    prepare = seconds(lambda: pool.prepare(tensors))
    first = seconds(lambda: stage(pool, tensors))
    copies, stalls = [], []
    for _ in range(rounds):
        copies.append(seconds(lambda: target.copy_(source)))
        stalls.append(seconds(lambda: stage(pool, tensors)))
    pool.close(remove=True)
    copy, stall = statistics.median(copies), statistics.median(stalls)
    return {
        "tensors": len(tensors),
        "bytes": nbytes,
        "memcpy_s": copy,
        "memcpy_gb_per_s": nbytes / copy / 1e9,
        "prepare_s": prepare,
        "first_stall_s": first,
        "steady_stall_s": stall,
        "steady_over_memcpy": stall / copy,
        "first_over_steady": first / stall,
        "beyond_memcpy_ms": (stall - copy) * 1e3,
        "within_target": stall <= TARGET_RATIO * copy + TARGET_MS / 1e3,
    }


def taking_apart(rounds: int) -> dict[str, Any]:
    """The other part of the stall: turning live objects into a document and a map of tensors."""
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(340)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(4, 32)).sum().backward()
    optimizer.step()
    objects = {"model": model, "optimizer": optimizer}
    captures = [seconds(lambda: capture(objects)) for _ in range(rounds)]
    tree = capture(objects)
    flattens = [seconds(lambda: flatten(tree, prefix="state")) for _ in range(rounds)]
    return {
        "tensors": len(flatten(tree, prefix="state").tensors),
        "capture_s": statistics.median(captures),
        "flatten_s": statistics.median(flattens),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--step-s", type=float, default=1.0)
    args = parser.parse_args()
    document: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "target": f"stall <= {TARGET_RATIO} x memcpy + {TARGET_MS} ms",
        "capture": taking_apart(args.rounds),
    }
    directory = Path(tempfile.mkdtemp(prefix="durable-bench-", dir="/dev/shm"))
    try:
        memory = SlotMemory("bench", directory=directory)
        for name, tensors in states(args.size_mib).items():
            document[name] = measure(tensors, args.rounds, None)
            document[f"{name}, shared memory"] = measure(tensors, args.rounds, memory)
    finally:
        shutil.rmtree(directory)
    document["background"] = background(states(args.size_mib)["large"], args.rounds, args.step_s)
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
