"""``make bench``: runs every benchmark beside this file and collects what they print, as one JSON document.

A benchmark is a script ``tests/bench/*.py`` that prints one JSON document on stdout. Figures are for reading,
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
LIMIT_S = 900


def machine() -> dict[str, Any]:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gib": round(pages * size / (1 << 30), 1),
        "load": os.getloadavg()[0],
    }


def piece(script: Path, arguments: list[str]) -> dict[str, Any]:
    """What one benchmark printed, or what it died of."""
    call = [sys.executable, str(script), *arguments]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=LIMIT_S, check=False)
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

    scripts = [path for path in sorted(HERE.glob("*.py")) if path.name != Path(__file__).name]
    document: dict[str, Any] = {"machine": machine()}
    for script in scripts:
        if args.only and script.stem not in args.only:
            continue
        print(f"{script.stem} ...", file=sys.stderr, flush=True)
        sizes = {"save_path": (64, args.size_mib), "staging": (args.size_mib,)}.get(script.stem, ())
        for size in sizes:
            document[f"{script.stem}_{size}_mib"] = piece(script, ["--size-mib", str(size)])
        if not sizes:
            document[script.stem] = piece(script, [])
    text = json.dumps(document, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    return 1 if any("error" in part for part in document.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
