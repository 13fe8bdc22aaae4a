"""What a save writes when only part of the state changed: one line of JSON.

Dense AdamW (everything changes), an adapter on a frozen base, and an embedding of which about 1 % of the rows
are looked up at each step (uniform ids, fp32, two moments that change with the rows). For each: bytes of a
full save, bytes of each later save, CPU and wall seconds per save, and whether the last one restores bitwise.

    python tests/bench/incremental.py [--mib 256] [--saves 24]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from incremental_subject import Run, same

from durable_core.tier.posix import PosixTier

State = dict[str, Tensor]
DIM = 256


def dense(nbytes: int) -> tuple[State, Callable[[State], None]]:
    n = nbytes // 4 // 3 // 8
    state = {f"layer{i}.{part}": torch.randn(n) for i in range(8) for part in ("w", "m", "v")}
    return state, lambda state: [tensor.add_(1.0) for tensor in state.values()] and None


def adapter(nbytes: int) -> tuple[State, Callable[[State], None]]:
    n = nbytes // 4 // 32
    state = {f"base{i}": torch.randn(n) for i in range(32)}
    state |= {f"lora{i}.{part}": torch.randn(n // 128) for i in range(32) for part in ("w", "m", "v")}

    def step(state: State) -> None:
        for key, tensor in state.items():
            if key.startswith("lora"):
                tensor.add_(1.0)

    return state, step


def sparse(nbytes: int) -> tuple[State, Callable[[State], None]]:
    rows = nbytes // 4 // 3 // DIM
    state = {f"emb.{part}": torch.randn(rows, DIM) for part in ("w", "m", "v")}
    generator = torch.Generator().manual_seed(0)

    def step(state: State) -> None:
        ids = torch.randint(0, rows, (rows // 100,), generator=generator)
        for tensor in state.values():
            tensor[ids] += 1.0

    return state, step


def measure(make: Callable[[int], tuple[State, Callable[[State], None]]], nbytes: int, saves: int) -> object:
    state, step = make(nbytes)
    with tempfile.TemporaryDirectory() as root:
        run = Run(PosixTier(root), twins=False)
        full = run.save(state).bytes_written
        written, cpu, wall = [], [], []
        for _ in range(saves):
            step(state)
            cpu_before, wall_before = time.process_time(), time.perf_counter()
            last = run.save(state)
            cpu.append(time.process_time() - cpu_before)
            wall.append(time.perf_counter() - wall_before)
            written.append(last.bytes_written)
        whole = same(run.read(last.c), state)
        assert run.known is not None
        manifest = run.known.manifest
        run.close()
    return {
        "full_bytes": full,
        "written_mean": statistics.fmean(written) / full,
        "written_median": statistics.median(written) / full,
        "written_max": max(written) / full,
        "stored_over_live": sum(info.nbytes for info in manifest.objects) / manifest.logical_bytes,
        "cpu_seconds": statistics.median(cpu),
        "wall_seconds": statistics.median(wall),
        "restores_bitwise": whole,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--saves", type=int, default=24)
    options = parser.parse_args()
    nbytes = options.mib << 20
    kinds = {"dense": dense, "adapter": adapter, "sparse": sparse}
    figures = {name: measure(make, nbytes, options.saves) for name, make in kinds.items()}
    print(json.dumps({"bench": "incremental", "state_mib": options.mib, **figures}))


if __name__ == "__main__":
    main()
