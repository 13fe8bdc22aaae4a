"""What saving costs a training loop, over the whole path: stage, write, commit, restore.

A plain loop over ``--size-mib`` of parameters and AdamW state saves ``--saves`` times through
``DurableSession``; between the saves the same process measures the machine: a copy of the same bytes in
memory and a plain ``write + fsync`` of them to the same directory. Figures come as ratios to those.
Prints one JSON document.

    python tests/bench/save_path.py [--size-mib 1024] [--saves 4] [--dir DIR] [--only-write]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from durable_core import DurableSession
from durable_core.engine.staged import StagedShard
from durable_core.state.staging import SlotPool
from durable_core.tier.posix import PosixTier

MIB = 1 << 20
NEVER = 1_000_000_000
RATES = (("memcpy", "memcpy_s"), ("raw_write", "raw_write_fsync_s"), ("durable", "durable_lag_s"))


def state_of(size_mib: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A module and an AdamW whose state together hold about ``size_mib``, in tensors of 4 MiB."""
    elements = size_mib * MIB // 4 // 3  # parameter, first and second moment
    width = min(elements, MIB)
    module = nn.ParameterList(torch.randn(width) for _ in range(max(1, elements // width)))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    advance(module, optimizer)
    return module, optimizer


def advance(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step that changes every byte, at the price of one pass over the state."""
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def tensors_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [parameter.data for parameter in module.parameters()] + list(filter(torch.is_tensor, states))


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def memory_mib(field: str) -> float:
    """``VmRSS`` (now) or ``VmHWM`` (peak) of this process, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class Machine:
    """The yardsticks: a copy of the state in memory, a raw durable write of its bytes."""

    def __init__(self, tensors: list[torch.Tensor], directory: Path) -> None:
        self.tensors, self.directory = tensors, directory
        self.copies = [torch.zeros_like(tensor) for tensor in tensors]
        self.memcpy_s: list[float] = []
        self.raw_write_s: list[float] = []

    def measure(self) -> None:
        self.memcpy_s.append(timed(self._copy))
        self.raw_write_s.append(timed(self._write))

    def _copy(self) -> None:
        for copy, tensor in zip(self.copies, self.tensors, strict=True):
            copy.copy_(tensor)

    def _write(self) -> None:
        path = self.directory / "raw"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for copy in self.copies:
                view = copy.view(-1).numpy().data.cast("B")
                while view:
                    view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        path.unlink()


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def raw_write(path: Path, views: list[memoryview], flags: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o600)
    try:
        for view in views:
            for begin in range(0, len(view), 16 * MIB):
                os.write(fd, view[begin : begin + 16 * MIB])
        os.fsync(fd)
    finally:
        os.close(fd)
    path.unlink()


def writing(size_mib: int, rounds: int, base: Path) -> dict[str, Any]:
    """One shard from a staged slot to the disk, turn about with the same bytes written raw."""
    module, optimizer = state_of(size_mib)
    tensors = {str(index): tensor for index, tensor in enumerate(tensors_of(module, optimizer))}
    pool = SlotPool(1)
    pool.prepare(tensors)
    slot = pool.acquire()
    assert slot is not None
    staged = slot.stage(tensors)
    whole = [view[: len(view) // 4096 * 4096] for view in staged.gather(staged.slices)]
    tier, key = PosixTier(base / "shards"), "checkpoints/bench/shard-dp0.safetensors"

    def ours() -> None:
        source = StagedShard(staged, "dp0")
        source.write(tier, key, staged.slices, {})
        source.describe()  # the digests, made beside the write
        tier.delete(key)

    work: dict[str, Callable[[], None]] = {
        "raw_direct": lambda: raw_write(base / "raw", whole, os.O_DIRECT),
        "raw_buffered": lambda: raw_write(base / "raw", whole, 0),
        "shard": ours,
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    cpu: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, call in work.items():
            before = cpu_s()
            seconds[name].append(timed(call))
            cpu[name].append(cpu_s() - before)
    gb = staged.nbytes / 1e9
    wall = {name: statistics.median(each) for name, each in seconds.items()}
    used = {name: statistics.median(each) / gb for name, each in cpu.items()}
    return {
        "bytes": staged.nbytes,
        "seconds": wall,
        "best_seconds": {name: min(each) for name, each in seconds.items()},
        "cpu_s_per_gb": used,
        "ratios": {
            "speed of a shard, digests included / raw O_DIRECT and fsync (target 0.8)": (
                statistics.median(a / b for a, b in zip(seconds["raw_direct"], seconds["shard"], strict=True))
            ),
            "speed of a shard / buffered write and fsync": wall["raw_buffered"] / wall["shard"],
            "cpu of a shard in s per GB (target 0.4)": used["shard"],
        },
    }


def drop_cache(root: Path) -> None:
    """Ask the kernel to forget the files under ``root`` (they are clean: everything was fsynced)."""
    for path in root.rglob("*.safetensors"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def saving(size_mib: int, saves: int, base: Path) -> dict[str, Any]:
    module, optimizer = state_of(size_mib)
    tensors = tensors_of(module, optimizer)
    nbytes = sum(tensor.nbytes for tensor in tensors)
    machine = Machine(tensors, base)
    machine.measure()
    del machine.memcpy_s[:], machine.raw_write_s[:]  # pages were touched for the first time

    reset_peak()
    before = memory_mib("VmRSS")
    stalls, lags, step_s = [], [], []
    root = base / "run"
    with DurableSession.open(
        str(root), state={"model": module, "optimizer": optimizer}, every_n_steps=NEVER
    ) as run:
        run.flush()
        for _ in range(saves):
            advance(module, optimizer)
            step_s.append(timed(run.step))
            stalls.append(timed(run.save))
            lags.append(timed(run.flush))
            machine.measure()
        extra = memory_mib("VmHWM") - before
    return {
        "state_bytes": nbytes,
        "stall_first_s": stalls[0],
        "stall_steady_s": statistics.median(stalls[1:]),
        "step_without_save_s": statistics.median(step_s),
        "durable_lag_s": statistics.median(lags),
        "memcpy_s": statistics.median(machine.memcpy_s),
        "raw_write_fsync_s": statistics.median(machine.raw_write_s),
        "peak_extra_mib": extra,
        "root": str(root),
    }


def restoring(size_mib: int, root: Path) -> dict[str, float]:
    """In a process of its own: a fresh model opens the run."""
    module, optimizer = state_of(size_mib)
    started = time.perf_counter()
    with DurableSession.open(str(root), state={"model": module, "optimizer": optimizer}):
        return {"seconds": time.perf_counter() - started}


def report(size_mib: int, saves: int, base: Path) -> dict[str, Any]:
    written = writing(size_mib, saves, base)
    figures = saving(size_mib, saves, base)
    figures["write"] = written
    root = Path(figures.pop("root"))
    for name, prepare in (("restore_hot_s", lambda _: None), ("restore_cold_s", drop_cache)):
        prepare(root)
        command = [sys.executable, __file__, "--size-mib", str(size_mib), "--restore", str(root)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures[name] = json.loads(done.stdout)["seconds"]
    gib = figures["state_bytes"] / (1 << 30)
    figures["ratios"] = {
        "stall_over_memcpy": figures["stall_steady_s"] / figures["memcpy_s"],
        "stall_target_s": 1.3 * figures["memcpy_s"] + 0.005,
        "stall_within_target": figures["stall_steady_s"] <= 1.3 * figures["memcpy_s"] + 0.005,
        "durable_write_over_raw": figures["raw_write_fsync_s"] / figures["durable_lag_s"],
        "peak_extra_over_state": figures["peak_extra_mib"] / (figures["state_bytes"] / MIB),
    }
    figures["rates_gib_per_s"] = {name: gib / figures[key] for name, key in RATES}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="on the disk to measure; default: the temporary directory")
    parser.add_argument("--only-write", action="store_true", help="measure the writing of a shard, no run")
    parser.add_argument("--restore", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.restore:
        print(json.dumps(restoring(args.size_mib, args.restore)))
        return
    with tempfile.TemporaryDirectory(prefix="bench-", dir=args.dir) as scratch:
        if args.only_write:
            print(json.dumps(writing(args.size_mib, args.saves, Path(scratch)), indent=2))
            return
        print(json.dumps(report(args.size_mib, args.saves, Path(scratch)), indent=2))


if __name__ == "__main__":
    main()
