"""``make bench``: runs every benchmark beside this file and collects what they print, as one JSON document.

A benchmark is a module ``tests/bench/*.py`` that prints one JSON document on stdout. Figures are for reading,
never for passing: only a benchmark that breaks makes this exit 1.

    python tests/bench/bench.py [--size-mib 1024] [--only save_path] [--out bench.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIMIT_S = 3600


def calls(name: str, size_mib: int) -> dict[str, list[str]]:
    """Name in the document -> arguments, of every run of one benchmark."""
    sized = {f"{name}_{size}_mib": ["--size-mib", str(size)] for size in (64, size_mib)}
    if name == "save_path":
        return sized
    if name in ("staging", "peers"):
        label = f"{name}_{size_mib}_mib"
        return {label: sized[label] + (["--step-seconds", "1"] if name == "peers" else [])}
    return {name: []}


def machine() -> dict[str, Any]:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gib": round(pages * size / (1 << 30), 1),
        "load": os.getloadavg()[0],
    }


def piece(name: str, arguments: list[str]) -> dict[str, Any]:
    """What one benchmark printed, or what it died of."""
    call = [sys.executable, "-m", f"tests.bench.{name}", *arguments]
    try:
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no end after {LIMIT_S} s"}
    if done.returncode != 0:
        return {"error": f"exit {done.returncode}", "stderr": done.stderr[-3000:]}
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": "printed no JSON document", "stdout": done.stdout[-3000:]}
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=1024, help="state of the whole-path benchmark")
    parser.add_argument("--only", action="append", help="name of a benchmark; may be repeated")
    parser.add_argument("--out", type=Path, help="write the document here as well")
    args = parser.parse_args()

    names = [path.stem for path in sorted(HERE.glob("*.py")) if path != Path(__file__)]
    document: dict[str, Any] = {"machine": machine()}
    for name in names:
        if name.startswith("test_") or (args.only and name not in args.only):
            continue
        for label, arguments in calls(name, args.size_mib).items():
            print(f"{label} ...", file=sys.stderr, flush=True)
            document[label] = piece(name, arguments)
    text = json.dumps(document, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    return 1 if any("error" in part for part in document.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
