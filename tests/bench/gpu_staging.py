"""The stall of one save of a state on a CUDA device, beside the copy itself. Needs a GPU; refuses without.

The copy of the same bytes into pinned memory is measured in the same run, turn about with the staging.
``eager``: all is copied before ``stage`` returns. ``background``: copied on the side stream while a step of
matrix products runs, with the guard before the (pretended) update; the step is also measured alone.
Every staged byte is compared with the state once.

    python tests/bench/gpu_staging.py [--size-mib 4096] [--rounds 9] [--step-s 0.5]

Prints one JSON document: seconds are medians, sizes are bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from durable_core.state.memory import writable
from durable_core.state.staging import Slot, SlotMemory, SlotPool, Staged

MIB = 1 << 20


def seconds(work: Callable[[], object]) -> float:
    """Until the device has done it too."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def acquire(pool: SlotPool) -> Slot:
    slot = pool.acquire()
    assert slot is not None
    return slot


def steps(seconds_each: float) -> Callable[[], None]:
    a, b = torch.rand(4096, 4096, device="cuda"), torch.rand(4096, 4096, device="cuda")
    once = statistics.median(seconds(lambda: a @ b) for _ in range(20))
    count = max(1, round(seconds_each / once))

    def step() -> None:
        for _ in range(count):
            torch.mm(a, b)

    return step


def check(staged: Staged, tensors: dict[str, torch.Tensor]) -> None:
    for piece in staged.slices:
        offset, length = piece.offsets[0], piece.shape[0]
        live = tensors[piece.key][offset : offset + length].cpu()
        if staged.view(piece) != writable(live):
            sys.exit(f"FAILED: the staged bytes of {piece} are not those of the state")


def background_round(
    pool: SlotPool, tensors: dict[str, torch.Tensor], step: Callable[[], None]
) -> tuple[float, float, float, Staged]:
    """Host stall, seconds of the step with the copy behind it, and what the device waits at the guard."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    staged = acquire(pool).stage(tensors, stable=frozenset(tensors))
    stall = time.perf_counter() - begin
    beside = seconds(step)
    begin = time.perf_counter()
    staged.settle()
    stall += time.perf_counter() - begin
    torch.cuda.synchronize()
    return stall, beside, time.perf_counter() - begin, staged


def measure(
    tensors: dict[str, torch.Tensor], memory: SlotMemory, rounds: int, step_s: float
) -> dict[str, Any]:
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    pinned = {key: torch.empty(tensor.shape, pin_memory=True) for key, tensor in tensors.items()}

    def copy_all() -> None:
        for key, tensor in tensors.items():
            pinned[key].copy_(tensor, non_blocking=True)

    pool, step = SlotPool(2, memory), steps(step_s)
    prepare = seconds(lambda: pool.prepare(tensors))
    copies, eager, alone, stalls, besides, waits, compared = [], [], [], [], [], [], []
    for number in range(rounds + 2):
        copies.append(seconds(copy_all))
        eager.append(seconds(lambda: acquire(pool).stage(tensors).release()))
        alone.append(seconds(step))
        stall, beside, wait, staged = background_round(pool, tensors, step)
        if number < 2:
            compared.append(stall)  # the first two are compared byte for byte
            check(staged, tensors)
        else:
            stalls.append(stall)
            besides.append(beside)
            waits.append(wait)
        staged.release()
    pool.close(remove=True)
    copy = statistics.median(copies)
    return {
        "device": torch.cuda.get_device_name(),
        "bytes": nbytes,
        "pinned_copy_s": copy,
        "pinned_copy_gb_per_s": nbytes / copy / 1e9,
        "prepare_s": prepare,
        "eager_stall_over_copy": statistics.median(eager) / copy,
        "background_stall_over_copy": statistics.median(stalls) / copy,
        "background_compared_stall_over_copy": statistics.median(compared) / copy,
        "guard_until_device_idle_s": statistics.median(waits),
        "step_s": statistics.median(alone),
        "step_with_copy_over_step": statistics.median(besides) / statistics.median(alone),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--step-s", type=float, default=0.5)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this measures copies from a CUDA device, and torch sees none here; nothing was measured")
    count = max(1, args.size_mib // 16)
    tensors = {f"w/{i:05}": torch.rand(16 * MIB // 4, device="cuda") for i in range(count)}
    directory = Path(tempfile.mkdtemp(prefix="durable-bench-", dir="/dev/shm"))
    try:
        document = measure(tensors, SlotMemory("bench", directory=directory), args.rounds, args.step_s)
    finally:
        shutil.rmtree(directory)
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
