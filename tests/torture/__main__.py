"""``python -m tests.torture``: hundreds of real SIGKILLs over Lightning runs, each history checked bitwise.

The matrix (workers 0/2, accumulation 1/4, one and two processes) is shared out between ``--jobs``
processes. Prints one JSON report; exits 1 when anything at all differed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.torture.campaign import MATRIX, Tally, torment


def shares(kills: int, cold: int) -> list[tuple[int, int]]:
    """(kills, cold starts among them) for each cell of the matrix, as even as can be."""
    cells = len(MATRIX)
    return [((kills + i) // cells, (cold + i) // cells) for i in range(cells)]


def work(args: argparse.Namespace, base: Path) -> Tally:
    """The cells of one job."""
    tally = Tally()
    for index, (kills, cold) in list(enumerate(shares(args.kills, args.cold)))[args.job :: args.jobs]:
        cell = MATRIX[index]
        started = time.monotonic()
        home = base / cell.name
        home.mkdir(parents=True)
        part = torment(cell, home, kills=kills, cold=cold, seed=args.seed + index, long=index in (1, 6))
        tally.merge(part)
        took = time.monotonic() - started
        print(
            f"{cell.name}: {part.kills.total()} kills, {len(part.faults)} faults, {took:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return tally


def spread(args: argparse.Namespace, base: Path) -> Tally:
    """One process per job: the fork server of each is its own, and no thread shares it."""
    outs = [base / f"job{job}.json" for job in range(args.jobs)]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.torture", "--kills", str(args.kills), "--cold", str(args.cold),
             "--seed", str(args.seed), "--jobs", str(args.jobs), "--job", str(job), "--base", str(base),
             "--out", str(out)]
        )
        for job, out in enumerate(outs)
    ]  # fmt: skip
    tally = Tally()
    for job, out in zip(jobs, outs, strict=True):
        if job.wait() not in (0, 1):
            tally.faults.append(f"a job of the campaign ended with {job.returncode}")
        else:
            tally.merge(from_json(json.loads(out.read_text())))
    return tally


def from_json(document: dict[str, Any]) -> Tally:
    kills, by_cell = Counter(document.pop("kills")), Counter(document.pop("by_cell"))
    del document["kills_total"]
    return Tally(kills=kills, by_cell=by_cell, **document)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--cold", type=int, default=24, help="of these, over new interpreters")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--base", type=Path, help="keep every run here; default: a directory that is removed")
    parser.add_argument("--out", type=Path, help="write the report here as well")
    args = parser.parse_args()

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as scratch:
        base = args.base or Path(scratch)
        base.mkdir(parents=True, exist_ok=True)
        tally = work(args, base) if args.job is not None else spread(args, base)
    if args.job is None and tally.kills.total() < args.kills:
        tally.faults.append(f"only {tally.kills.total()} of {args.kills} kills fell")
    document = tally.to_json()
    if args.out:
        args.out.write_text(json.dumps(document) + "\n")
    if args.job is None:
        print(json.dumps({**document, "seconds": round(time.monotonic() - started)}, indent=2))
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
