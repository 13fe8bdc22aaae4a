"""``python -m tests.torture.tiers``: workers, hosts and the cluster lost over and over, each history checked.

A run keeps a snapshot of every step in its host's memory and in another host's, checkpoints on its disk and
in a bucket. A *worker* loss is a SIGKILL of one or of all workers; a *host* loss takes all of them and the
host's memory; a *cluster* loss takes everything but the bucket. After each the run must begin from where it
should (this host's memory, the other's, the bucket), at most one step back after a worker's death, bitwise
the uninterrupted run. Prints one JSON report; exits 1 when anything at all differed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.torture.subject import Cell
from tests.torture.tiers_campaign import MATRIX, TierTally, torment
from tests.torture.tiers_places import KINDS, Kind


def share(args: argparse.Namespace, index: int) -> dict[Kind, int]:
    """Kills of each kind that fall to one cell, as even as can be."""
    places = len(MATRIX) * len(args.kinds)
    return {
        kind: (args.kills + index * len(args.kinds) + place) // places
        for place, kind in enumerate(args.kinds)
    }


def work(args: argparse.Namespace, base: Path) -> TierTally:
    cell = MATRIX[args.cell]
    home = base / cell.name
    home.mkdir(parents=True)
    started = time.monotonic()
    tally = torment(
        cell, home, share(args, args.cell), seed=args.seed + args.cell, remote=args.remote == "s3"
    )
    took = time.monotonic() - started
    line = f"{cell.name}: {tally.kills.total()} kills, {len(tally.faults)} faults, {took:.0f} s"
    print(line, file=sys.stderr, flush=True)
    return tally


def spread(args: argparse.Namespace, base: Path) -> TierTally:
    """One process per cell: each has its own fork server, S3 server and agent."""
    tally = TierTally()
    jobs = [(cell, base / f"cell{index}.json") for index, cell in enumerate(MATRIX)]
    for job, (cell, out) in zip(list(started(args, base, jobs)), jobs, strict=True):
        status = job.wait()
        if not out.exists():
            tally.faults.append(f"{cell.name}: the campaign itself ended with {status}")
        else:
            tally.merge(json.loads(out.read_text()))
    if tally.kills.total() < args.kills:
        tally.faults.append(f"only {tally.kills.total()} of {args.kills} kills fell")
    return tally


def started(
    args: argparse.Namespace, base: Path, jobs: list[tuple[Cell, Path]]
) -> Iterator[subprocess.Popen[bytes]]:
    for index, (_, out) in enumerate(jobs):
        yield subprocess.Popen(
            [sys.executable, "-m", "tests.torture.tiers", "--kills", str(args.kills), "--kinds", *args.kinds,
             "--seed", str(args.seed), "--remote", args.remote, "--base", str(base), "--cell", str(index),
             "--out", str(out)]
        )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--remote", choices=("s3", "directory"), default="s3", help="what the root is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cell", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--base", type=Path, help="keep every run here; default: a directory that is removed")
    parser.add_argument("--out", type=Path, help="write the report here as well")
    args = parser.parse_args()

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
        base = args.base or Path(scratch)
        base.mkdir(parents=True, exist_ok=True)
        tally = spread(args, base) if args.cell is None else work(args, base)
    document = vars(tally)
    if args.out:
        args.out.write_text(json.dumps(document) + "\n")
    if args.cell is None:
        document = {
            "kills_total": tally.kills.total(),
            **document,
            "seconds": round(time.monotonic() - began),
        }
        print(json.dumps(document, indent=2))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
