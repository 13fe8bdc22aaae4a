"""Does anything grow? Hundreds of saves of a small state; memory, files and threads at the start and the end.

Every save is made durable before the next, so nothing is skipped; the slots are those of a memory tier.
Prints one JSON document: for resident memory, open files, threads, mappings and slots of this process the
median over the first quarter of the saves (from the tenth on: caches are full by then) and over the last.

    python -m tests.bench.growth [--saves 500] [--size-mib 16]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from durable_core import DurableSession
from durable_core.session.places import Memory, Tiers
from tests.bench.rivals.meters import memory_mib
from tests.bench.rivals.workload import Workload

SETTLED = 10
NEVER = 1_000_000_000


def reading(shared: Path) -> dict[str, float]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "rss_mib": memory_mib("VmRSS"),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "mappings": len(maps),
        "slots": sum(path.is_file() for path in shared.rglob("*")),
    }


def saving(size_mib: int, saves: int, base: Path, shared: Path) -> dict[str, Any]:
    work = Workload(size_mib, 1)
    readings, took = [], []
    state = {"model": work.model, "optimizer": work.optimizer}
    tiers = Tiers(memory=Memory(directory=shared))
    with DurableSession.open(base / "run", state=state, every_n_steps=NEVER, tiers=tiers) as run:
        for _ in range(saves):
            work.optimizer.step()
            run.step()
            began = time.perf_counter()
            run.save(wait=True)
            took.append(time.perf_counter() - began)
            readings.append({**reading(shared), "save_s": took[-1]})
        status = run.status()
    settled = readings[min(SETTLED, saves // 4) :]
    quarter = max(1, len(settled) // 4)
    figures = {name: quartiles(name, settled, quarter) for name in settled[0]}
    return {
        "saves": saves,
        "committed": status.committed,
        "skipped": status.skipped,
        "state_bytes": work.nbytes,
        **figures,
        "grown_mib_per_save": figures["rss_mib"]["grown"] / max(1, len(settled) - quarter),
    }


def quartiles(name: str, readings: list[dict[str, float]], quarter: int) -> dict[str, float]:
    first = statistics.median(one[name] for one in readings[:quarter])
    last = statistics.median(one[name] for one in readings[-quarter:])
    return {"first": first, "last": last, "grown": last - first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--saves", type=int, default=500)
    parser.add_argument("--size-mib", type=int, default=16)
    parser.add_argument("--dir", type=Path, help="default: the temporary directory")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=args.dir) as scratch,
        tempfile.TemporaryDirectory(prefix="durable-bench-", dir="/dev/shm") as shared,
    ):
        print(json.dumps(saving(args.size_mib, args.saves, Path(scratch), Path(shared)), indent=2))


if __name__ == "__main__":
    main()
