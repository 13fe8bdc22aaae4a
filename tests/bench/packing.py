"""What planning packs costs, how full they are and how large the state is; prints one JSON document.

CPU seconds of this process, the least of alternating runs. Where ``trl`` is installed its packing of the same
documents (all of them at once, tokens and all) is timed beside it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_core.data.order import FullPermutation
from durable_core.data.packing import PackedSequence, Packing, Piece, assemble
from durable_core.data.sequence import OrderedSequence

BATCH = 32
RUNS = 3
MEDIAN, SIGMA = 400, 1.0  # tokens, log-normal
LENGTH = 2048
POLICIES = {
    "greedy_cut": Packing(LENGTH),
    "greedy_whole": Packing(LENGTH, split=False),
    "best_fit_4": Packing(LENGTH, policy="best_fit", window=4),
    "best_fit_16": Packing(LENGTH, policy="best_fit", window=16),
    "best_fit_64": Packing(LENGTH, policy="best_fit", window=64),
    "best_fit_256": Packing(LENGTH, policy="best_fit", window=256),
}


def spent(action: Callable[[], Any]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before


def documents(count: int) -> npt.NDArray[np.int64]:
    normal = np.random.default_rng(0).normal(np.log(MEDIAN), SIGMA, count)
    return np.maximum(1, np.exp(normal)).astype(np.int64)


def sequence(packing: Packing, lengths: npt.NDArray[np.int64]) -> PackedSequence:
    order = FullPermutation(len(lengths), dataset_id="bench", seed=1)
    return PackedSequence(OrderedSequence(order), packing, lengths)


def epoch(packed: PackedSequence) -> int:
    """Take all of an epoch, a batch at a time; the number of packs."""
    state, packs = packed.start(0), 0
    while True:
        batch, state = packed.take(state, BATCH)
        packs += len(batch)
        if len(batch) < BATCH:
            return packs


def states(packed: PackedSequence) -> dict[str, Any]:
    """Bytes of the state as JSON, and what it costs to go on from one rather than from the live packer."""
    state, sizes, resumes = packed.start(0), [], []
    for number in range(100):
        _, state = packed.take(state, BATCH)
        text = json.dumps(state, separators=(",", ":"))
        sizes.append(len(text))
        if number % 10 == 0:
            again = json.loads(text)
            packed.take(state, 1)  # the live packer is gone on: the next has to be made
            resumes.append(spent(lambda again=again: packed.take(again, 1)))  # type: ignore[misc]
    return {
        "state_bytes": int(np.median(sizes)),
        "state_bytes_most": max(sizes),
        "resume_us": round(min(resumes) * 1e6),
    }


def rows() -> dict[str, float]:
    """CPU microseconds to assemble one row of ``LENGTH`` tokens from four documents."""
    pieces = [Piece(np.arange(LENGTH // 4, dtype=np.int32), 0, LENGTH // 4) for _ in range(4)]
    packing = Packing(LENGTH)
    count = 2000
    least = min(spent(lambda: [assemble(packing, pieces) for _ in range(count)]) for _ in range(RUNS))
    return {
        "us_per_row": round(least / count * 1e6, 1),
        "ns_per_token": round(least / count / LENGTH * 1e9, 1),
    }


def peer(lengths: npt.NDArray[np.int64]) -> dict[str, Any]:
    """``trl.pack_dataset`` (best fit decreasing, over all documents at once) on the same lengths."""
    if importlib.util.find_spec("trl") is None or importlib.util.find_spec("datasets") is None:
        return {"absent": "trl and datasets are not installed"}
    import datasets
    import trl

    tokens = np.zeros(int(lengths.max()), dtype=np.int32)
    given = datasets.Dataset.from_dict({"input_ids": [tokens[:length].tolist() for length in lengths]})
    packed: list[Any] = []
    least = spent(lambda: packed.append(trl.pack_dataset(given, LENGTH, strategy="bfd")))
    kept = np.minimum(lengths, LENGTH).sum()
    return {
        "us_per_document": round(least / len(lengths) * 1e6, 2),
        "fill": round(kept / len(packed[0]) / LENGTH, 4),
    }


def main() -> None:
    count = 20_000 if "--quick" in sys.argv[1:] else 100_000
    lengths = documents(count)
    least = dict.fromkeys(POLICIES, float("inf"))
    packs = {}
    for _ in range(RUNS):
        for name, packing in POLICIES.items():
            packed = sequence(packing, lengths)
            before = time.process_time()
            packs[name] = epoch(packed)
            least[name] = min(least[name], time.process_time() - before)
    figures: dict[str, Any] = {
        name: {
            "us_per_document": round(least[name] / count * 1e6, 2),
            "fill": round(float(lengths.sum()) / packs[name] / LENGTH, 4),
            **states(sequence(packing, lengths)),
        }
        for name, packing in POLICIES.items()
    }
    shape = {"documents": count, "median": MEDIAN, "sigma": SIGMA, "length": LENGTH}
    print(json.dumps({**shape, "plan": figures, "assemble": rows(), "trl": peer(lengths)}, indent=2))


if __name__ == "__main__":
    main()
