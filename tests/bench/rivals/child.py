"""One repetition of one variant, in an interpreter of its own; told what by one JSON argument.

The request is ``{"variant", "plan", "base", "out"}``; the figures go to the file ``out``.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tests.bench.rivals.meters import MIB, Plan, Tape, memory_mib, reset_peak
from tests.bench.rivals.table import VARIANTS
from tests.bench.rivals.workload import Workload

YARDSTICK = "yardstick"
DIRECT_CHUNK = 4 * MIB


def measured(name: str, plan: Plan, base: Path) -> dict[str, Any]:
    variant = VARIANTS[name]
    import_module(variant.needs)  # its time and memory are no part of a save
    work, tape = Workload(plan.size_mib, plan.matmuls), Tape(plan)
    reset_peak()
    before = memory_mib("VmRSS")
    began = time.perf_counter()
    variant.run(work, plan, base, tape)
    return {
        "state_bytes": work.nbytes,
        "setup_s": tape.steps[0].wall["begin"] - began,
        "extra_mib": memory_mib("VmHWM") - before,
        **tape.figures(),
    }


def yardstick(plan: Plan, base: Path, rounds: int = 3) -> dict[str, Any]:
    """What the machine can do with the same bytes: copy them in memory, write them raw, fsynced."""
    tensors = list(Workload(plan.size_mib, 1).tensors())
    copies = [torch.zeros_like(tensor) for tensor in tensors]
    nbytes = sum(tensor.nbytes for tensor in tensors)

    def copy() -> None:
        for target, source in zip(copies, tensors, strict=True):
            target.copy_(source)

    copied, written = [], []
    with mmap.mmap(-1, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE) as buffer:
        buffer.write(b"\x5a" * len(buffer))
        for number in range(rounds):
            copied.append(_seconds(copy))
            path = base / f"raw{number}"
            written.append(_seconds(partial(_write_direct, path, buffer)))
            path.unlink()
    return {
        "state_bytes": nbytes,
        "memcpy_s": statistics.median(copied),
        "direct_write_fsync_s": statistics.median(written),
    }


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _write_direct(path: Path, buffer: mmap.mmap) -> None:
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        fd = os.open(path, how | os.O_DIRECT, 0o600)
    except OSError:  # a file system that has no such writes
        fd = os.open(path, how, 0o600)
    view = memoryview(buffer)
    try:
        for begin in range(0, len(buffer), DIRECT_CHUNK):
            os.pwrite(fd, view[begin : begin + DIRECT_CHUNK], begin)
        os.fsync(fd)
    finally:
        view.release()
        os.close(fd)


def main() -> None:
    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    plan, base = Plan(**request["plan"]), Path(request["base"])
    name = request["variant"]
    figures = yardstick(plan, base) if name == YARDSTICK else measured(name, plan, base)
    Path(request["out"]).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
