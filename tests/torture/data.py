"""``python -m tests.torture.data``: kill schedules over every data pipeline, checked batch by batch.

Each schedule is a run that is dropped up to eleven times at random points, with other workers and replicas
after every restart, in one process; ``--sigkills`` real ones go through a whole training (``data_runs.py``).
Prints one JSON report; exits 1 when anything differed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.torture.data_lives import refer, suffer
from tests.torture.data_runs import Tally, harass
from tests.torture.pipelines import PIPELINES


def campaign(schedules: int, seed: int, only: str = "") -> dict[str, Any]:
    """``schedules`` histories dealt out over the pipelines."""
    lives: Counter[str] = Counter()
    faults: list[str] = []
    handed = undone = 0
    chosen = [pipeline for pipeline in PIPELINES if only in pipeline.name]
    for index, pipeline in enumerate(chosen):
        begun = time.monotonic()
        reference = refer(pipeline)
        for number in range(index, schedules, len(chosen)):
            history = suffer(pipeline, reference, seed + number)
            lives[pipeline.name] += history.lives - 1  # the last one lives to the end
            handed, undone = handed + history.handed, undone + history.undone
            faults += [f"{pipeline.name} seed {seed + number}: {fault}" for fault in history.faults]
        print(
            f"{pipeline.name}: {lives[pipeline.name]} kills, {time.monotonic() - begun:.0f} s",
            file=sys.stderr,
        )
    return {
        "schedules": schedules,
        "kills": dict(lives),
        "kills_total": lives.total(),
        "batches_checked": handed,
        "batches_undone_by_kills": undone,
        "faults": faults,
    }


def killed_for_real(kills: int, seed: int, only: str = "") -> Tally:
    """Real SIGKILLs dealt out over the pipelines, five or so to a run."""
    chosen = [pipeline for pipeline in PIPELINES if only in pipeline.name]
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="durable-data-") as scratch:
        for index, pipeline in enumerate(chosen):
            share = (kills + index) // len(chosen)
            if share:
                harass(pipeline, Path(scratch) / pipeline.name, share, seed, tally)
                print(f"{pipeline.name}: {tally.kills[pipeline.name]} SIGKILLs", file=sys.stderr)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--sigkills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="pipelines whose names hold this")
    asked = parser.parse_args()
    report = campaign(asked.schedules, asked.seed, asked.only)
    real = killed_for_real(asked.sigkills, asked.seed, asked.only)
    report["sigkills"] = {"total": real.kills.total(), **vars(real)}
    print(json.dumps(report, indent=2))
    return bool(report["faults"] or real.faults)


if __name__ == "__main__":
    sys.exit(main())
