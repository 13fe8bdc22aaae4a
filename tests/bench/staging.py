"""The stall of one save: what ``SlotPool`` costs the training thread, beside a plain memory copy.

The copy is measured in the same run, turn about with the staging, so that the ratio means something
on a busy machine. Three states: one large tensor per 16 MiB, 2,000 small tensors, and both.

    python tests/bench/staging.py [--size-mib 1024] [--rounds 9]

Prints one JSON document: seconds are medians (``first`` is one measurement), sizes are bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from durable_core.state.capture import capture
from durable_core.state.staging import SlotPool
from durable_core.state.tree import flatten

MIB = 1 << 20
TARGET_RATIO, TARGET_MS = 1.15, 2.0


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def states(size_mib: int) -> dict[str, dict[str, torch.Tensor]]:
    large = {f"large/{i:04}": torch.rand(16 * MIB // 4) for i in range(max(1, size_mib // 16))}
    small = {f"small/{i:04}": torch.rand(1024) for i in range(2000)}
    return {"large": large, "small": small, "both": {**large, **small}}


def stage(pool: SlotPool, tensors: dict[str, torch.Tensor]) -> None:
    slot = pool.acquire()
    assert slot is not None
    slot.stage(tensors).release()


def measure(tensors: dict[str, torch.Tensor], rounds: int) -> dict[str, Any]:
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    source = torch.ones(nbytes, dtype=torch.uint8)
    target = torch.zeros_like(source)  # touched: the copy is into warm pages, like a reused slot
    pool = SlotPool(2)
    prepare = seconds(lambda: pool.prepare(tensors))
    first = seconds(lambda: stage(pool, tensors))
    copies, stalls = [], []
    for _ in range(rounds):
        copies.append(seconds(lambda: target.copy_(source)))
        stalls.append(seconds(lambda: stage(pool, tensors)))
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
    args = parser.parse_args()
    document: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "target": f"stall <= {TARGET_RATIO} x memcpy + {TARGET_MS} ms",
        "capture": taking_apart(args.rounds),
    }
    for name, tensors in states(args.size_mib).items():
        document[name] = measure(tensors, args.rounds)
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
