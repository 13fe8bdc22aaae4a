"""What durability costs the LoRA recipe: bytes a checkpoint, and time; and whether a kill changes a bit.

``examples/accelerate_lora.py`` is started as its first lines say, as processes of their own:

    bytes   a run that saves every ``--every`` steps: what each checkpoint after the first had to write, and
            how many of them wrote a second copy of something that never changes
    exact   the same run, killed (SIGKILL) ``--kills`` times at instants drawn from the first one's duration:
            whether the adapter is the same file
    time    with and without, ``--repeats`` of each, alternating, as often saved as ``examples/durable.yaml``
            says: seconds (wall, and of the processor), medians and their ratio

Prints one JSON document.

    python tests/bench/lora.py [--every 5] [--kills 3] [--repeats 3] [--skip time] [-- --epochs 2 --limit 60]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "accelerate_lora.py"
LAUNCH = (str(Path(sys.executable).parent / "accelerate"), "launch")
PLAIN = (*LAUNCH, str(SCRIPT))
DURABLE = (*LAUNCH, "-m", "accelerate_durable", "--durable", str(EXAMPLES / "durable.yaml"), str(SCRIPT))
ROOT, ADAPTER = "runs/lora", "runs/lora-adapter/adapter_model.safetensors"


@dataclass(frozen=True)
class Ended:
    """``wall_s``: from start to exit; ``cpu_s``: user and system time of it and all it has waited for."""

    code: int
    wall_s: float
    cpu_s: float


class Bench:
    """``arguments``: the recipe's. Every process is a group of its own, and is gone at the end."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = tuple(arguments)

    def run(
        self,
        line: Sequence[str],
        home: Path,
        environment: Mapping[str, str] | None = None,
        kill_after_s: float | None = None,
    ) -> Ended:
        home.mkdir(exist_ok=True)
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **(environment or {})}
        begun = time.monotonic()
        with (home / "output").open("ab") as output:
            process = subprocess.Popen(
                [*line, *self.arguments], cwd=home, env=environ, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        try:
            if kill_after_s is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(kill_after_s)
                _kill(process)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            _kill(process)
        wall_s = time.monotonic() - begun
        return Ended(process.returncode, wall_s, used.ru_utime + used.ru_stime)

    def finished(self, *args: Any, **options: Any) -> Ended:
        """As ``run``; ``SystemExit`` with the end of its output if it failed."""
        ended = self.run(*args, **options)
        if ended.code:
            raise SystemExit((args[1] / "output").read_text()[-4000:])
        return ended

    # --- the parts ----------------------------------------------------------------------------------

    def bytes_and_exact(self, home: Path, every: int, kills: int, seed: int) -> dict[str, Any]:
        environment = {"ACCELERATE_DURABLE_EVERY_N_STEPS": str(every), "ACCELERATE_DURABLE_BACKLOG": "delay"}
        whole = self.finished(DURABLE, home / "whole", environment)
        draw = random.Random(seed)
        killed: list[float] = []
        for _ in range(kills):
            seconds = draw.uniform(0.2, 0.9) * whole.wall_s
            if self.run(DURABLE, home / "killed", environment, seconds).code < 0:
                killed.append(round(seconds, 2))
        self.finished(DURABLE, home / "killed", environment)
        digests = [
            hashlib.sha256((home / name / ADAPTER).read_bytes()).hexdigest() for name in ("whole", "killed")
        ]
        exact = {
            "kills_after_s": killed,
            "generations": _listed(home / "killed")["generation"],
            "identical": digests[0] == digests[1],
            "adapter": digests[0],
        }
        return {"bytes": _bytes(_listed(home / "whole")["checkpoints"]), "exact": exact}

    def time(self, home: Path, repeats: int) -> dict[str, Any]:
        found: dict[str, list[Ended]] = {"plain": [], "durable": []}
        for number in range(repeats):
            pair = [("plain", PLAIN), ("durable", DURABLE)]
            for name, line in pair if number % 2 == 0 else reversed(pair):
                found[name].append(self.finished(line, home / f"{name}{number}"))
        out: dict[str, Any] = {}
        for what in ("wall_s", "cpu_s"):
            seconds = {name: [round(getattr(each, what), 2) for each in runs] for name, runs in found.items()}
            medians = {name: statistics.median(values) for name, values in seconds.items()}
            ratio = round(medians["durable"] / medians["plain"], 4)
            out[what] = {**seconds, "medians": medians, "ratio": ratio}
        return out


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of the group have ended
        os.killpg(process.pid, signal.SIGKILL)


def _listed(home: Path) -> Any:
    line = [sys.executable, "-m", "durable_core.cli", "ls", ROOT, "--json"]
    return json.loads(subprocess.run(line, cwd=home, capture_output=True, check=True).stdout)


def _bytes(checkpoints: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of what was written after the first checkpoint. ``second_copies``: how many also copied something of
    the frozen base once more, so that not all of them rest on a single copy of it."""
    first, *later = checkpoints
    full = max(each["bytes"] for each in checkpoints)
    written = sorted(each["bytes_written"] for each in later)
    figures = {"median": statistics.median(written), "mean": statistics.mean(written), "max": written[-1]}
    return {
        "checkpoints": len(checkpoints),
        "full": full,
        "first_written": first["bytes_written"],
        "later_written": {name: round(value) for name, value in figures.items()},
        "of_a_full_one": {name: f"1/{full / value:.1f}" for name, value in figures.items()},
        "second_copies": sum(each > 1.2 * written[0] for each in written),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints, for bytes and exact")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the instants of the kills")
    parser.add_argument("--repeats", type=int, default=3, help="runs with, and as many without, for time")
    parser.add_argument("--skip", choices=("bytes", "time"), help="bytes: and exact")
    parser.add_argument("recipe", nargs="*", help="after --: arguments of the recipe")
    args = parser.parse_args()
    bench = Bench(args.recipe)
    document: dict[str, Any] = {"recipe": args.recipe, "every": args.every, "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="lora-") as scratch:
        home = Path(scratch)
        if args.skip != "bytes":
            document |= bench.bytes_and_exact(home, args.every, args.kills, args.seed)
        if args.skip != "time":
            document["time"] = bench.time(home, args.repeats)
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
