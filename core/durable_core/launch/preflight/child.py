"""L5. An experiment that needs torch, in a process of its own: ``python -m ...preflight.child WHAT ...``.

Prints one JSON object on its last line: what it measured, or ``{"error": why}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from durable_core.clock import SystemClock

_SIZE = 192
#: Bytes of the sum that is timed.
_PAYLOAD = 8 << 20


def main(arguments: Sequence[str]) -> dict[str, Any]:
    what, *rest = arguments
    try:
        if what == "device":
            return device(int(rest[0]), rest[1])
        return collective(int(rest[0]), int(rest[1]), rest[2], float(rest[3]))
    except (RuntimeError, dist.DistError, OSError) as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def device(count: int, kind: str) -> dict[str, Any]:
    """``count`` devices of ``kind`` (``""``: accelerators where there are any) multiply as they should."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind = kind or ("cuda" if there else "cpu")
    if kind == "cpu":
        wrong = self_test(torch.device("cpu"))
        return {"error": wrong} if wrong else {"device": "cpu", "count": count}
    if there < count:
        return {"error": f"{there} of {count} {kind} devices are there"}
    faults = {n: self_test(torch.device(kind, n)) for n in range(count)}
    wrong = "; ".join(f"{kind}:{n}: {why}" for n, why in faults.items() if why)
    return {"error": wrong} if wrong else {"device": torch.cuda.get_device_name(0), "count": count}


def self_test(
    where: torch.device, multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.matmul
) -> str:
    """What is wrong with a product whose result is known: ``""`` when nothing is.

    Small whole numbers, whose sums of products are exact in 32-bit floats, in whatever order; the reference
    is computed in integers.
    """
    row = torch.arange(_SIZE).reshape(-1, 1)
    a, b = (row * 3 + row.T * 5) % 17 - 8, (row * 7 + row.T * 2) % 13 - 6
    expected = torch.stack([(each.unsqueeze(1) * b).sum(0) for each in a])
    found = multiply(a.to(where, torch.float32), b.to(where, torch.float32)).cpu()
    wrong = int((found != expected.to(torch.float32)).sum())
    return f"{wrong} of {_SIZE * _SIZE} products are wrong" if wrong else ""


def collective(rank: int, world: int, store: str, timeout_s: float) -> dict[str, Any]:
    """Every member adds its rank + 1; then a larger sum is timed."""
    clock, timeout = SystemClock(), timedelta(seconds=timeout_s)
    began = clock.monotonic()
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout
    )
    try:
        total = torch.tensor([float(rank + 1)])
        dist.all_reduce(total)
        if total.item() != world * (world + 1) / 2:
            return {"error": f"the sum over {world} members is {total.item():g}"}
        seconds = clock.monotonic() - began
        payload = torch.ones(_PAYLOAD // 4)
        dist.barrier()
        began = clock.monotonic()
        dist.all_reduce(payload)
        return {"seconds": seconds, "bytes_per_second": _PAYLOAD / max(clock.monotonic() - began, 1e-9)}
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")
