"""What one save costs a training: ours beside the peers', on the same state, in the same run.

Every repetition of every variant is a process of its own, and they take turns (A B C A B C …). A training
with AdamW over ``--size-mib`` of state, whose compute takes ``--step-seconds`` on one thread, saves
``--saves`` times; a write that outlasts its window is given time before the next save, so no variant
suffers from its own backlog. Prints one JSON document:

    stall_s      what the training thread waits for: the call, and whatever holds up the next updates
                 (``first``: of the first save in the loop, ``steady``: median of the others)
    slowed_s     what the following steps took longer than steps with no write in flight, beyond that
    slowdown     those steps over quiet steps, as a factor
    durable_s    from the boundary until the bytes are fsynced; ``fsync`` says by whom
    cpu_s_per_gb CPU of one save in all threads and processes, the work of the steps left out, by 1e9 bytes
    extra_mib    peak memory of the training process over that before (helpers: their whole peak)

Figures are medians over repetitions; ratios are taken within a repetition first.

    python -m tests.bench.peers [--size-mib 64] [--reps 3] [--variants durable_session,safetensors]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.bench.rivals.child import YARDSTICK
from tests.bench.rivals.meters import Plan
from tests.bench.rivals.table import VARIANTS, Variant
from tests.bench.rivals.workload import matmuls_in

ROOT = Path(__file__).parents[2]
LIMIT_S = 900
RESOLUTION_S = 1e-4  # a stall below it is noise: ratios count it as this
RESOLUTION_CPU = 0.01  # seconds per GB, likewise

Figures = dict[str, Any]


def lived(name: str, plan: Plan, scratch: Path) -> Figures:
    """The figures of one process, or what it died of. Its files are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=scratch) as home:
        base, out = Path(home) / "saved", Path(home) / "figures.json"
        base.mkdir()
        request = {"variant": name, "plan": asdict(plan), "base": str(base), "out": str(out)}
        call = [sys.executable, "-m", "tests.bench.rivals.child", json.dumps(request)]
        try:
            done = subprocess.run(
                call, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no end after {LIMIT_S} s"}
        if done.returncode != 0:
            return {"error": f"exit {done.returncode}", "stderr": done.stderr[-2000:]}
        figures: Figures = json.loads(out.read_text())
        return figures


def condensed(figures: Figures) -> Figures:
    """One repetition: first and steady figures of its saves."""
    if "saves" not in figures:
        return figures
    gigabytes = figures["state_bytes"] / 1e9
    first, *others = figures["saves"] or [{}]
    steady = {name: statistics.median(save[name] for save in others or [first]) for name in first}
    return {
        "saves": len(figures["saves"]),
        "lost": len(figures["lost"]),
        "step_s": figures["step_s"],
        "setup_s": figures["setup_s"],
        "extra_mib": figures["extra_mib"],
        "helpers_mib": figures["helpers_mib"],
        "waited_s": figures["waited_s"],
        "first": first,
        "steady": steady,
        "cpu_s_per_gb": steady.get("cpu_s", 0.0) / gigabytes,
    }


def median_of(documents: list[Figures]) -> Figures:
    """Medians of every number, over repetitions that came through."""
    result: Figures = {}
    for name, value in documents[0].items():
        values = [document[name] for document in documents]
        if isinstance(value, dict):
            result[name] = median_of(values)
        else:
            result[name] = statistics.median(values)
    return result


def summary(name: str, variant: Variant, repetitions: list[Figures]) -> Figures:
    good = [one for one in repetitions if one.get("first")]
    document: Figures = {"kind": variant.kind, "fsync": variant.fsync, "repetitions": repetitions}
    return {**(median_of(good) if good else {"error": f"{name}: no repetition came through"}), **document}


def stall(figures: Figures) -> float:
    return max(RESOLUTION_S, float(figures["steady"]["stall_s"]))


#: name -> (of which kinds the best counts, what is compared); the ratio is that best over ours.
COMPARED: dict[str, tuple[str, Callable[[Figures], float]]] = {
    "best_sync_stall_over_ours": ("sync", stall),
    "best_async_stall_over_ours": ("async", stall),
    "best_async_slowdown_over_ours": ("async", lambda one: float(one["steady"]["slowdown"])),
    "best_async_durable_over_ours": ("async", lambda one: float(one["steady"]["durable_s"])),
    "best_async_cpu_over_ours": ("async", lambda one: max(RESOLUTION_CPU, one["cpu_s_per_gb"])),
}


def ratios(rounds: list[dict[str, Figures]]) -> Figures:
    """Within each round, then the median over rounds, for each of our variants."""
    result: Figures = {}
    for ours in (name for name, variant in VARIANTS.items() if variant.kind == "ours"):
        found: dict[str, list[float]] = {}
        for one in rounds:
            mine = one.get(ours, {})
            if not mine.get("first"):
                continue
            for name, (kind, measure) in COMPARED.items():
                peers = [
                    measure(other)
                    for key, other in one.items()
                    if key in VARIANTS and VARIANTS[key].kind == kind and other.get("first")
                ]
                if peers:
                    found.setdefault(name, []).append(min(peers) / measure(mine))
            for name, value in against_machine(mine, one.get(YARDSTICK, {})).items():
                found.setdefault(name, []).append(value)
        if found:
            result[ours] = {name: statistics.median(values) for name, values in found.items()}
    return result


def against_machine(mine: Figures, machine: Figures) -> dict[str, float]:
    result = {"first_over_steady_stall": float(mine["first"]["stall_s"]) / stall(mine)}
    if "memcpy_s" in machine:
        result["stall_over_memcpy"] = float(mine["steady"]["stall_s"]) / machine["memcpy_s"]
        result["raw_write_over_durable"] = machine["direct_write_fsync_s"] / mine["steady"]["durable_s"]
    return result


def measure(names: list[str], plan: Plan, reps: int, base: Path | None) -> Figures:
    present = [name for name in names if name == YARDSTICK or VARIANTS[name].installed]
    rounds: list[dict[str, Figures]] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=base) as scratch:
        for number in range(reps):
            rounds.append({})
            for name in present:
                print(f"round {number + 1} of {reps}: {name}", file=sys.stderr, flush=True)
                rounds[-1][name] = condensed(lived(name, plan, Path(scratch)))
    machine = [one[YARDSTICK] for one in rounds if "memcpy_s" in one.get(YARDSTICK, {})]
    return {
        YARDSTICK: median_of(machine) if machine else None,
        "ratios": ratios(rounds),
        "variants": {
            name: summary(name, VARIANTS[name], [one[name] for one in rounds])
            for name in present
            if name != YARDSTICK
        },
        "not_measured": {
            name: f"{VARIANTS[name].needs} is not installed" for name in names if name not in present
        },
    }


def chosen(text: str | None) -> list[str]:
    names = [YARDSTICK, *VARIANTS] if text is None else text.split(",")
    unknown = [name for name in names if name != YARDSTICK and name not in VARIANTS]
    if unknown:
        raise SystemExit(f"no variant {', '.join(unknown)}; there are {', '.join([YARDSTICK, *VARIANTS])}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=64)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--every", type=int, default=6, help="steps between saves, at least 3")
    parser.add_argument("--step-seconds", type=float, default=0.2, help="compute of one step")
    parser.add_argument("--variants", help="names with commas between; default: all")
    parser.add_argument("--dir", type=Path, help="on the disk to measure; default: the temporary directory")
    args = parser.parse_args()
    names = chosen(args.variants)
    torch.set_num_threads(1)
    plan = Plan(args.size_mib, matmuls_in(args.step_seconds), max(3, args.every), args.saves)
    document = {"plan": {**asdict(plan), "reps": args.reps}, **measure(names, plan, args.reps, args.dir)}
    print(json.dumps(document, indent=2))
    broken = [name for name, one in document["variants"].items() if "error" in one]
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
