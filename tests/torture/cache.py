"""``python -m tests.torture.cache``: processes that share one data cache are killed at random instants.

Workers open, check and hold objects, from a source that is sometimes wrong, in a cache that holds a third
of them. Whatever is killed: nothing wrong is ever seen, nothing in use goes away, the bound holds, and
afterwards nothing is locked or left over. Prints one JSON report; exits 1 on any fault.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from durable_core.data.cache import DataCache, Pinned
from durable_core.errors import CacheFullError, DigestMismatchError

OBJECTS, SMALLEST, LARGEST = 24, 20_000, 200_000
MOST = OBJECTS * (SMALLEST + LARGEST) // 6
WORKERS = 3


def content(number: int) -> bytes:
    draw = random.Random(number)
    return draw.randbytes(draw.randrange(SMALLEST, LARGEST))


def work(directory: str, seed: int) -> None:
    """For ever. A fault ends it with a traceback."""
    draw, cache, held = random.Random(seed), DataCache(directory, MOST), deque[tuple[Pinned, bytes]]()
    known = {number: content(number) for number in range(OBJECTS)}
    while True:
        data = known[draw.randrange(OBJECTS)]
        wrong = draw.random() < 0.2

        def fetch(data: bytes = data, wrong: bool = wrong) -> Iterator[bytes]:
            for at in range(0, len(data), 8192):
                chunk = data[at : at + 8192]
                yield bytes(len(chunk)) if wrong and draw.random() < 0.1 else chunk

        try:
            pinned = cache.open("sha256:" + hashlib.sha256(data).hexdigest(), len(data), fetch, name="x")
        except (CacheFullError, DigestMismatchError):
            pass
        else:
            held.append((pinned, data))
        for each, expected in held:
            assert each.path.read_bytes() == expected, f"{each.path} is not what it was"
        while len(held) > draw.randrange(4):
            held.popleft()[0].close()


def campaign(kills: int, seed: int, directory: Path) -> dict[str, object]:
    draw, faults, seeds = random.Random(seed), list[str](), iter(range(seed, sys.maxsize))
    cache = DataCache(directory, MOST)

    def start() -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "tests.torture.cache",
            "--work",
            str(directory),
            "--seed",
            str(next(seeds)),
        ]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    workers = [start() for _ in range(WORKERS)]
    most = 0
    for _ in range(kills):
        until = time.monotonic() + draw.uniform(0.15, 0.6)
        while time.monotonic() < until:
            usage = cache.usage()
            most = max(most, usage.nbytes + usage.filling)
            time.sleep(0.005)
        at = draw.randrange(WORKERS)
        faults += end(workers[at])
        workers[at] = start()
    for worker in workers:
        faults += end(worker)
    faults += settled(directory)
    if most > MOST:
        faults.append(f"{most} bytes where {MOST} may be")
    return {"kills": kills, "seed": seed, "most_bytes": most, "max_bytes": MOST, "faults": faults}


def end(worker: subprocess.Popen[str]) -> list[str]:
    worker.send_signal(signal.SIGKILL)
    _, told = worker.communicate(timeout=60)
    return [] if worker.returncode == -signal.SIGKILL else [told[-2000:]]


def settled(directory: Path) -> list[str]:
    """What must hold when nobody is left."""
    faults = []
    objects = list((directory / "objects").glob("*/*"))
    for path in objects:
        if hashlib.sha256(path.read_bytes()).hexdigest() != path.name:
            faults.append(f"{path} is published and wrong")
    if (total := sum(path.stat().st_size for path in objects)) > MOST:
        faults.append(f"{total} bytes are kept where {MOST} may be")
    cache = DataCache(directory, MOST)
    if left := list((directory / "fills").iterdir()):
        faults.append(f"left over: {left}")
    if usage := cache.evict().objects:
        faults.append(f"{usage} objects are in use by nobody")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.seed)
    with tempfile.TemporaryDirectory() as directory:
        report = campaign(given.kills, given.seed, Path(directory))
    print(json.dumps(report))
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
